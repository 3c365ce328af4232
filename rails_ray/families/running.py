"""Begin and end a run, and train one in this process, whose pieces need no steps."""

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rails_ray.allowed_code import AllowedCode
from rails_ray.families import config
from rails_ray.families.config import RunConfig
from rails_ray.families.data import check_attributes, for_data, read_data
from rails_ray.families.training_family import training_family
from rails_ray.storage import runs
from rails_ray.storage.filesystem import Storage, timed_name
from rails_ray.training.piece import Fitted, Given, Piece, fit


@dataclass(frozen=True, kw_only=True)
class Begun:
    """A run that has reserved its name.

    config: as JSON, with all values that the data set decides.
    """

    storage: Storage
    run: str
    config: bytes
    pieces: Sequence[Piece]


def begin(run_config: RunConfig, storage: Storage, run: str | None = None, allowed: AllowedCode | None = None) -> Begun:
    """Reserve a run's name and store what is fixed before training, unless the same run was already begun.

    Args:
        allowed: code that may be carried out; by default what the config names.

    Raises:
        ValueError: if the data, the run's name or the config is invalid.
    """
    allowed = allowed or config.allowed_here(run_config)
    read = read_data(run_config, storage)  # raises if the data are wrong, before anything starts
    check_attributes(run_config, storage)
    run_config = config.checked(for_data(run_config, read, allowed))
    own = training_family(run_config, allowed)
    own.check_can_be_found(read)
    pieces, leave = own.pieces(), own.begin(read)
    for remark in [*read.notes, *own.remarks(read)]:
        logging.getLogger(__name__).warning(remark)
    run = run or timed_name(run_config.name)
    config_json, digest = config.to_json(run_config), read.digest()
    runs.begin(storage, run, config_json, digest, [piece.name for piece in pieces if piece.name])
    leave(storage, run)
    for piece in pieces:
        runs.begin_piece(storage, run, piece.name, config_json, digest)
    return Begun(storage=storage, run=run, config=config_json, pieces=pieces)


def write_piece(storage: Storage, piece_run: str, fitted: Fitted, config_json: bytes) -> None:
    """Store a piece that is done."""
    runs.write(
        storage,
        piece_run,
        weights=fitted.weights,
        validation=json.dumps(fitted.validation, indent=1).encode(),
        training=fitted.training,
        config=config_json,
    )


def finish(storage: str, run: str, allowed: AllowedCode, device: Callable[[], str]) -> None:
    """Validate all pieces together and mark the run as finished.

    Args:
        device: gives the torch device of the process that does it.
    """
    store = Storage(storage)
    found = runs.read(store, run)
    run_config = config.from_json(found.config)
    read, own = read_data(run_config, store), training_family(run_config, allowed.read_by(f"run {run}", storage))
    runs.begin(store, run, found.config, read.digest(), runs.pieces(store, run))  # raises if the data have changed
    model = own.trained_model(runs.weights(store, found)).to(device())
    report = own.validation(store, run, model, read)
    came_to = []
    for piece in runs.pieces(store, run):
        of_piece = runs.read_piece(store, run, piece)
        measured = {name: value for name, value in of_piece.validation.items() if name != "cutoff_mass"}
        came_to.append({"piece": piece, **measured, "seconds": of_piece.training["seconds"]})
    runs.finish(
        store,
        run,
        weights_sha256=found.weights_sha256,
        validation=json.dumps(report.to_dict(), indent=1).encode(),
        training={"seconds": found.training["seconds"], "pieces": came_to},
        config=found.config,
    )


def fit_run(run_config: RunConfig, storage: str, run: str | None = None) -> runs.Run:
    """Store the run of a recipe that trains nothing, in this process. A finished run is returned as it is.

    Raises:
        ValueError: if a piece takes steps, or the data, the run's name or the config is invalid.
        StorageError: if storage cannot be written to.
    """
    own = training_family(run_config)
    if own.trains:
        raise ValueError(f"run_config must train nothing, got {run_config.name}: train it on a cluster")
    store = Storage(storage)
    store.check_conditional()
    begun = begin(run_config, store, run)
    if not runs.is_finished(store, begun.run):
        read = read_data(config.from_json(begun.config), store)
        for piece in begun.pieces:
            piece_run = runs.piece_run(begun.run, piece.name)
            if not runs.is_finished(store, piece_run):
                fitted = fit(piece, Given(read=read, storage=store, run=begun.run))
                assert fitted is not None
                write_piece(store, piece_run, fitted, begun.config)
    if not runs.is_finished(store, begun.run):
        finish(str(store), begun.run, config.allowed_here(run_config), lambda: "cpu")
    return runs.read(store, begun.run)
