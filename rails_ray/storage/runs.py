"""Runs: a trained model with its config and what validation said of it, and before that a checkpoint to go on from.

`begun.json` reserves the name for one config; `config.json` is written last: a finished run exists from then on.
"""

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import safetensors.torch

from rails_ray.errors import ConflictError, DamagedError, NotFoundError
from rails_ray.storage.filesystem import NAME, Storage
from rails_ray.storage.manifest import read_json


@dataclass(frozen=True, kw_only=True)
class Run:
    """
    config: as JSON.
    validation: the report on the validation split.
    training: `losses` of each step, `validations` on the way, and `seconds` that training took.
    """

    name: str
    config: bytes
    weights: bytes
    validation: dict[str, Any]
    training: dict[str, Any]

    @property
    def cutoff_mass(self) -> float | None:
        mass: float | None = self.validation["cutoff_mass"]
        return mass


def begin(storage: Storage, run: str, config: bytes, data_sha256: str) -> None:
    """Reserve a name for a run of this config on this data, or find that such a run was begun, and perhaps finished.

    Raises:
        ValueError: if the name cannot be that of a folder, or a run of another config or data has it.
    """
    if not NAME.fullmatch(run):
        raise ValueError(f"run must be made of letters, digits, '.', '_' and '-', got {run!r}")
    begun = {**json.loads(config), "data_sha256": data_sha256}
    try:
        storage.create(f"runs/{run}/begun.json", json.dumps(begun, indent=1).encode())
    except ConflictError:
        change = _first_change(read_json(storage, f"runs/{run}/begun.json"), begun)
        if change:
            raise ValueError(
                f"run {run!r} must go on with the config and data that it was begun with, got another {change}: "
                "choose another --run"
            ) from None


def is_finished(storage: Storage, run: str) -> bool:
    return storage.exists(f"runs/{run}/config.json")


def _first_change(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> str | None:
    """The first field that differs, by its dotted name."""
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
    """The last checkpoint of a run that has not finished, if it got as far as one.

    Raises:
        DamagedError: if it is none.
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
    """Leave a finished run.

    Args:
        training: `losses` of each step, `validations` on the way, and `seconds` that training took.
    """
    training = {**training, "weights_sha256": hashlib.sha256(weights).hexdigest()}
    storage.write(f"runs/{run}/model.safetensors", weights)
    storage.write(f"runs/{run}/validation.json", validation)
    storage.write(f"runs/{run}/training.json", json.dumps(training).encode())
    storage.write(f"runs/{run}/config.json", config)
    storage.delete(f"runs/{run}/checkpoint.safetensors")


def read(storage: Storage, run: str) -> Run:
    """Raises:
    NotFoundError: if there is no finished run of this name.
    DamagedError: if its reports cannot be read, or its weights are not those that training left.
    """
    folder = f"runs/{run}"
    if not NAME.fullmatch(run) or not is_finished(storage, run):
        finished = [name for name in storage.list("runs") if is_finished(storage, name)]
        raise NotFoundError(f"run must be one of {', '.join(finished) or 'none trained yet'}, got {run!r}")
    try:
        validation = json.loads(storage.read(f"{folder}/validation.json"))
        training = json.loads(storage.read(f"{folder}/training.json"))
        validation["cutoff_mass"], training["seconds"]
        weights_sha256 = training["weights_sha256"]
    except (ValueError, KeyError, TypeError, NotFoundError):
        raise DamagedError(f"run {run!r} in {storage} must hold its reports as JSON, got others: train again") from None
    weights = storage.read(f"{folder}/model.safetensors")
    if hashlib.sha256(weights).hexdigest() != weights_sha256:
        raise DamagedError(f"the weights of run {run!r} in {storage} must be as training left them: train again")
    return Run(
        name=run,
        config=storage.read(f"{folder}/config.json"),
        weights=weights,
        validation=validation,
        training=training,
    )
