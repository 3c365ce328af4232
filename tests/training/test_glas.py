"""GLaS as a part of training; its equation is tested beside the other losses."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import oracles.losses
from rails_ray.data.batch import PairSampler, relevance_of
from rails_ray.families import recipes
from rails_ray.families.config import DataConfig, RunConfig, from_json, to_json
from rails_ray.families.data import read_data
from rails_ray.families.dual_encoder.model import DualEncoder
from rails_ray.families.dual_encoder.negatives import InBatchNegatives
from rails_ray.families.dual_encoder.train import DualEncoderTraining
from rails_ray.modules.encoders.components import ComponentsConfig
from rails_ray.modules.losses.config import TermsConfig
from rails_ray.modules.losses.glas import CoOccurrence
from rails_ray.storage.filesystem import Storage
from rails_ray.training.step import in_one_process
from support.data_folders import write_text_data
from support.examples import COLOURED, THINGS, sampler_of, small_config, small_history_config

CO_OCCURRENCE = CoOccurrence(relevance_of(COLOURED.relevant), len(THINGS))


def config_of(weight: float) -> RunConfig:
    return small_config("dot product").with_family(terms=TermsConfig(glas_weight=weight))


def sampler_with_targets(model: DualEncoder, **options: int) -> PairSampler:
    sampler = sampler_of(model, **options)
    sampler.co_occurrence = CO_OCCURRENCE
    return sampler


def test_the_step_adds_the_weighted_regulariser() -> None:
    model = DualEncoderTraining.of(config_of(0.0)).model()
    batch = sampler_with_targets(model).batch(0)
    losses = [
        DualEncoderTraining.of(config_of(weight)).training_step(model, in_one_process).eval()(batch).item()
        for weight in (0.0, 3.0)
    ]
    vectors = model.encode_items(batch.items).components[:, 0].tolist()
    expected = oracles.losses.glas(vectors, batch.item_rows.tolist(), [rows.tolist() for rows in COLOURED.relevant])
    assert expected > 0.01
    assert losses[1] - losses[0] == pytest.approx(3 * expected, rel=1e-4)


def test_the_mean_over_workers_is_the_loss_of_the_whole() -> None:
    model = DualEncoderTraining.of(config_of(3.0)).model()
    step = DualEncoderTraining.of(config_of(3.0)).training_step(model, in_one_process).eval()
    whole = step(sampler_with_targets(model).batch(0)).item()
    parts = [step(sampler_with_targets(model, rank=rank, num_workers=2).batch(0)).item() for rank in range(2)]
    assert sum(parts) / 2 == pytest.approx(whole, rel=1e-5)


def test_targets_are_those_of_the_batch_and_move_with_it() -> None:
    model = DualEncoderTraining.of(config_of(1.0)).model()
    batch = sampler_with_targets(model).batch(0)
    assert torch.equal(batch.glas_targets, CO_OCCURRENCE.targets(batch.item_rows))
    assert batch.to("meta").glas_targets.device.type == "meta"
    assert sampler_of(model).batch(0).glas_targets is None


@pytest.mark.parametrize("weight", [0.0, 2.0])
def test_a_run_asks_for_targets_where_its_loss_reads_them(weight: float, tmp_path: Path) -> None:
    config = replace(config_of(weight), data=DataConfig(folder=str(write_text_data(tmp_path / "data"))))
    data = read_data(config, Storage(str(tmp_path)))
    model = DualEncoderTraining.of(config).model()
    batch = DualEncoderTraining.of(config).sampler(model, data).batch(0)
    assert (batch.glas_targets is not None) == (weight > 0)
    if weight:
        of_all = CoOccurrence(relevance_of(data.queries["train"].relevant), len(data.item_ids))
        assert torch.equal(batch.glas_targets, of_all.targets(batch.item_rows))
    assert DualEncoderTraining.of(config).training_step(model, in_one_process)(batch).isfinite()


def test_a_config_from_before_has_none_of_it() -> None:
    older = json.loads(to_json(config_of(0.0)))
    del older["family"]["terms"]["glas_weight"]
    assert from_json(json.dumps(older).encode()).family.terms.glas_weight == 0


def test_the_recipe_differs_in_its_weight_alone() -> None:
    plain, regularised = recipes.by_name("text-dot"), recipes.by_name("text-dot-glas")
    assert regularised.family.terms.glas_weight > 0
    assert replace(regularised, name=plain.name).with_family(terms=plain.family.terms) == plain
    assert replace(regularised.family.terms, glas_weight=0.0) == plain.family.terms


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: TermsConfig(glas_weight=-1.0), r"glas_weight must be at least 0, got -1\.0"),
        (
            lambda: small_config("mixture").with_family(terms=TermsConfig(glas_weight=2.0)),
            r"terms\.glas_weight must be 0 without a dot product of vectors of length 1, got 2\.0",
        ),
        (
            lambda: config_of(2.0).with_family(components=ComponentsConfig(lengths="at_most_one")),
            r"terms\.glas_weight must be 0 without a dot product of vectors of length 1, got 2\.0",
        ),
        (
            lambda: small_history_config("dot product").with_family(terms=TermsConfig(glas_weight=2.0)),
            r"terms\.glas_weight must be 0 for a model of histories, got 2\.0",
        ),
        (
            lambda: config_of(2.0).with_family(negatives=InBatchNegatives()),
            r"negatives\.kind must be uniform for terms\.glas_weight 2\.0, got 'in_batch': all workers must have",
        ),
    ],
)
def test_where_it_cannot_be_had(made, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made()
