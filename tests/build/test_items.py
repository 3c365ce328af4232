"""What every family must hold of its items: fitted once, then mapped block by block."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rails_ray.build import family
from rails_ray.build.data import for_data, read_corpus, read_data
from rails_ray.build.dual_encoder import DualEncoderFamily
from rails_ray.build.items import Fitting, ItemEncoder
from rails_ray.build.solar import SolarFamily
from rails_ray.config import DataConfig, RunConfig, to_json
from rails_ray.data.corpus import item_inputs
from rails_ray.similarities.states import concatenate, take, tensors_of
from rails_ray.storage import codes, runs
from rails_ray.storage.filesystem import Storage
from rails_ray.training import state
from support.examples import (
    small_config,
    small_history_config,
    small_solar_config,
    write_sequence_data,
    write_text_data,
    write_untrained_run,
)

CASES = {
    "dual_encoder": (small_config(), write_text_data),
    "dual_encoder of histories": (small_history_config(), lambda folder: write_sequence_data(folder, num_items=9)),
    "solar": (small_solar_config(num_chunks=2), write_text_data),
}


def write_run(storage: Storage, config: RunConfig) -> None:
    """Run r, without training."""
    if config.family.kind == "dual_encoder":
        write_untrained_run(storage, "r", config)
        return
    own, data = SolarFamily.of(config), read_data(config, storage)
    runs.begin(storage, "r", to_json(config), data.digest(), [piece.name for piece in own.pieces()])
    codes.write(storage, "runs/r", own.codes(data.item_ids))
    for number in range(2):
        weights = state.to_bytes(own.chunk(number))
        validation, training = b'{"cutoff_mass": null}', {"seconds": 0, "losses": []}
        run = runs.piece_run("r", f"chunk-{number:03d}")
        runs.write(storage, run, weights=weights, validation=validation, training=training, config=to_json(config))


def called(function: Any, *arguments: Any) -> Any:
    return function(*arguments)


@pytest.mark.parametrize("name", CASES)
def test_blocks_are_mapped_each_for_itself(name: str, tmp_path: Path) -> None:
    config, write = CASES[name]
    storage = Storage(str(tmp_path / "storage"))
    config = replace(config, data=DataConfig(folder=str(write(tmp_path / "data"))))
    data = read_data(config, storage)
    config = for_data(config, data)
    write_run(storage, config)
    own, items, run = family(config), read_corpus(config, storage).items, runs.read(storage, "r")
    asked = Fitting(
        storage=storage, folder="versions/v", run=run, items=items, new_codes="least_loaded", remotely=called
    )
    own.fitting_facts(asked)
    own.fit(asked)
    read: list[str] = []

    def weights() -> Iterator[tuple[str, bytes]]:
        for path, content in runs.weights(storage, run):
            read.append(path)
            yield path, content

    encode = own.item_encoder(storage, "versions/v", weights(), "cpu")
    assert isinstance(encode, ItemEncoder)
    assert bool(read) == own.encodes_inputs, "weights are read only where they are needed"
    blocks = [items.slice(first, 4) for first in range(0, items.num_rows, 4)]
    states = [
        encode(block["item_id"].to_pylist(), item_inputs(block) if own.encodes_inputs else None) for block in blocks
    ]
    model = own.trained_model(runs.weights(storage, run))
    whole = own.run_items(storage, "r", model, data)
    for a, b in zip(tensors_of(concatenate(states)), tensors_of(whole), strict=True):
        assert torch.allclose(a, b, atol=1e-6)
    for a, b in zip(tensors_of(states[1]), tensors_of(take(whole, slice(4, 8))), strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_rows_that_are_other_items_now_are_not_encoded(tmp_path: Path) -> None:
    folder = write_sequence_data(tmp_path / "data", num_items=9)
    config = replace(small_history_config(), data=DataConfig(folder=str(folder)))
    data = read_data(config, Storage("unused"))
    own = DualEncoderFamily.of(for_data(config, data))
    own.check_items(data.item_ids)
    with pytest.raises(ValueError, match="must hold the items that the run was trained on, in their order, got others"):
        own.check_items(data.item_ids[::-1])
    with pytest.raises(ValueError, match=r"encoder\.num_items must be the 8 items of .*, or 0, got 9"):
        own.check_items(data.item_ids[1:])
