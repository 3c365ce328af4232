"""What a query asks of its shards, driven by hand."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from rails_ray.errors import UnavailableError
from rails_ray.modules.similarities.states import QueryState
from rails_ray.search.rounds import AskShards, Rounds, log_normaliser, search_rounds

QUERY = QueryState(torch.ones(2, 1, 1), None, torch.ones(2))
EXCLUDE = [["a"], []]
SUMS = [np.array([1.0, -2.0]), np.array([0.5, 800.0])]
LOST = TimeoutError("too late")


def planned(normaliser: np.ndarray | None) -> tuple[str, Any]:
    return "policy", None if normaliser is None else normaliser.tolist()


def rounds(*, needs_normaliser: bool) -> Rounds[tuple[str, Any, list[Any]]]:
    return search_rounds(QUERY, EXCLUDE, planned, softmax_factor=2.5 if needs_normaliser else None, scope="scope")


def carried_out(of: Rounds[Any], *sent: Sequence[Any]) -> tuple[list[AskShards], Any]:
    """What was asked, and what it came to."""
    asked = [next(of)]
    for answers in sent[:-1]:
        asked.append(of.send(answers))
    with pytest.raises(StopIteration) as end:
        of.send(sent[-1])
    return asked, end.value.value


def test_one_round() -> None:
    asked, value = carried_out(rounds(needs_normaliser=False), ["left", "right"])
    assert asked == [AskShards("search", (QUERY, None, EXCLUDE))]
    assert value == ("policy", None, ["left", "right"])


def test_two_rounds() -> None:
    asked, value = carried_out(rounds(needs_normaliser=True), SUMS, ["left", "right"])
    normaliser = log_normaliser(SUMS).tolist()
    assert asked == [
        AskShards("log_sum_exp", (QUERY, EXCLUDE, 2.5, "scope")),
        AskShards("search", (QUERY, normaliser, EXCLUDE)),
    ]
    assert value == ("policy", normaliser, ["left", "right"])


def test_a_shard_that_fails_in_the_first_round_is_not_in_the_answer() -> None:
    asked, (_, _, answers) = carried_out(rounds(needs_normaliser=True), [LOST, SUMS[1]], ["left", "right"])
    assert asked[1].arguments[1] == SUMS[1].tolist()
    assert answers == [LOST, "right"]


@pytest.mark.parametrize("needs_normaliser", [False, True])
def test_a_shard_that_fails_in_the_last_round(needs_normaliser: bool) -> None:
    sent = [SUMS, ["left", LOST]] if needs_normaliser else [["left", LOST]]
    _, (_, _, answers) = carried_out(rounds(needs_normaliser=needs_normaliser), *sent)
    assert answers == ["left", LOST]


def test_a_shard_that_refuses() -> None:
    """It is no missing shard: another try would not help."""
    refusal = ValueError("k must be something else")
    for needs_normaliser, before, last in (
        (False, [None], ["left", refusal]),
        (True, [None], [SUMS[0], refusal]),
        (True, [None, SUMS], ["left", refusal]),
    ):
        of = rounds(needs_normaliser=needs_normaliser)
        for answers in before:
            of.send(answers)
        with pytest.raises(ValueError, match="k must be something else"):
            of.send(last)


def test_none_answers() -> None:
    of = rounds(needs_normaliser=True)
    next(of)
    with pytest.raises(UnavailableError, match="a shard must answer, got none of 2: try again"):
        of.send([LOST, LOST])
    _, (_, _, answers) = carried_out(rounds(needs_normaliser=False), [LOST, LOST])
    assert answers == [LOST, LOST], "which is for the request's min_coverage to judge"


def test_the_normaliser_of_the_corpus_is_the_log_sum_exp_of_its_shards() -> None:
    expected = [math.log(math.exp(1) + math.exp(0.5)), 800.0]
    assert log_normaliser(SUMS).tolist() == pytest.approx(expected)
    assert log_normaliser([SUMS[0], LOST]).tolist() == [1.0, -2.0]
