"""How long each stage of a search takes, in seconds by its name.

queue     waiting for the requests before it
encode    from the request to the first question to the shards
shards    waiting for the shards: candidates and scores
ranker    waiting for the heavy ranker
merge     from the shards' answers to the response: merge and cut
"""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import TypeVar

from rails_ray.retrieval.rounds import AskShards, Rounds

NAMES = ("queue", "encode", "shards", "ranker", "merge")

Value = TypeVar("Value")
Stages = Mapping[str, float]


def timed(rounds: Rounds[Value], clock: Callable[[], float] = time.perf_counter) -> Rounds[tuple[Value, Stages]]:
    """The same rounds; their value comes with the stages."""
    stages, own, answers = defaultdict[str, float](float), "encode", None
    while True:
        began = clock()
        try:
            step = next(rounds) if answers is None else rounds.send(answers)
        except StopIteration as end:
            stages[own] += clock() - began
            return end.value, dict(stages)
        asked = clock()
        stages[own] += asked - began
        answers = yield step
        if isinstance(step, AskShards):
            own = "merge"
            stages["shards"] += clock() - asked
        else:
            stages["ranker"] += clock() - asked


def as_header(stages: Stages) -> str:
    """The value of `Server-Timing`, which browsers show: milliseconds of each stage."""
    return ", ".join(f"{name};dur={1e3 * stages[name]:.3f}" for name in NAMES if name in stages)
