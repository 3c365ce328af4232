"""Rounds of a search that a test answers."""

from collections.abc import Callable
from typing import Any

from rails_ray.search.rounds import Done, Rounds, next_step


def answered_by(answers: Callable[[Any], list[Any]]) -> Callable[[Rounds[Any]], Any]:
    """Carry out rounds, whose questions to shards and to the heavy ranker a function answers."""

    def carry_out(rounds: Rounds[Any], held: Any = None) -> Any:
        step = next_step(rounds, None)
        while not isinstance(step, Done):
            step = next_step(rounds, answers(step))
        return step.value

    return carry_out
