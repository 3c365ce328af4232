"""Runs: a trained model with its config and what validation said of it, and before that a checkpoint to go on from.

`begun.json` reserves the name for one config; `config.json` is written last: a finished run exists from then on.
"""

import json
from dataclasses import dataclass
from typing import Any

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


def begin(storage: Storage, run: str, config: bytes) -> None:
    """Reserve a name for a run of this config, or find that such a run was begun and can go on.

    Raises:
        ValueError: if the name cannot be that of a folder, or a run of another config, or a finished one, has it.
    """
    if not NAME.fullmatch(run):
        raise ValueError(f"run must be made of letters, digits, '.', '_' and '-', got {run!r}")
    if storage.exists(f"runs/{run}/config.json"):
        raise ValueError(f"run must be a new name, got {run!r}, which {storage} holds already: choose another --run")
    try:
        storage.create(f"runs/{run}/begun.json", config)
    except ConflictError:
        change = _first_change(read_json(storage, f"runs/{run}/begun.json"), json.loads(config))
        if change:
            raise ValueError(
                f"run {run!r} must go on with the config that it was begun with, got another {change}: "
                "choose another --run"
            ) from None


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
    """The last checkpoint of a run that has not finished, if it got as far as one."""
    try:
        return storage.read(f"runs/{run}/checkpoint.safetensors")
    except NotFoundError:
        return None


def write(storage: Storage, run: str, *, weights: bytes, validation: bytes, training: bytes, config: bytes) -> None:
    storage.write(f"runs/{run}/model.safetensors", weights)
    storage.write(f"runs/{run}/validation.json", validation)
    storage.write(f"runs/{run}/training.json", training)
    storage.write(f"runs/{run}/config.json", config)
    storage.delete(f"runs/{run}/checkpoint.safetensors")


def read(storage: Storage, run: str) -> Run:
    """Raises:
    NotFoundError: if there is no finished run of this name.
    DamagedError: if its reports cannot be read.
    """
    folder = f"runs/{run}"
    if not NAME.fullmatch(run) or not storage.exists(f"{folder}/config.json"):
        finished = [name for name in storage.list("runs") if storage.exists(f"runs/{name}/config.json")]
        raise NotFoundError(f"run must be one of {', '.join(finished) or 'none trained yet'}, got {run!r}")
    try:
        validation = json.loads(storage.read(f"{folder}/validation.json"))
        training = json.loads(storage.read(f"{folder}/training.json"))
        validation["cutoff_mass"], training["seconds"]
    except (ValueError, KeyError, TypeError, NotFoundError):
        raise DamagedError(f"run {run!r} in {storage} must hold its reports as JSON, got others: train again") from None
    return Run(
        name=run,
        config=storage.read(f"{folder}/config.json"),
        weights=storage.read(f"{folder}/model.safetensors"),
        validation=validation,
        training=training,
    )
