"""How long each stage of a search takes, in seconds by its name.

queue        waiting for the requests before it
encode       from the request to the first question to the shards
shards       waiting for the shards, beside their searches: the way there and back, and normalisers
candidates   finding candidates in the shard that searches longest
score        scoring there
ranker       waiting for the heavy ranker
merge        from the shards' answers to the response, beside the cut
cut          cutting the lists, and what they prove
"""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from rails_ray.search.rounds import AskShards, Rounds
from rails_ray.serving.shard_messages import ShardResponse
from rails_ray.stopwatch import noted

NAMES = ("queue", "encode", "shards", "candidates", "score", "ranker", "merge", "cut")

Value = TypeVar("Value")
Stages = Mapping[str, float]


def timed(rounds: Rounds[Value], clock: Callable[[], float] = time.perf_counter) -> Rounds[tuple[Value, Stages]]:
    """Time the rounds; their value comes with the stages."""
    stages, own = defaultdict[str, float](float), "encode"
    answers: Sequence[Any] | None = None
    while True:
        began = clock()
        with noted() as parts:
            try:
                step = next(rounds) if answers is None else rounds.send(answers)
            except StopIteration as end:
                step, value = None, end.value
        waiting_since = clock()
        stages[own] += waiting_since - began - _total(parts)
        _add(stages, parts)
        if step is None:
            return value, dict(stages)
        answers = yield step
        waited = clock() - waiting_since
        if isinstance(step, AskShards):
            own = "merge"
            slowest = max(
                (answer.seconds for answer in answers if isinstance(answer, ShardResponse)), key=_total, default={}
            )
            _add(stages, slowest)
            stages["shards"] += max(waited - _total(slowest), 0.0)
        else:
            stages["ranker"] += waited


def _add(stages: defaultdict[str, float], seconds: Stages) -> None:
    for name, own in seconds.items():
        stages[name] += own


def _total(seconds: Stages) -> float:
    return sum(seconds.values())


def as_header(stages: Stages) -> str:
    """The value of `Server-Timing`, which browsers show: milliseconds of each stage."""
    return ", ".join(f"{name};dur={1e3 * stages[name]:.3f}" for name in NAMES if name in stages)
