"""Processes of a cluster, found by what they say of themselves: to kill one, or to see that none is left."""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil


def command(*arguments: str, more_environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """The installed command in a process of its own, on a cluster of its own."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return subprocess.Popen(
        [sys.executable, "-m", "rails_ray.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean | {"COLUMNS": "120"} | (more_environment or {}),
    )


def with_token(token: str) -> list[psutil.Process]:
    """The processes in whose environment a cluster's token stands."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if token in Path(f"/proc/{process.pid}/environ").read_text(errors="replace"):
                found.append(process)
    return found


def kill_one(title: str, token: str) -> bool:
    """SIGKILL one process of the cluster whose title holds `title`; whether there was one."""
    for process in with_token(token):
        with contextlib.suppress(psutil.Error):
            if title in " ".join(process.cmdline()):
                process.send_signal(signal.SIGKILL)
                return True
    return False


def kill_owner(title: str, of: str, token: str) -> bool:
    """SIGKILL one process whose title holds `title`, which owns one of those that hold `of`: those are stopped until
    one has died with its owner, so that none can end its work first. They go on after a while also if none has, as
    happened once in CI. Returns whether there was one to kill."""
    owned = [process for process in with_token(token) if of in " ".join(process.cmdline())]
    for process in owned:
        process.suspend()
    try:
        is_killed = kill_one(title, token)
        with contextlib.suppress(AssertionError):
            wait_for(lambda: not is_killed or any(not alive(process) for process in owned), 20)
    finally:
        for process in owned:
            with contextlib.suppress(psutil.Error):
                process.resume()
    return is_killed


def alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def stop_one(title: str, token: str, pause_s: float, is_killed: bool) -> None:
    """SIGSTOP one process of the cluster whose title holds `title`; after a pause let it go on, or SIGKILL it."""
    process = next(process for process in with_token(token) if title in " ".join(process.cmdline()))
    process.suspend()
    time.sleep(pause_s)  # the pause is the fault
    if is_killed:
        process.kill()
    else:
        process.resume()


PATIENCE = 3  # a machine may be so many times slower than the one that the tests were written on


def wait_for(what: Callable[[], bool], timeout_s: float = 90) -> None:
    """Until something is so."""
    deadline = time.monotonic() + PATIENCE * timeout_s
    while not what():
        assert time.monotonic() < deadline, "it must come to be in time"
        time.sleep(0.02)  # a file or a process of another program gives no event to wait for


def killed(arguments: list[str], when: Path) -> None:
    """The command and its whole cluster, killed as soon as a file is there, as when a machine is lost."""
    token = secrets.token_hex(32)
    process = command(*arguments, more_environment={"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token})
    try:
        wait_for(lambda: when.exists() or process.poll() is not None)
        assert process.poll() is None, process.stderr and process.stderr.read()
    finally:
        process.kill()
        process.communicate()
    for left in with_token(token):  # which ends by itself too, but may take a minute
        with contextlib.suppress(psutil.Error):
            left.kill()
    wait_for(lambda: not with_token(token))


def finished(arguments: list[str]) -> str:
    process = command(*arguments)
    out, errors = process.communicate(timeout=PATIENCE * 240)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
    return out


def interrupted(arguments: list[str], when: Path) -> None:
    """The command, interrupted as by Ctrl-C when a file is there; it ends soon, and its cluster with it."""
    token = secrets.token_hex(32)
    process = command(*arguments, more_environment={"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token})
    try:
        wait_for(lambda: when.exists() or process.poll() is not None)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE * 60)
    finally:
        process.kill()
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    wait_for(lambda: not with_token(token))
