"""Processes of `peers`: each is started and stopped by its own handle, and measured with all below it."""

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from signal import SIGTERM, Signals
from typing import TypeVar

import psutil

from jobs.benches.peers_setting import Setting

START_S, STOP_S = 600, 60  # until the first answer; to end after the signal
LOOK_S = 0.02  # between two attempts

Value = TypeVar("Value")


def child(task: str, peer: str, setting: Setting) -> list[str]:
    """The command of a process of its own that builds for a peer, or searches by it."""
    return [sys.executable, "-m", "jobs.benches.peers_child", task, peer, *setting.words]


def free_port() -> int:
    """A port of this machine that nobody listens at."""
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        port: int = own.getsockname()[1]
        return port


def user() -> str | None:
    """The user for a program that root may not run; None for the user of the bench."""
    return "nobody" if os.geteuid() == 0 else None


@contextmanager
def running(
    command: Sequence[str],
    setting: Setting,
    *,
    stop: Signals = SIGTERM,
    as_user: str | None = None,
    stdout: int | None = None,
) -> Iterator[subprocess.Popen[str]]:
    """A process inside the block; what it says is in the setting's log.

    Args:
        stdout: where its standard output goes, in place of the log.

    Raises:
        RuntimeError: if it ends by itself, and not well, before or while it is stopped.
    """
    with setting.log.open("w") as log:
        own = subprocess.Popen(command, stdout=stdout or log, stderr=log, text=True, user=as_user)
    try:
        yield own
        check(own, setting)
    finally:
        if own.poll() is None:
            own.send_signal(stop)
        try:
            own.communicate(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            own.kill()
            own.communicate()


def check(own: subprocess.Popen[str], setting: Setting) -> None:
    """Raises:
    RuntimeError: if a process has ended with an error.
    """
    if own.poll():
        raise RuntimeError(f"a peer's process must not fail, got exit code {own.returncode}: {last_line(setting)}")


def last_line(setting: Setting) -> str:
    """The last line of the setting's log."""
    lines = [line for line in setting.log.read_text().splitlines() if line.strip()]
    return lines[-1].strip() if lines else "nothing"


def without_folders(text: str) -> str:
    """A text without the folders of this machine."""
    return re.sub(r"/\S*/", "", text)


def wait(command: Sequence[str], setting: Setting) -> None:
    """Run a process to its end.

    Raises:
        RuntimeError: if it fails.
    """
    with running(command, setting) as own:
        own.communicate()


def patient(
    attempt: Callable[[], Value], own: subprocess.Popen[str], setting: Setting, error: type[Exception] = OSError
) -> Value:
    """Try until a server that starts answers; return its answer.

    Args:
        error: what an attempt raises before.

    Raises:
        RuntimeError: if the server ends with an error before.
        Exception: the error of the last attempt, after START_S.
    """
    ends = time.perf_counter() + START_S
    while True:
        try:
            return attempt()
        except error:
            check(own, setting)
            if time.perf_counter() > ends:
                raise
            time.sleep(LOOK_S)  # another program gives no event when it begins to answer


def memory_mb(process: psutil.Process) -> dict[str, float]:
    """Resident memory of a process and of all below it, in MB (2**20 bytes).

    `rss_mb` counts a page once in each process that has it, `pss_mb` once in all processes of the machine.

    Raises:
        psutil.NoSuchProcess: if the process itself has ended.
    """
    known = [process.memory_full_info()]
    for own in process.children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has ended since it was listed
            known.append(own.memory_full_info())
    return {
        "rss_mb": round(sum(own.rss for own in known) / 2**20, 1),
        "pss_mb": round(sum(own.pss for own in known) / 2**20, 1),
    }


def cpu_s() -> float:
    """Seconds of CPU time of this process and of those below it that are still there."""
    seconds = time.process_time()
    for own in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            seconds += sum(own.cpu_times()[:2])
    return seconds
