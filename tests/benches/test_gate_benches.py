"""The benches of gates: how they prepare histories, search weights, draw trials and bound scores."""

import itertools
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from jobs.benches import bounds, text_gates
from jobs.benches.quality_models import Cell, data_of
from jobs.benches.record import Record
from jobs.benches.text_gates import WAYS, Arguments, Distillation, GateDecay, Task, begin_as_parts, drawn
from jobs.benches.vectors_gated import LOW, searched
from jobs.benches.vectors_gated_histories import mean_of_newest, together_vectors, with_answers, without_newest
from rails_ray.data.dataset import DataSet
from rails_ray.data.queries import ItemLists, Queries, Visits
from rails_ray.families.dual_encoder.train import DualEncoderTraining
from rails_ray.storage.ids import ItemIds
from support.data_folders import write_text_data


def queries(histories: list[list[int]], answers: list[int]) -> Queries:
    seen = ItemLists.of(histories)
    return Queries(Visits.of(histories), ItemLists.of([[answer] for answer in answers]), seen)


def test_histories_end_before_what_the_gate_is_trained_on() -> None:
    own = without_newest(queries([[4, 5, 6], [7], [8, 9]], [1, 2, 3]))
    assert [list(history) for history in own.inputs] == [[4, 5], [8]]
    assert [list(answer) for answer in own.relevant] == [[6], [9]]
    assert [list(line) for line in with_answers(own)] == [[4, 5, 6], [8, 9]]


def test_items_of_the_same_histories_are_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.benches.vectors_gated_histories.WIDTH", 2)
    histories = [np.array(own) for own in ([0, 1, 2], [2, 1, 0], [3, 4, 5], [5, 3, 4]) * 3]
    found = together_vectors(histories, 6)
    unit = found / np.linalg.norm(found, axis=1, keepdims=True)
    cosines = unit @ unit.T
    assert cosines[:3, :3].min() > 0.9
    assert cosines[:3, 3:].max() < 0.1


