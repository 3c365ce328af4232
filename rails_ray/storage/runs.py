"""Runs: a trained model with its config and validation report; before that, a checkpoint to resume from.

`begun.json` reserves the name for one config; `config.json` is written last: a finished run exists from then on.

A run of several pieces, each trained on its own, has a folder for each piece, which is itself a run. `begun.json` names
the pieces, and the run's own files say which weights make up the model. A run of one piece has only its own folder.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import safetensors.torch

from rails_ray.errors import ConflictError, DamagedError, NotFoundError
from rails_ray.storage.described import WEIGHTS
from rails_ray.storage.filesystem import NAME, Storage
from rails_ray.storage.manifest import read_json


@dataclass(frozen=True, kw_only=True)
class Run:
    """
    config: as JSON.
    weights_sha256: sha256 of each file of weights, by its path in the run's folder.
    validation: report on the validation split.
    training: `losses` of each step, `validations` during training, and `seconds` of training. For several pieces: the
        measures of each of the `pieces`, and the seconds of all.
    """

    name: str
    config: bytes
    weights_sha256: dict[str, str]
    validation: dict[str, Any]
    training: dict[str, Any]

    @property
    def cutoff_mass(self) -> float | None:
        mass: float | None = self.validation["cutoff_mass"]
        return mass


def piece_run(run: str, piece: str) -> str:
    """The name of a piece's run.

    Args:
        piece: the folder below the run's; "" for the run's own.
    """
    return f"{run}/{piece}" if piece else run


def begin(storage: Storage, run: str, config: bytes, data_sha256: str, pieces: Sequence[str] = ()) -> None:
    """Reserve a name for a run of this config on this data, unless the same run was already begun.

    Args:
        pieces: folders of its pieces; empty for a run of one piece, whose files lie in the run's own folder.

    Raises:
        ValueError: if the name cannot be a folder's, or a run of another config or data has it.
    """
    if not NAME.fullmatch(run):
        raise ValueError(f"run must be made of letters, digits, '.', '_' and '-', got {run!r}")
    _begin(storage, run, config, {"data_sha256": data_sha256, **({"pieces": list(pieces)} if pieces else {})})


def begin_piece(storage: Storage, run: str, piece: str, config: bytes, data_sha256: str) -> None:
    """Read a piece of a run that was begun."""
    _begin(storage, piece_run(run, piece), config, {"data_sha256": data_sha256})


def _begin(storage: Storage, run: str, config: bytes, facts: dict[str, Any]) -> None:
    begun = {**json.loads(config), **facts}
    try:
        storage.create(f"runs/{run}/begun.json", json.dumps(begun, indent=1).encode())
    except ConflictError:
        change = _first_change(read_json(storage, f"runs/{run}/begun.json"), begun)
        if change:
            raise ValueError(
                f"run {run!r} must keep the config and data that it was begun with, got another {change}: "
                "choose another --run"
            ) from None


def pieces(storage: Storage, run: str) -> list[str]:
    """The folders of a run's pieces, in order; empty if it is one piece or was not begun."""
    if not storage.exists(f"runs/{run}/begun.json"):
        return []
    names: list[str] = read_json(storage, f"runs/{run}/begun.json").get("pieces", [])
    return names


def is_begun(storage: Storage, run: str) -> bool:
    return NAME.fullmatch(run) is not None and storage.exists(f"runs/{run}/begun.json")


def is_finished(storage: Storage, run: str) -> bool:
    return storage.exists(f"runs/{run}/config.json")


