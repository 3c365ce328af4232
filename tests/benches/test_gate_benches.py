"""The benches of gates: how they prepare histories, and how they search weights and draw trials."""

import numpy as np
import pytest

from jobs.benches.text_gates import WAYS, drawn
from jobs.benches.vectors_gated import LOW, searched
from jobs.benches.vectors_gated_histories import mean_of_newest, together_vectors, with_answers, without_newest
from rails_ray.data.dataset import DataSet
from rails_ray.data.queries import ItemLists, Queries, Visits
from rails_ray.storage.ids import ItemIds


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
