"""What a run of a dual encoder is told about its data, and refused."""

import logging
import re
from dataclasses import replace
from pathlib import Path

import pytest

from rails_ray.data.batch import SharedBy
from rails_ray.data.dataset import DataSet
from rails_ray.families.config import DataConfig, RunConfig
from rails_ray.families.data import for_data, read_data
from rails_ray.families.dual_encoder.negatives import (
    DrawnNegatives,
    HardNegatives,
    MixedNegatives,
    PopularityNegatives,
    UniformNegatives,
)
from rails_ray.families.dual_encoder.train import DualEncoderTraining
from rails_ray.families.running import begin
from rails_ray.modules.schedule import TrainingConfig
from rails_ray.modules.similarities.dot_product import DotProductConfig
from rails_ray.storage.filesystem import Storage
from rails_ray.training.piece import Given, fit
from support.data_folders import write_sequence_data, write_text_data, write_vector_data
from support.examples import small_config, small_history_config, small_vector_config


def of_data(config: RunConfig, folder: Path) -> tuple[RunConfig, DataSet]:
    config = replace(config, data=DataConfig(folder=str(folder)), training=TrainingConfig(num_steps=2, batch_size=4))
    read = read_data(config, Storage("."))
    return for_data(config, read), read


def test_more_negatives_than_items(tmp_path: Path) -> None:
    compared_by = {"similarity": DotProductConfig(), "negatives": UniformNegatives(num_items=61)}
    config, read = of_data(small_config().with_family(**compared_by), write_text_data(tmp_path))
    own = DualEncoderTraining.of(config)
    [sentence] = own.remarks(read)
    assert sentence.startswith("negatives.num_items is 61 and ")
    assert sentence.endswith(" has 60 items, so that each is a negative once")
    assert sorted(own.sampler(own.model(), read).batch(3).item_rows.tolist()) == [*range(60)]
    fitting = config.with_family(negatives=UniformNegatives(num_items=60))
    assert DualEncoderTraining.of(fitting).remarks(read) == []


@pytest.mark.parametrize("kind", [PopularityNegatives, MixedNegatives, HardNegatives])
def test_more_negatives_of_other_kinds_than_items(kind: type[DrawnNegatives], tmp_path: Path) -> None:
    compared_by = {"similarity": DotProductConfig(), "negatives": kind(num_items=61)}
    config, read = of_data(small_config().with_family(**compared_by), write_text_data(tmp_path))
    [sentence] = DualEncoderTraining.of(config).remarks(read)
    assert sentence.startswith("negatives.num_items should be at most the 60 items of ")
    assert sentence.endswith(", got 61: lower --negatives.num-items")


@pytest.mark.parametrize("shared_by", ["batch", "history", "query"])
def test_histories_with_every_item_as_a_negative(shared_by: SharedBy, tmp_path: Path) -> None:
    config, read = of_data(small_history_config(num_items=0), write_sequence_data(tmp_path))
    num = len(read.item_ids)
    config = config.with_family(negatives=UniformNegatives(num_items=3 * num, shared_by=shared_by))
    own = DualEncoderTraining.of(config)
    batch = own.sampler(own.model(), read).batch(0)
    drawn = batch.item_rows[: batch.num_shared][None]
    if batch.groups is not None:
        assert batch.num_shared == 0
        drawn = batch.item_rows[batch.groups.negatives]
    assert drawn.sort(dim=1).values.tolist() == [[*range(num)]] * len(drawn)
    assert len(drawn)


def test_a_mixture_over_texts_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, read = of_data(
        small_config().with_family(negatives=UniformNegatives(num_items=4)), write_text_data(tmp_path)
    )
    assert config.family.similarity.kind == "mixture_of_logits"
    [sentence] = DualEncoderTraining.of(config).remarks(read)
    assert sentence.endswith("train a dot product too, such as text-dot")
    by_table = replace(config, data=DataConfig(items=f"{tmp_path}/items.parquet"))
    assert DualEncoderTraining.of(by_table).remarks(read) == [sentence]
    with monkeypatch.context() as patched:
        patched.setattr(type(config.family.encoder), "is_frozen", True)
        assert DualEncoderTraining.of(config).remarks(read) == []
    packaged = replace(config, data=DataConfig())
    assert DualEncoderTraining.of(packaged).remarks(read) == []
    dot = config.with_family(similarity=DotProductConfig())
    assert DualEncoderTraining.of(dot).remarks(read) == []


def test_histories_longer_than_the_window_are_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config, read = of_data(small_history_config(num_items=0), write_sequence_data(tmp_path))
    config = config.with_family(negatives=UniformNegatives(num_items=4))
    num_longer = sum(len(history) > 4 for history in read.queries["train"].inputs)
    assert num_longer
    with caplog.at_level(logging.WARNING):
        begun = begin(config, Storage(str(tmp_path)), "one")
        [piece] = begun.pieces
        fit(piece, Given(read=read, storage=Storage(str(tmp_path)), run="one"))
    of_rails = [record.getMessage() for record in caplog.records if record.name.startswith("rails_ray")]
    assert of_rails == [
        f"{num_longer} of {len(read.queries['train'])} histories have more than the 4 items of encoder.max_length: "
        "training reads a window of each, and a query its newest items"
    ]


def test_as_many_hard_negatives_as_items(tmp_path: Path) -> None:
    config = small_config().with_family(negatives=HardNegatives(num_items=4, num_hard=60))
    with pytest.raises(ValueError, match=r"negatives\.num_hard must be below the 60 items of .*, got 60"):
        of_data(config, write_text_data(tmp_path))


@pytest.mark.parametrize(
    ("components", "message"),
    [
        ("given", "similarity.num_item_components must be the number of an item's vectors, 3, got 2"),
        ("projected", "components.items must be given for items of 3 vectors, got projected: an item's vectors are "),
    ],
)
def test_components_that_do_not_fit_the_vectors(components: str, message: str, tmp_path: Path) -> None:
    config = small_vector_config("mixture of given")
    config = config.with_family(
        components=replace(config.family.components, items=components),
        similarity=replace(config.family.similarity, num_item_components=2),
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        of_data(config, write_vector_data(tmp_path, num_vectors=3))