def _first_change(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> str | None:
    """The first field that differs, by its dotted name; None if none does."""
    for name in [*old, *(name for name in new if name not in old)]:
        before, after = old.get(name), new.get(name)
        if isinstance(before, dict) and isinstance(after, dict):
            change = _first_change(before, after, f"{prefix}{name}.")
            if change:
                return change
        elif before != after:
            return f"{prefix}{name}: {after!r} instead of {before!r}"
    return None


def write_checkpoint(storage: Storage, run: str, checkpoint: bytes) -> None:
    storage.write(f"runs/{run}/checkpoint.safetensors", checkpoint)


def read_checkpoint(storage: Storage, run: str) -> bytes | None:
    """The last checkpoint of an unfinished run; None if it has none.

    Raises:
        DamagedError: if the file is no checkpoint.
    """
    path = f"runs/{run}/checkpoint.safetensors"
    found = storage.read_tagged(path)
    if found is None:
        return None
    try:
        safetensors.torch.load(found.data)
    except safetensors.SafetensorError as error:
        raise DamagedError(f"{storage}/{path} must be a checkpoint, got: {error}: delete it to start again") from None
    return found.data


def write(
    storage: Storage, run: str, *, weights: bytes, validation: bytes, training: dict[str, Any], config: bytes
) -> None:
    """Write a finished run.

    Args:
        training: `losses` of each step, `validations` during training, and `seconds` of training.
    """
    storage.write(f"runs/{run}/{WEIGHTS}", weights)
    written = {WEIGHTS: hashlib.sha256(weights).hexdigest()}
    finish(storage, run, weights_sha256=written, validation=validation, training=training, config=config)


def finish(
    storage: Storage,
    run: str,
    *,
    weights_sha256: Mapping[str, str],
    validation: bytes,
    training: dict[str, Any],
    config: bytes,
) -> None:
    """Write a finished run whose weights are already in its folder."""
    training = {**training, "weights_sha256": dict(weights_sha256)}
    storage.write(f"runs/{run}/validation.json", validation)
    storage.write(f"runs/{run}/training.json", json.dumps(training).encode())
    storage.write(f"runs/{run}/config.json", config)
    storage.delete(f"runs/{run}/checkpoint.safetensors")


def read(storage: Storage, run: str, min_pieces: int | None = None) -> Run:
    """A finished run, or the finished pieces of a run if at least `min_pieces` have finished.

    Raises:
        NotFoundError: if there is no finished run of this name.
        ValueError: if too few of its pieces have finished.
        DamagedError: if its reports cannot be read.
    """
    is_name = NAME.fullmatch(run) is not None
    if is_name and not is_finished(storage, run):
        of_pieces = _of_pieces(storage, run, min_pieces)
        if of_pieces is not None:
            return of_pieces
    if not is_name or not is_finished(storage, run):
        finished = ", ".join(name for name in storage.list("runs") if is_finished(storage, name))
        known = finished or f"the finished runs of {storage}, which has none"
        raise NotFoundError(f"run must be one of {known}, got {run!r}")
    return _read(storage, run)


def read_piece(storage: Storage, run: str, piece: str) -> Run:
    """The finished run of a piece; raises what `read` does."""
    return _read(storage, piece_run(run, piece))


def _read(storage: Storage, run: str) -> Run:
    folder = f"runs/{run}"
    try:
        validation = json.loads(storage.read(f"{folder}/validation.json"))
        training = json.loads(storage.read(f"{folder}/training.json"))
        validation["cutoff_mass"], training["seconds"]
        weights_sha256 = dict(training["weights_sha256"])
    except (ValueError, KeyError, TypeError, NotFoundError):
        raise DamagedError(f"run {run!r} in {storage} must hold its reports as JSON, got others: train again") from None
    return Run(
        name=run,
        config=storage.read(f"{folder}/config.json"),
        weights_sha256=weights_sha256,
        validation=validation,
        training=training,
    )


def _of_pieces(storage: Storage, run: str, min_pieces: int | None) -> Run | None:
    """An unfinished run with its finished pieces; None if none has finished."""
    names, finished = pieces(storage, run), finished_pieces(storage, run)
    if not finished:
        return None
    of_pieces = {piece: read_piece(storage, run, piece) for piece in finished}
    least = len(names) if min_pieces is None else min(min_pieces, len(names))
    if len(finished) < least:
        wanted = f"all {least}" if least == len(names) else str(least)
        raise ValueError(
            f"run {run!r} must have {wanted} trained pieces, got {len(finished)}: train it again under the same name, "
            f"or encode without the rest with --min-chunks {len(finished)}"
        )
    return Run(
        name=run,
        config=of_pieces[finished[0]].config,
        weights_sha256={
            f"{piece}/{path}": sha256 for piece, own in of_pieces.items() for path, sha256 in own.weights_sha256.items()
        },
        validation={"cutoff_mass": None},
        training={"seconds": sum(own.training["seconds"] for own in of_pieces.values())},
    )


def finished_pieces(storage: Storage, run: str) -> list[str]:
    """The folders of a run's finished pieces, in order."""
    return [piece for piece in pieces(storage, run) if is_finished(storage, piece_run(run, piece))]


def weights(storage: Storage, run: Run) -> Iterator[tuple[str, bytes]]:
    """Each file of a run's weights with its path in the run's folder, read lazily.

    Raises:
        DamagedError: if a file has changed since training.
    """
    for path, sha256 in run.weights_sha256.items():
        try:
            data = storage.read(f"runs/{run.name}/{path}")
        except NotFoundError:
            data = b""
        if hashlib.sha256(data).hexdigest() != sha256:
            raise DamagedError(
                f"the weights {path} of run {run.name!r} in {storage} must be as training left them: train again"
            )
        yield path, data
