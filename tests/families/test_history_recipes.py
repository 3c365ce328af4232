"""Recipes for histories learn what comes next, and those of MovieLens-1M stay what was measured."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rails_ray.families import recipes
from rails_ray.families.config import DataConfig, RunConfig
from rails_ray.families.data import for_data, read_data
from rails_ray.families.dual_encoder.config import DualEncoderConfig
from rails_ray.families.dual_encoder.negatives import UniformNegatives
from rails_ray.families.dual_encoder.train import DualEncoderTraining
from rails_ray.modules.encoders.components import ComponentsConfig
from rails_ray.modules.encoders.hstu import HstuConfig
from rails_ray.modules.encoders.sasrec import SasrecConfig
from rails_ray.modules.losses.config import ContrastiveConfig
from rails_ray.modules.schedule import TrainingConfig
from rails_ray.modules.similarities.dot_product import DotProductConfig
from rails_ray.modules.similarities.mol import MixtureOfLogitsConfig
from rails_ray.storage.filesystem import Storage
from rails_ray.training.evaluation.report import validation_mrr
from rails_ray.training.loop import train
from rails_ray.training.step import in_one_process
from support.data_folders import write_sequence_data


@pytest.mark.parametrize(
    "name",
    ["sasrec", "esasrec", "hstu"]
    + [pytest.param(name, marks=pytest.mark.long) for name in ("sasrec-mol", "esasrec-mol", "hstu-mol")],
)
def test_a_recipe_for_histories_learns_what_comes_next(name: str, tmp_path: Path) -> None:
    """Users of this data set go on by one item or two, of twelve."""
    config = replace(recipes.by_name(name), data=DataConfig(folder=str(write_sequence_data(tmp_path))))
    config = replace(
        config.with_family(negatives=UniformNegatives(num_items=64)),
        training=replace(config.training, num_steps=60, batch_size=16, validate_every=0),
    )
    read = read_data(config, Storage("."))
    family = DualEncoderTraining.of(for_data(config, read))
    model = family.model()
    features, queries = model.item_features(read.item_inputs), read.queries["valid"]
    before = validation_mrr(model.eval(), features, queries)
    step, losses = family.training_step(model, in_one_process), list[float]()
    batch_of = family.sampler(model, read).batch
    train(step, batch_of, config.training, seed=[0], report=lambda done, loss: losses.append(loss))
    assert np.mean(losses[-10:]) < 0.8 * losses[0]
    assert validation_mrr(model, features, queries) > before + 0.1


def test_general_recipes_count_positions_from_the_newest_item_and_end_by_patience() -> None:
    for name in ("sasrec", "esasrec-mol", "hstu"):
        config = recipes.by_name(name)
        assert config.family.encoder.positions_from == "newest"
        assert config.training.schedule == "constant"
        assert config.training.patience > 0
        encoder = config.family.encoder
        assert (encoder.width, encoder.max_length, encoder.dropout, encoder.item_dropout) == (256, 50, 0.4, 0.2)
        assert (config.training.learning_rate, config.training.batch_size) == (1e-3, 128)
        assert config.family.negatives == UniformNegatives(num_items=8192)
        assert config.family.components.lengths == "at_most_one"


def test_short_recipes_of_movielens_are_what_was_measured() -> None:
    plain = RunConfig(
        name="ml1m-sasrec",
        family=DualEncoderConfig(
            encoder=SasrecConfig(width=64, num_blocks=2, num_heads=1, max_length=50),
            components=ComponentsConfig(width=64, query_hidden=0, gate_hidden=64),
            similarity=DotProductConfig(temperature=0.03),
            loss=ContrastiveConfig(kind="sampled_softmax", pointwise_weight=0.0),
            negatives=UniformNegatives(num_items=512, shared_by="batch"),
        ),
        training=TrainingConfig(num_steps=3780, batch_size=32, learning_rate=2e-3, validate_every=378, patience=3),
    )
    mixture = MixtureOfLogitsConfig(
        num_query_components=4,
        num_item_components=2,
        gate_hidden=16,
        temperature=0.03,
        logit_dropout=0.0,
        gate_dropout=0.0,
    )
    hstu = HstuConfig(width=64, num_blocks=4, num_heads=2, max_length=50)
    assert recipes.ml1m_sasrec() == plain
    assert recipes.ml1m_sasrec_mol() == replace(plain, name="ml1m-sasrec-mol").with_family(similarity=mixture)
    assert recipes.ml1m_hstu() == replace(plain, name="ml1m-hstu").with_family(encoder=hstu)
    of_hstu = replace(plain, name="ml1m-hstu-mol").with_family(similarity=mixture, encoder=hstu)
    assert recipes.ml1m_hstu_mol() == of_hstu
