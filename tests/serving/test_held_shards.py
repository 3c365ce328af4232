"""Shards of one process: by threads where that gains something."""

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from rails_ray.search.rounds import AskRanker, AskShards, Done, Rounds
from rails_ray.serving.held_shards import IN_TURN_S, HeldShards


def threads_of(took_s: float, num_steps: int) -> list[int]:
    """How many threads each step of some rounds was done by, over three shards whose work takes so long."""
    threads = list[set[int]]()

    def work(number: int) -> int:
        ends = time.thread_time() + took_s
        while time.thread_time() < ends:
            pass
        threads[-1].add(threading.get_ident())
        return number

    def rounds() -> Rounds[int]:
        for step in range(num_steps):
            threads.append(set())
            assert (yield AskShards("work", (step,))) == [step] * 3
        return 7

    shards: list[Any] = [SimpleNamespace(device="cpu", work=work) for _ in range(3)]
    assert HeldShards(shards).advance(rounds()) == Done(7)
    return [len(own) for own in threads]


def test_short_work_is_done_one_shard_after_the_other_once_that_is_known() -> None:
    first, *later = threads_of(0.0, 4)
    assert first > 1
    assert later == [1, 1, 1]


def test_long_work_is_done_at_once() -> None:
    assert min(threads_of(2 * IN_TURN_S, 4)) > 1


def test_it_ends_where_the_ranker_is_asked_and_goes_on_with_its_answer() -> None:
    def rounds() -> Rounds[Any]:
        return [(yield AskShards("work", (1,))), (yield AskRanker([])), (yield AskShards("work", (2,)))]

    one: Any = SimpleNamespace(device="cpu", work=lambda number: number)
    held, begun = HeldShards([one]), rounds()
    assert held.advance(begun) == AskRanker([])
    assert held.advance(begun, ["scores"]) == Done([[1], ["scores"], [2]])


def test_a_shard_that_fails_fails_the_rounds() -> None:
    def work(number: int) -> None:
        raise ValueError(f"no items of {number}")

    def rounds() -> Rounds[Any]:
        return (yield AskShards("work", (1,)))

    shards: list[Any] = [SimpleNamespace(device="cpu", work=work) for _ in range(2)]
    held = HeldShards(shards)
    for _ in range(2):  # by threads, then without
        with pytest.raises(ValueError, match="no items of 1"):
            held.advance(rounds())
