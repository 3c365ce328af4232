"""Staying up for as long as the cluster does, and ending soon after it."""

import os
import threading
import time
from collections.abc import Callable
from typing import NoReturn

import ray

from rails_ray.errors import UnavailableError

ANSWER_S = 45.0  # that a busy cluster may take to answer; after a minute Ray would end the process by itself
LOOK_S = 1.0  # between two looks
EXIT_S = 15.0  # for what else there is to stop, part of which waits for the cluster; stopping takes seconds


def check(timeout_s: float = ANSWER_S) -> None:
    """Raises:
    UnavailableError: if this machine's part of the cluster has ended, or the cluster does not answer.
    """
    own, found = ray.get_runtime_context().get_node_id(), list[bool | Exception]()

    def ask() -> None:
        try:
            found.append(any(node["Alive"] for node in ray.nodes() if node["NodeID"] == own))
        except Exception as error:
            found.append(error)

    asking = threading.Thread(target=ask, daemon=True)  # may hang for ever
    asking.start()
    asking.join(timeout_s)
    if not found:
        raise UnavailableError(f"the Ray cluster must go on, got no answer from it in {timeout_s:g} s: start it again")
    if isinstance(found[0], Exception):
        raise UnavailableError(f"the Ray cluster must go on, got {found[0]}: start it again")
    if not found[0]:
        raise UnavailableError("the Ray cluster must go on, got one that has ended on this machine: start it again")


def stay(
    at_each_look: Callable[[], None], tell: Callable[[str], None], exit_code: int, exit_s: float = EXIT_S
) -> NoReturn:
    """Does not return while the cluster is up.

    Args:
        at_each_look: called about once a second.
        tell: given the sentence if the process has to be ended.
        exit_code: of the process, if what else there is to stop takes longer than `exit_s`.

    Raises:
        UnavailableError: once the cluster has ended.
    """
    while True:
        try:
            check()
        except UnavailableError as error:
            timer = threading.Timer(exit_s, _end, (tell, str(error), exit_code))
            timer.daemon = True
            timer.start()
            raise
        at_each_look()
        time.sleep(LOOK_S)  # Ray has no event for the end of a cluster


def _end(tell: Callable[[str], None], sentence: str, exit_code: int) -> None:
    tell(sentence)
    os._exit(exit_code)
