"""Stay up as long as the cluster does, and end soon after it."""

import os
import threading
import time
from collections.abc import Callable
from typing import NoReturn

import ray

from rails_ray.errors import UnavailableError

ANSWER_S = 45.0  # limit for a busy cluster to answer; after a minute Ray would end the process itself
LOOK_S = 1.0  # between two looks
EXIT_S = 15.0  # limit for the rest to stop: parts of it wait for the cluster; stopping takes seconds


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
        raise UnavailableError(f"the Ray cluster must stay up, got no answer in {timeout_s:g} s: start it again")
    if isinstance(found[0], Exception):
        raise UnavailableError(f"the Ray cluster must stay up, got {found[0]}: start it again")
    if not found[0]:
        raise UnavailableError("the Ray cluster must stay up, got one that has ended on this machine: start it again")


def stay(
    at_each_look: Callable[[], None], tell: Callable[[str], None], exit_code: int, exit_s: float = EXIT_S
) -> NoReturn:
    """Wait until the cluster ends.

    Args:
        at_each_look: called about once a second.
        tell: called with the error's message if the process must be killed.
        exit_code: exit code of the process if stopping the rest takes longer than `exit_s`.

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
