"""What items a model can encode; that they are fitted and mapped is in `contracts/test_family.py`."""

from dataclasses import replace
from pathlib import Path

import pytest

from rails_ray.families.config import DataConfig
from rails_ray.families.data import for_data, read_data
from rails_ray.families.dual_encoder.train import DualEncoderTraining
from rails_ray.families.training_family import training_family
from rails_ray.storage.filesystem import Storage
from support.data_folders import write_sequence_data
from support.examples import small_bm25_config, small_history_config, small_solar_config


def test_rows_that_are_other_items_now_are_not_encoded(tmp_path: Path) -> None:
    folder = write_sequence_data(tmp_path / "data", num_items=9)
    config = replace(small_history_config(), data=DataConfig(folder=str(folder)))
    data = read_data(config, Storage("unused"))
    own = DualEncoderTraining.of(for_data(config, data))
    own.with_items(data.item_ids)
    with pytest.raises(ValueError, match="must hold the items that the run was trained on, in their order, got others"):
        own.with_items(data.item_ids[::-1])
    with pytest.raises(ValueError, match=r"encoder\.num_items must be the 8 items of .*, or 0, got 9"):
        own.with_items(data.item_ids[1:])


def test_a_run_whose_items_have_one_form_is_asked_for_no_other() -> None:
    for config in (small_bm25_config(), small_solar_config()):
        with pytest.raises(
            ValueError, match=rf"codes must be left out for run {config.name}, which has no choice, got"
        ):
            training_family(config).stored_as(codes=(8, 256))
