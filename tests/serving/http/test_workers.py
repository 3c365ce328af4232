"""Workers of a server: they answer as one process does, and one that ends is replaced."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest

from rails_ray import local
from rails_ray.cli.main import EXIT_BAD_ARGUMENT, EXIT_INTERRUPTED, main
from rails_ray.errors import UnavailableError
from rails_ray.serving.http import workers
from rails_ray.serving.http.workers import Workers
from rails_ray.storage import versions
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.leases import readers
from support import processes
from support.examples import publish_here
from support.ports import free_port

BODY = {"queries": [{"text": "red"}, {"text": "blue hat"}], "k": 3}


@contextmanager
def served_by_two(root: Path, *options: str) -> Iterator[tuple[str, psutil.Process, subprocess.Popen[str]]]:
    """Address, process and pipe of a server with two workers."""
    port, workers = free_port(), ("serve", "--single", "--workers", "2", "--allow-anonymous")
    process = processes.command(*workers, "--storage", str(root), "--port", str(port), *options)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(f"serving at http://127.0.0.1:{port} ")
        yield f"http://127.0.0.1:{port}", psutil.Process(process.pid), process
    finally:
        process.kill()
        process.communicate()


def answer_of(client: httpx.Client) -> object:
    found = client.post("/v1/search", json=BODY)
    found.raise_for_status()
    return found.json()


@pytest.mark.long
def test_a_killed_worker_is_replaced_while_the_other_answers_and_all_end_together(tmp_path: Path) -> None:
    publish_here(tmp_path)
    expected = local.open(str(tmp_path)).search(BODY["queries"], k=3).model_dump()
    with served_by_two(tmp_path) as (url, server, process):
        processes.wait_for(lambda: len(server.children()) == 2)
        first = {own.pid for own in server.children()}
        for _ in range(20):  # a connection each, so that both answer
            with httpx.Client(base_url=url) as client:
                assert answer_of(client) == expected
        counted = [line for line in httpx.get(f"{url}/metrics").text.splitlines() if line.startswith("rails_ray_quer")]
        assert sum(float(line.rpartition(" ")[2]) for line in counted) == 40

        os.kill(min(first), signal.SIGKILL)
        for _ in range(10):
            with httpx.Client(base_url=url, transport=httpx.HTTPTransport(retries=2)) as client:
                assert answer_of(client) == expected
        processes.wait_for(lambda: len(server.children()) == 2 and {own.pid for own in server.children()} != first)
        with httpx.Client(base_url=url) as client:
            assert answer_of(client) == expected
        every = [*first, *(own.pid for own in server.children())]
        process.send_signal(signal.SIGTERM)
        assert process.wait(30 * processes.PATIENCE) == EXIT_INTERRUPTED
        assert process.stderr is not None
        assert (
            process.stderr.read() == f"rails-ray: worker {min(first)} has ended and is replaced\nrails-ray: stopped\n"
        )
        assert not any(psutil.pid_exists(pid) for pid in every)


@pytest.mark.long
def test_a_worker_that_is_killed_while_another_version_takes_over(tmp_path: Path) -> None:
    """Its heir begins with what is current, though it is forked from a process that holds the first version."""
    rows = np.random.default_rng(0).standard_normal((20_000, 64)).astype(np.float32)
    for version in ("v1", "v2"):
        local.build(rows if version == "v1" else -rows, folder=str(tmp_path), version=version)
    storage = Storage(str(tmp_path))
    versions.rollback(storage, "v1")
    body = {"queries": [{"embedding": rows[0].tolist()}], "k": 3}
    expected = {name: local.open(str(tmp_path), name).search(**body).results[0].items for name in ("v1", "v2")}
    with served_by_two(tmp_path, "--follow", "--follow-s", "0.2") as (url, server, _):

        def version_of_answer() -> str:
            with httpx.Client(base_url=url, transport=httpx.HTTPTransport(retries=3), timeout=30) as client:
                answer = client.post("/v1/search", json=body).json()
                assert answer["results"][0]["items"] == expected[answer["version"]]
                return str(answer["version"])

        processes.wait_for(lambda: len(server.children()) == 2)
        first = {own.pid for own in server.children()}
        assert version_of_answer() == "v1"
        versions.rollback(storage, "v2")
        os.kill(min(first), signal.SIGKILL)
        processes.wait_for(lambda: version_of_answer() == "v2")
        processes.wait_for(lambda: len(server.children()) == 2 and {own.pid for own in server.children()} != first)
        processes.wait_for(lambda: {version_of_answer() for _ in range(10)} == {"v2"})
        processes.wait_for(lambda: readers(storage, time.time())[0]["v2"] >= 2)  # each worker has a lease of its own
        assert readers(storage, time.time())[0]["v1"] <= 1, "that of the one that died"


@pytest.mark.long
def test_workers_end_when_their_server_is_killed(tmp_path: Path) -> None:
    publish_here(tmp_path)
    with served_by_two(tmp_path) as (_, server, process):
        processes.wait_for(lambda: len(server.children()) == 2)
        ours = server.children()
        process.kill()
        process.wait()
        processes.wait_for(lambda: not any(own.is_running() and own.status() != psutil.STATUS_ZOMBIE for own in ours))


def test_workers_that_cannot_start_end_the_server() -> None:
    said = list[str]()

    def fails(is_stopped: Callable[[], bool]) -> None:
        os._exit(3)

    own = Workers(fails, 1, said.append)
    own.start()

    def look_again() -> bool:
        own.look()
        return False

    with pytest.raises(UnavailableError, match=r"workers must stay, got 3 that ended within 5 s"):
        processes.wait_for(look_again)
    own.stop()
    assert len(said) == 2
    assert own.pids == []


def test_a_worker_that_does_not_stop_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "STOP_S", 0.3)

    def stays(is_stopped: Callable[[], bool]) -> None:
        while True:
            signal.pause()

    own = Workers(stays, 2, lambda line: None)
    own.start()
    pids = own.pids
    own.stop()
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_a_failure_of_a_worker_is_shown() -> None:
    code = (
        "import os\n"
        "from rails_ray.serving.http.workers import Workers\n"
        "def fails(is_stopped): raise RuntimeError('no place to listen')\n"
        "own = Workers(fails, 1, print)\n"
        "own.start()\n"
        "os.waitid(os.P_PID, own.pids[0], os.WEXITED | os.WNOWAIT)\n"
        "own.stop()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "RuntimeError: no place to listen" in done.stderr


def test_workers_need_single(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["serve", "--workers", "2", "--allow-anonymous", "--storage", str(tmp_path)]) == EXIT_BAD_ARGUMENT
    assert "--workers must be given with --single, got 2 alone" in capsys.readouterr().err


def test_the_former_name_of_the_option_still_works(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["serve", "--lite", "--storage", str(tmp_path)]) == EXIT_BAD_ARGUMENT
    assert "give --keys-file, or --allow-anonymous" in capsys.readouterr().err
