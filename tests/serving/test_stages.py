"""How long each stage takes, by a clock that the rounds themselves move."""

from time import sleep

import numpy as np
import pytest
import torch

from rails_ray.search.rounds import AskRanker, AskShards, Rounds
from rails_ray.search.spec import SearchResult
from rails_ray.serving.shard_messages import ShardResponse
from rails_ray.serving.stages import as_header, timed
from rails_ray.stopwatch import part

NONE = torch.zeros(0)
NOTHING = SearchResult(torch.zeros(0, 1), torch.zeros(0, 1, dtype=torch.int64), NONE, NONE.bool(), NONE.long(), [])


def test_each_stage_has_its_time() -> None:
    now = [0.0]

    def pass_by(seconds: float) -> None:
        now[0] += seconds

    lists = [
        ShardResponse(NOTHING, [], None, np.zeros(0, np.int64), seconds={"candidates": candidates, "score": score})
        for candidates, score in ((1.0, 9.0), (5.0, 3.0))
    ]

    def rounds() -> Rounds[str]:
        pass_by(1)
        assert (yield AskShards("log_sum_exp", ())) == ["first"]
        pass_by(2)
        assert (yield AskShards("search", ())) == [*lists, "lost"]
        pass_by(4)
        yield AskRanker([])
        pass_by(8)
        return "found"

    driven = timed(rounds(), lambda: now[0])
    next(driven)
    pass_by(16)
    driven.send(["first"])
    pass_by(32)
    driven.send([*lists, "lost"])
    pass_by(64)
    with pytest.raises(StopIteration) as end:
        driven.send(["third"])
    value, stages = end.value.value
    assert value == "found"
    assert stages == {"encode": 1, "shards": 38, "candidates": 1, "score": 9, "ranker": 64, "merge": 14}
    assert as_header({"queue": 0.5, **stages}) == (
        "queue;dur=500.000, encode;dur=1000.000, shards;dur=38000.000, candidates;dur=1000.000, score;dur=9000.000, "
        "ranker;dur=64000.000, merge;dur=14000.000"
    )


def test_a_part_of_a_step_is_a_stage_of_its_own() -> None:
    now = iter([0.0, 10.0, 10.0, 10.0, 30.0])

    def rounds() -> Rounds[None]:
        yield AskShards("search", ())
        with part("cut"):
            sleep(0.01)

    driven = timed(rounds(), lambda: next(now))
    next(driven)
    with pytest.raises(StopIteration) as end:
        driven.send([])
    _, stages = end.value.value
    assert stages["cut"] >= 0.01
    assert stages["merge"] + stages["cut"] == 20.0


def test_a_ranker_that_is_asked_first_is_no_part_of_encoding() -> None:
    now = iter([0.0, 1.0, 5.0, 5.0, 7.0])

    def rounds() -> Rounds[None]:
        yield AskRanker([])

    driven = timed(rounds(), lambda: next(now))
    next(driven)
    with pytest.raises(StopIteration) as end:
        driven.send([])
    assert end.value.value == (None, {"encode": 3.0, "ranker": 4.0})
