"""The processes of our own cluster, and their end.

Ray tells its workers to end and does not wait until they have. One that hangs on its way out would stay for ever: Ray
Train's controller does so now and then in Ray 2.60, in its destructor, after its connection has been closed.
"""

from collections.abc import Collection
from contextlib import suppress

import psutil

GRACE_S = 10.0  # for processes that end by themselves


def children() -> set[psutil.Process]:
    """Children of this process, without their own children."""
    return set(psutil.Process().children())


def with_descendants(processes: Collection[psutil.Process]) -> list[psutil.Process]:
    """Those that live, and every process that they started, directly or not."""
    found = []
    for process in processes:
        with suppress(psutil.Error):
            found += [process, *process.children(recursive=True)]
    return found


def end(processes: Collection[psutil.Process]) -> None:
    """Wait until the processes have ended, and kill those that have not after `GRACE_S` seconds.

    The time of its start distinguishes a process from a later one of the same number.
    """
    _, alive = psutil.wait_procs(processes, timeout=GRACE_S)
    for process in alive:
        with suppress(psutil.Error):
            process.kill()