def test_a_history_is_the_mean_direction_of_its_newest_items(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.benches.vectors_gated_histories.NEWEST", 2)
    items = np.array([[9, 0], [0, 3], [2, 0], [0, 0]], np.float32)
    found = mean_of_newest(Visits.of([[0, 0, 1], [2], [1, 3]]), items)
    assert found.tolist() == [[0.5, 0.5], [1, 0], [0, 0.5]]


def test_the_best_fixed_weights_are_found_on_validation_queries() -> None:
    """The first vectors' cosines are noise, the second ones' know the answer, the third ones' its opposite."""
    rng = np.random.default_rng(0)
    answers = rng.integers(0, 50, 200)
    cosines = rng.uniform(-1, 1, (3, 200, 50)).astype(np.float32)
    cosines[1, np.arange(200), answers] = 0.9
    cosines[2, np.arange(200), answers] = -0.9
    cosines[:, :, 7] = np.where(answers == 7, cosines[:, :, 7], -LOW)  # what no other answer may hold
    read = DataSet(ItemIds(range(50)), np.arange(50), {"valid": queries([[0]] * 200, answers.tolist())})
    weights = searched(cosines, np.full(3, 1 / 3), read)
    assert weights.sum() == pytest.approx(1)
    assert weights[1] > 0.8


def test_ways_have_the_same_trials_but_for_what_is_their_own() -> None:
    plain = [drawn(WAYS["mixture"], number) for number in range(4)]
    assert len({own["temperature"] for own in plain}) == 4
    for way in WAYS.values():
        found = [drawn(way, number) for number in range(4)]
        assert [{**own, **other} for own, other in zip(found, plain, strict=True)] == found
        if way.tries is not None:
            assert {own[way.tries[0]] for own in found} == set(way.tries[1])


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Task:
    """A small text of its own in the place of SciFact."""
    write_text_data(tmp_path / "scifact")
    monkeypatch.setattr("jobs.benches.record.RESULTS", tmp_path / "results")
    monkeypatch.setattr(text_gates, "EPOCHS", {"scifact": 1.0})
    monkeypatch.setattr(text_gates, "BATCHES", {"scifact": 16})
    arguments = Arguments(data=tmp_path, state=tmp_path / "state", sets=("scifact",), seeds=(0,), trials=1)
    read = data_of(Cell("scifact", "towers", "mol"), tmp_path, arguments.state, is_final=False)
    return Task("scifact", "towers", "mixture", arguments, read)


VALUES = {"temperature": 0.05, "learning_rate": 1e-3}


def test_the_decay_of_gates_is_the_sum_of_their_squares(task: Task) -> None:
    model = DualEncoderTraining.of(task.config(VALUES, 1.0)).model()
    gates = (model.query_components.gate, model.item_components.gate, model.similarity)
    numbers = [number for gate in gates for own in gate.parameters() for number in own.flatten().tolist()]
    decayed = GateDecay(model, 0.5)
    compared: Any = None
    assert float(decayed(compared).detach()) == pytest.approx(0.5 * sum(number**2 for number in numbers), rel=1e-4)


def test_distillation_is_the_distance_of_two_distributions(task: Task) -> None:
    config = task.config(VALUES, 1.0)
    torch.manual_seed(0)
    model, teacher = (DualEncoderTraining.of(config).model().eval() for _ in range(2))
    for own in teacher.parameters():
        own.requires_grad_(False).mul_(1.1)
    inputs = task.read.queries["train"].head(5).inputs
    features = [model.query_features(inputs), model.item_features(task.read.item_inputs)]
    batch = SimpleNamespace(queries=features[0], items=features[1])
    compared: Any = SimpleNamespace(
        batch=batch, query=model.encode_queries(features[0]), items=model.encode_items(features[1])
    )
    found = Distillation(model, teacher, 2.0, 0.05)(compared)
    with torch.no_grad():
        own, taught = (
            one.similarity.training_scores(one.encode_queries(features[0]), one.encode_items(features[1])) / 0.05
            for one in (model, teacher)
        )
    expected = 0.0
    for line, other in zip(own.double().softmax(dim=1).tolist(), taught.double().softmax(dim=1).tolist(), strict=True):
        expected += sum(p * math.log(p / q) for q, p in zip(line, other, strict=True)) / 5
    assert float(found.detach()) == pytest.approx(2.0 * expected, rel=1e-3, abs=1e-6)
    assert float(Distillation(model, model, 2.0, 0.05)(compared).detach()) == pytest.approx(0.0, abs=1e-5)


@torch.no_grad()
def test_components_begin_as_parts_of_a_turned_vector() -> None:
    """So the sum of the component logits, each times its lengths, is the inner product of the vectors."""
    project = [torch.nn.Linear(8, 8) for _ in range(2)]
    model: Any = SimpleNamespace(
        query_components=SimpleNamespace(project=project[0]), item_components=SimpleNamespace(project=project[1])
    )
    begin_as_parts(model)
    query, item = torch.randn(2, 8, generator=torch.manual_seed(1))
    assert float(project[0](query) @ project[1](item)) == pytest.approx(float(query @ item), abs=1e-5)
    model.item_components.project = torch.nn.Linear(8, 12)
    with pytest.raises(ValueError, match="components must have at most the 8 numbers of a vector together, got 12"):
        begin_as_parts(model)


def test_a_way_without_a_trial_is_refused_in_a_sentence(task: Task) -> None:
    with pytest.raises(ValueError, match="--ways must have mixture among them until it has a trial on scifact, got"):
        text_gates.best_of(task)
    record = Record(text_gates.NAME)
    for number, mrr in enumerate((0.2, 0.4, 0.3)):
        record.row(kind="trial", **task.facts, number=number, values={**VALUES, "temperature": mrr}, mrr=mrr)
    assert text_gates.best_of(task)["temperature"] == 0.4
    assert text_gates.place_of(task, 0) != text_gates.place_of(task, 1)
    before = text_gates.place_of(task, 0)
    record.row(kind="trial", **task.facts, number=3, values=VALUES, mrr=0.9)
    assert text_gates.place_of(task, 0) != before  # other settings, another training


def test_a_way_is_compared_with_the_dot_product_over_the_seeds_that_both_have(task: Task) -> None:
    assert text_gates.compared(task) is None
    wide = replace(task, way="wide")
    for own in (task, wide):
        Record(text_gates.NAME).row(kind="trial", **own.facts, number=0, values=VALUES, mrr=0.5)
    found = np.random.default_rng(0).random(200)
    for own, ndcg in ((task, found + 0.1), (wide, found)):
        text_gates.place_of(own, 0).parent.mkdir(parents=True, exist_ok=True)
        np.save(text_gates.place_of(own, 0), ndcg)
    row = text_gates.compared(task)
    assert row is not None
    assert row["seeds"] == 1
    assert row["difference"] == pytest.approx(0.1)
    assert row["p_gain"] < 0.01 < 0.9 < row["p_loss"]
    assert text_gates.compared(wide) is None


@pytest.mark.parametrize("width", [0.5, 300.0])
def test_a_bound_is_the_best_of_all_ways_to_take_each_gate_at_an_end(width: float) -> None:
    """Also where exp of a gate would overflow."""
    generator = torch.Generator().manual_seed(0)
    cosines, offsets = (torch.randn(2, 5, 4, generator=generator) for _ in range(2))
    low, high = torch.full((4,), -width), torch.full((4,), width)
    ends = torch.stack(bounds.activated(F.silu, offsets + low, offsets + high)).double()
    tried = []
    for which in itertools.product((0, 1), repeat=4):
        gates = torch.stack([ends[end, ..., place] for place, end in enumerate(which)], dim=-1)
        tried.append((gates.softmax(dim=-1) * cosines).sum(dim=-1))
    found = bounds.bound(cosines, offsets, low, high)
    torch.testing.assert_close(found.double(), torch.stack(tried).amax(dim=0), rtol=1e-5, atol=1e-6)
