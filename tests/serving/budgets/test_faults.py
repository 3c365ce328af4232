"""Rankers that fail and shards that are lost, within a budget."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rails_ray.errors import UnavailableError
from rails_ray.reranking.rankers.calling import answers_of
from rails_ray.search.rounds import AskShards
from support.budgets import QUERIES, opened
from support.ranked import NUM_SUPPORTS, by_pairs
from support.rounds import answered_by

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("ray_cluster")]


def failing(when: Callable[[str, int], bool], how: Callable[[int], Any]) -> Callable[..., Any]:
    """A ranker that does wrong for some calls: of a query and a number of items."""

    def rank(query: Any, candidates: Any) -> Any:
        if when(query["text"], len(candidates)):
            return how(len(candidates))
        return by_pairs(query, candidates)

    return rank


def raising(num: int) -> Any:
    raise RuntimeError("out of memory")


WRONGS = {
    "raises": (raising, "got RuntimeError: out of memory"),
    "NaN": (lambda num: [float("nan")] * num, "must answer with finite scores, got nan"),
    "too few": (lambda num: [1.0] * (num - 1), "one for each item, got an answer of shape"),
}


@pytest.mark.parametrize(("how", "told"), WRONGS.values(), ids=WRONGS)
def test_supports_that_fail_fail_their_query_alone(root: Path, how: Callable[[int], Any], told: str) -> None:
    sound, _ = opened(root)
    expected = sound.search(["red hat", "green bo"], k=5, budget={"calls": 30}).results
    version, _ = opened(root, failing(lambda text, num: text == "blue", how))
    answer = version.search(["red hat", "blue", "green bo"], k=5, budget={"calls": 30})
    assert [answer.results[0], answer.results[2]] == expected
    broken = answer.results[1]
    assert (broken.items, broken.num_kept, answer.is_exact) == ([], 0, False)
    assert broken.error is not None
    assert broken.error.startswith("queries[1] must have its supports scored, got: the heavy ranker must")
    assert told in broken.error
    with pytest.raises(UnavailableError, match=r"queries\[0\] must have its supports scored, got: the heavy ranker"):
        version.search(["blue"], k=5)


@pytest.mark.parametrize(("how", "told"), WRONGS.values(), ids=WRONGS)
def test_a_reranking_that_fails_leaves_the_order_of_the_index(root: Path, how: Callable[[int], Any], told: str) -> None:
    plain, _ = opened(root)
    expected = plain.search(QUERIES, k=5).results
    version, _ = opened(root, failing(lambda text, num: text == "blue" and num > NUM_SUPPORTS, how))
    results = version.search(QUERIES, k=5, budget={"calls": 30}).results
    assert [result.budget.is_reranked for result in results if result.budget] == [True, False, True]
    assert results[1].items == expected[1].items
    assert results[1].budget is not None
    assert results[1].budget.reason is not None
    assert told in results[1].budget.reason
    assert results[1].budget.calls_used == NUM_SUPPORTS


@pytest.mark.parametrize("text", ["red hat", "blue", "gold", "plum ring"])
def test_supports_that_were_found_do_not_make_a_failed_reranking_one(root: Path, text: str) -> None:
    plain, _ = opened(root)
    [expected] = plain.search([text], k=1).results
    version, _ = opened(root, failing(lambda text, num: num > NUM_SUPPORTS, raising))
    [result] = version.search([text], k=1, budget={"calls": 50}).results
    assert (result.items, result.scores) == (expected.items, expected.scores)
    assert result.budget is not None
    assert not result.budget.is_reranked


def test_explaining_asks_the_ranker_too(root: Path) -> None:
    version, ranker = opened(root)
    found = version.search(["red hat"], k=2).results[0]
    explained = version.explain("red hat", found.items)
    assert [item.score for item in explained.items] == pytest.approx(found.scores, abs=1e-5)
    assert ranker.num_pairs == NUM_SUPPORTS  # kept from the search
    broken, _ = opened(root, failing(lambda text, num: True, raising))
    with pytest.raises(UnavailableError, match="must have its supports scored, got: the heavy ranker must score"):
        broken.explain("red hat", found.items)


@pytest.mark.parametrize("rounds", [1, 2])
@pytest.mark.parametrize("fails_at", [1, 2])
def test_a_shard_that_is_lost_is_told_and_what_is_found_is_ranked(
    root: Path, monkeypatch: pytest.MonkeyPatch, rounds: int, fails_at: int
) -> None:
    """From the first search on, or in the round after it."""
    version, _ = opened(root)
    searches = [0]
    search = version.shards[1].search

    def lost(*arguments: Any) -> Any:
        searches[0] += 1
        if searches[0] >= fails_at:
            raise UnavailableError("gone")
        return search(*arguments)

    def answers(step: Any) -> list[Any]:
        if isinstance(step, AskShards):
            return [answer_of(getattr(shard, step.method), step.arguments) for shard in version.shards]
        return answers_of(by_pairs, step.calls, step.within_s)

    def answer_of(method: Callable[..., Any], arguments: Any) -> Any:
        try:
            return method(*arguments)
        except UnavailableError as error:
            return error

    monkeypatch.setattr(version.shards[1], "search", lost)
    monkeypatch.setattr(version, "carry_out", answered_by(answers))
    asked = {"k": 4, "budget": {"calls": 30, "rounds": rounds}, "min_coverage": 0.4}
    answer = version.search(["red hat"], **asked)
    [result] = answer.results
    assert len(result.items) == 4
    assert result.budget is not None
    if fails_at == 1:
        assert answer.coverage.shards_answered == 1
        assert result.budget.is_reranked
        assert not result.certificate.is_exact
    elif rounds == 2:
        assert result.budget.reason == "a shard did not answer the search of a later round"
    else:
        assert result.budget.reason is None
