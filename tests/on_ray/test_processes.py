"""What a cluster leaves running: nothing."""

import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from rails_ray.on_ray import processes

STAYS = "import signal; print(flush=True); signal.pause()"
IGNORES = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + STAYS
ENDS = "import sys; print(flush=True); sys.stdin.read(); print('ended')"  # when its input does
HAS_A_CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {STAYS!r}])"

# The task leaves a process behind of which Ray knows nothing, as of a worker that has closed its connection.
A_TASK_LEAVES_A_PROCESS = f"""
import subprocess, sys
import psutil
import ray
from rails_ray.on_ray import processes
from rails_ray.on_ray.cluster import cluster

@ray.remote(num_cpus=0)
def leave():
    return subprocess.Popen([sys.executable, "-c", {IGNORES!r}], stdout=subprocess.DEVNULL).pid

processes.GRACE_S = 0.5
own = subprocess.Popen([sys.executable, "-c", {STAYS!r}], stdout=subprocess.DEVNULL)
with cluster():
    other = subprocess.Popen([sys.executable, "-c", {STAYS!r}], stdout=subprocess.DEVNULL)
    left = ray.get(leave.remote())
    started = processes.with_descendants(processes.children())
    assert left in [process.pid for process in started]
psutil.wait_procs([process for process in started if process.pid not in (own.pid, other.pid)], timeout=10)
lives = {{process.pid for process in started if process.is_running()}}
assert lives == {{own.pid, other.pid}}, lives
own.kill()
other.kill()
"""


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes to end after the test."""
    found: list[subprocess.Popen[bytes]] = []
    yield found
    for process in found:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            stream.close()


def start(started: list[subprocess.Popen[bytes]], program: str) -> psutil.Process:
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    started.append(process)
    assert process.stdout is not None
    process.stdout.readline()  # the program's own first line: it runs
    return psutil.Process(process.pid)


def test_a_process_that_does_not_end_is_killed(
    started: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = processes.children()
    stubborn, parent = start(started, IGNORES), start(started, HAS_A_CHILD)
    assert processes.children() - before == {stubborn, parent}
    [child] = parent.children()
    family = processes.with_descendants([stubborn, parent])
    assert family == [stubborn, parent, child]
    stubborn.terminate()
    monkeypatch.setattr(processes, "GRACE_S", 0.1)
    processes.end(family)
    psutil.wait_procs(family, timeout=10)
    assert [process.pid for process in family if process.is_running() and process.status() != "zombie"] == []
    processes.end(family)  # which have ended
    assert processes.with_descendants(family) == []


def test_a_process_that_ends_by_itself_is_waited_for(started: list[subprocess.Popen[bytes]]) -> None:
    process = start(started, ENDS)
    assert started[0].stdin is not None
    assert started[0].stdout is not None
    started[0].stdin.close()
    processes.end([process])
    assert started[0].stdout.read() == b"ended\n"  # not by a signal


@pytest.mark.long
def test_a_cluster_leaves_no_process_of_its_own_and_all_others() -> None:
    done = subprocess.run([sys.executable, "-c", A_TASK_LEAVES_A_PROCESS], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-2000:]
