"""Several processes that answer at one port, forked from one that has loaded the version, whose memory they share.

A thread that ran before the fork would be missing after it, and OpenMP would wait for it for ever: so the parent calls
`single_threaded` before it loads anything. Each worker then has its share of the cores.
"""

import gc
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress

from rails_ray.errors import UnavailableError

LOOK_S = 0.2  # between two looks at the workers
SOON_S = 5.0  # a worker that lives no longer has failed at its start
MOST_FAILED = 3  # in a row
STOP_S = 12.0  # for workers to end; then they are killed


def single_threaded() -> None:
    """Let torch, FAISS and Arrow use one thread in this process and those forked from it.

    Raises:
        UnavailableError: where processes cannot be forked.
    """
    if not hasattr(os, "fork"):
        raise UnavailableError("--workers must be 1 where a process cannot be forked, as on Windows")
    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    import pyarrow as pa
    import torch

    torch.set_num_threads(1)
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)


def _use_threads(num: int) -> None:
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(num)
    if "faiss" in sys.modules:
        sys.modules["faiss"].omp_set_num_threads(num)


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket at which all workers accept connections."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind((host, port))
    listening.listen(2048)
    listening.set_inheritable(True)
    return listening


class Workers:
    """Processes that do the same until they are stopped; one that ends is replaced.

    Args:
        work: what each does; it returns when `is_stopped`, its argument, says so.
        num: how many.
        tell: called with a sentence about each worker that is replaced.
    """

    def __init__(self, work: Callable[[Callable[[], bool]], None], num: int, tell: Callable[[str], None]) -> None:
        self._work, self._num, self._tell = work, num, tell
        self._began = dict[int, float]()  # by process
        self._num_failed = 0

    @property
    def pids(self) -> list[int]:
        """The processes."""
        return list(self._began)

    def start(self) -> None:
        """Fork them. What lies in memory now is theirs too, without a copy."""
        gc.collect()
        gc.freeze()  # or the collector would write to, and so copy, each page of it
        for _ in range(self._num):
            self._fork()

    def look(self) -> None:
        """Replace workers that have ended.

        Raises:
            UnavailableError: if several in a row ended soon after their start.
        """
        for pid in self.pids:
            with suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0] == 0:
                    continue
            is_soon = time.monotonic() - self._began.pop(pid) < SOON_S
            self._num_failed = self._num_failed + 1 if is_soon else 0
            if self._num_failed >= MOST_FAILED:
                raise UnavailableError(f"workers must stay, got {MOST_FAILED} that ended within {SOON_S:g} s")
            self._tell(f"worker {pid} has ended and is replaced")
            self._fork()

    def stop(self) -> None:
        """End them; those that do not end in time are killed."""
        for pid in self.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        ends = time.monotonic() + STOP_S
        while self._began and time.monotonic() < ends:
            self._forget_ended()
            time.sleep(0.02)  # a wait for several processes has no time limit
        for pid in self.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
        self._began.clear()

    def _forget_ended(self) -> None:
        for pid in self.pids:
            with suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0] == 0:
                    continue
            del self._began[pid]

    def _fork(self) -> None:
        parent = os.getpid()
        pid = os.fork()
        if pid:
            self._began[pid] = time.monotonic()
            return
        status = 1
        try:
            _use_threads(max((os.cpu_count() or 1) // self._num, 1))
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group: the parent decides
            stopped = threading.Event()
            signal.signal(signal.SIGTERM, lambda number, frame: stopped.set())
            self._work(lambda: stopped.is_set() or os.getppid() != parent)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)  # nothing of the parent's is to be ended here
