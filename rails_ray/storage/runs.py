"""Runs: a trained model with its config and what validation said of it.

`config.json` is written last: a run exists from then on.
"""

import json
from dataclasses import dataclass
from typing import Any

from rails_ray.errors import DamagedError, NotFoundError
from rails_ray.storage.filesystem import NAME, Storage


@dataclass(frozen=True, kw_only=True)
class Run:
    """
    config: as JSON.
    validation: the report on the validation split.
    training: `losses` of each step, and `seconds` that the steps took.
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


def check_new(storage: Storage, run: str) -> None:
    """Raises:
    ValueError: if the name cannot be that of a folder, or a run has it already.
    """
    if not NAME.fullmatch(run):
        raise ValueError(f"run must be made of letters, digits, '.', '_' and '-', got {run!r}")
    if storage.exists(f"runs/{run}/config.json"):
        raise ValueError(f"run must be a new name, got {run!r}, which {storage} holds already: choose another --run")


def write(storage: Storage, run: str, *, weights: bytes, validation: bytes, training: bytes, config: bytes) -> None:
    storage.write(f"runs/{run}/model.safetensors", weights)
    storage.write(f"runs/{run}/validation.json", validation)
    storage.write(f"runs/{run}/training.json", training)
    storage.write(f"runs/{run}/config.json", config)


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
