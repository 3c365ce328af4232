"""Hard negatives: the wrong items that a model ranks highest."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from rails_ray.data.dataset import DataSet, Texts
from rails_ray.data.queries import ItemLists, Queries
from rails_ray.families.dual_encoder.negatives import HardNegatives
from rails_ray.families.dual_encoder.train import DualEncoderTraining
from rails_ray.modules.schedule import TrainingConfig
from rails_ray.storage.ids import ItemIds
from rails_ray.training.loop import train
from rails_ray.training.mining import Mining, hardest
from rails_ray.training.step import in_one_process
from support.examples import COLOURED, THINGS, sampler_of, small_config


def searched(num_hard: int, queries: Queries = COLOURED, similarity: str = "mixture") -> tuple[Any, torch.Tensor]:
    model = DualEncoderTraining.of(small_config(similarity)).model().eval()
    features = model.query_features(queries.inputs), model.item_features(THINGS)
    return model, hardest(model, queries, *features, num_hard)


@pytest.mark.parametrize("similarity", ["mixture", "dot product"])
@pytest.mark.parametrize("num_hard", [1, 2, 4, 6])
def test_they_are_the_best_of_all_scores_that_do_not_answer(num_hard: int, similarity: str) -> None:
    model, found = searched(num_hard, similarity=similarity)
    query = model.encode_queries(model.query_features(COLOURED.inputs))
    scores = model.score(query, model.encode_items(model.item_features(THINGS))).scores.tolist()
    for line, relevant in enumerate(COLOURED.relevant):
        wrong = sorted(set(range(len(THINGS))) - set(relevant.tolist()), key=lambda row: -scores[line][row])
        assert found[line].tolist() == (wrong + [-1] * num_hard)[:num_hard]


def test_a_query_that_all_items_answer_has_none() -> None:
    everything = Queries(COLOURED.inputs, ItemLists.of([[0, 1, 2, 3], [0], [1], [2]]))
    _, found = searched(2, everything)
    assert found[0].tolist() == [-1, -1]


def test_they_are_found_every_so_many_steps_and_by_the_first_worker() -> None:
    calls, told = [], []

    def find() -> torch.Tensor:
        calls.append(len(calls))
        return torch.full((4, 1), len(calls))

    mining = Mining(find, (4, 1), 3, from_first=lambda rows: told.append(rows.clone()) or rows)
    assert [mining.at_batch(step).unique().tolist() for step in range(8)] == [[-1]] * 3 + [[1]] * 3 + [[2]] * 2
    assert len(told) == 2
    other = Mining(find, (4, 1), 3, from_first=lambda rows: torch.full_like(rows, 9), is_first=False)
    assert other.at_batch(3).unique().tolist() == [9]
    assert len(calls) == 2


def test_a_batch_has_those_of_its_queries() -> None:
    model, hard = searched(1)
    batch = sampler_of(model, hard_rows=lambda step: hard if step else torch.full_like(hard, -1)).batch(1)
    drawn = sampler_of(model).batch(1)
    num = len(drawn.item_rows)
    assert torch.equal(batch.item_rows[:num], drawn.item_rows)
    assert batch.item_rows[num:].tolist() == sorted(set(batch.item_rows[num:].tolist()))
    assert set(batch.item_rows[num:].tolist()) <= set(hard.flatten().tolist())
    assert len(batch.item_rows) > num
    assert len(batch.items) == len(batch.item_rows)
    assert torch.equal(
        sampler_of(model, hard_rows=lambda step: torch.full_like(hard, -1)).batch(1).item_rows, drawn.item_rows
    )


def test_steps_of_several_batches_count_as_steps() -> None:
    config = small_config().with_family(negatives=HardNegatives(num_items=6, num_hard=2, mine_every=3))
    family = DualEncoderTraining.of(replace(config, training=replace(config.training, num_batches=2)))
    read = DataSet(ItemIds(list("abcd")), Texts(THINGS), {"train": COLOURED})
    mining = family.mining(family.model(), read)
    assert mining.every == 6


def test_a_run_that_goes_on_has_the_same_hard_negatives() -> None:
    """Cut off between two searches: they are part of the checkpoint."""
    config = small_config().with_family(negatives=HardNegatives(num_items=6, num_hard=2, mine_every=3))
    training = TrainingConfig(num_steps=8, batch_size=4, learning_rate=1e-2)

    def run(checkpoint: bytes | None = None) -> tuple[list[bytes], dict[str, torch.Tensor]]:
        family = DualEncoderTraining.of(config)
        model = family.model()
        step = family.training_step(model, in_one_process)
        features = model.query_features(COLOURED.inputs), model.item_features(THINGS)
        step.mining = Mining(lambda: hardest(model, COLOURED, *features, 2), (4, 2), 3)
        sampler = sampler_of(model, batch_size=4, num_items=6, hard_rows=step.mining.at_batch)
        saved: list[bytes] = []
        train(
            step,
            sampler.batch,
            training,
            seed=[0],
            report=lambda done, loss: None,
            checkpoint=checkpoint,
            save=saved.append,
            is_due=lambda: True,
        )
        return saved, step.state_dict()

    torch.set_num_threads(1)
    saved, whole = run()
    _, gone_on = run(saved[4])
    assert (whole["mining.rows"] >= 0).any()
    for name, tensor in whole.items():
        assert torch.equal(tensor, gone_on[name]), name


@pytest.mark.parametrize("field", ["num_hard", "mine_every"])
def test_config_out_of_range(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field} must be at least 1, got 0"):
        HardNegatives(**{field: 0})
