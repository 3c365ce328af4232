"""`rails-ray serve --single` as a process: what it says, whom it lets in, how it ends; and what it refuses."""

import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest

from rails_ray.cli.main import EXIT_INTERRUPTED, main
from rails_ray.serving import local
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.leases import readers
from rails_ray.storage.versions import listed
from support import processes
from support.examples import publish_here
from support.ports import free_port
from support.processes import wait_for

KEY = "a-key-of-the-test-1"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("single")
    publish_here(folder)
    return folder


@pytest.mark.parametrize("end", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGTERM])
def test_it_serves_until_it_is_stopped(root: Path, tmp_path: Path, end: signal.Signals) -> None:
    keys, port = tmp_path / "keys", free_port()
    keys.write_text(f"{KEY}\n")
    process = processes.command(
        "serve", "--single", "--storage", str(root), "--keys-file", str(keys), "--port", str(port)
    )
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        assert said == (
            f"serving at http://127.0.0.1:{port} to holders of a key in {keys} until Ctrl-C; API: "
            f"http://127.0.0.1:{port}/openapi.json\n"
        )
        url, body = f"http://127.0.0.1:{port}/v1/search", {"queries": [{"text": "red"}], "cutoff": {"top_k": 3}}
        assert httpx.post(url, json=body).status_code == 401
        answer = httpx.post(url, json=body, headers={"authorization": f"Bearer {KEY}"})
        assert len(answer.json()["results"][0]["items"]) == 3
        [version] = [own.version for own in listed(Storage(str(root)))]
        assert readers(Storage(str(root)), time.time()) == ({version: 1}, [])
        process.send_signal(end)
        assert process.wait(processes.PATIENCE * 30) == EXIT_INTERRUPTED
        assert readers(Storage(str(root)), time.time()) == ({}, [])
        assert process.stderr is not None
        assert process.stderr.read() == "rails-ray: stopped\n"
    finally:
        process.kill()
        process.communicate()


@pytest.mark.long
def test_beside_its_vectors_it_takes_a_quarter_of_a_gigabyte(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(2_000, 64)).astype("f4")
    local.build(vectors, folder=str(tmp_path))
    port, body = free_port(), {"queries": [{"embedding": vectors[0].tolist()}], "k": 10}
    process = processes.command(
        "serve", "--single", "--storage", str(tmp_path), "--allow-anonymous", "--port", str(port)
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        for _ in range(50):
            httpx.post(f"http://127.0.0.1:{port}/v1/search", json=body).raise_for_status()
        rss = psutil.Process(process.pid).memory_info().rss / 2**20
        assert rss < 250, rss
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    "signals", [[signal.SIGTERM], pytest.param([signal.SIGTERM, signal.SIGINT], marks=pytest.mark.long)]
)
def test_its_end_is_no_error_of_the_server(root: Path, signals: list[signal.Signals]) -> None:
    """Requests that are under way are answered, or refused with 503, or their connections close; also if a second
    signal comes, as `uv run` and some supervisors send one to the process and one to its group."""
    port, statuses = free_port(), list[tuple[int, str]]()
    process = processes.command("serve", "--single", "--storage", str(root), "--allow-anonymous", "--port", str(port))
    body = {"search": {"queries": [{"text": "red"}] * 1000, "cutoff": {"score": -1}}, "relevant": [["item-1"]] * 1000}

    def ask() -> None:
        with suppress(httpx.TransportError), httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            while True:
                answer = client.post("/v1/feedback", json=body)
                statuses.append((answer.status_code, answer.text[:200]))

    clients = [threading.Thread(target=ask) for _ in range(3)]
    try:
        assert process.stdout is not None
        process.stdout.readline()
        for client in clients:
            client.start()
        wait_for(lambda: len(statuses) >= 3)
        for number in signals:
            process.send_signal(number)
            time.sleep(0.1)  # two signals that come at once are one
        assert process.wait(processes.PATIENCE * 30) == EXIT_INTERRUPTED
        for client in clients:
            client.join()
        assert {status for status, _ in statuses} <= {200, 503}, statuses[-3:]
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()
    finally:
        process.kill()
        process.communicate()


@pytest.mark.long
@pytest.mark.parametrize("options", [pytest.param([], marks=pytest.mark.long), ["--log-queries"]])
def test_queries_are_on_standard_error_if_that_is_asked_for(root: Path, options: list[str]) -> None:
    port = free_port()
    process = processes.command(
        "serve", "--single", "--storage", str(root), "--allow-anonymous", "--port", str(port), *options
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        body, headers = {"queries": [{"text": "red"}], "cutoff": {"top_k": 3}}, {"x-request-id": "mine"}
        httpx.post(f"http://127.0.0.1:{port}/v1/search", json=body, headers=headers).raise_for_status()
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=processes.PATIENCE * 30)
        noted = [line for line in said.splitlines() if "red" in line]
        assert len(noted) == len(options)
        assert all('request mine: {"queries":[{"text":"red"}]' in line for line in noted)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([], "give --keys-file, or --allow-anonymous to answer anyone, got neither"),
        (["--profile", "production"], "must be without --profile production, got both"),
        (["--replicas", "2"], "must be without --replicas, got both"),
        (["--max-replicas", "2"], "must be without --max-replicas, got both"),
        (["--cpus", "2"], "must be without --cpus, got both"),
        (["--nodes", "2"], "must be without --nodes, got both"),
        (["--router-gpus", "0.5"], "must be without --router-gpus, got both"),
        (["--ranker.timeout-s", "2"], "must be without --ranker options, got both"),
        (["--haproxy.stats-port", "7001"], "must be without --haproxy options, got both"),
        (["--print-config"], "must be without --print-config, got both"),
        (["--shards-in-routers"], "must be without --shards-in-routers, got both"),
        (["--shards-apart"], "must be without --shards-apart, got both"),
        (["--allow-anonymous", "--workers", "0"], "--workers must be at least 1, got 0"),
        (["--allow-anonymous", "--workers", "2", "--gpus", "1"], "--workers must be 1 with --gpus, got 2"),
        (
            ["--allow-anonymous", "--host", "0.0.0.0"],
            "--single must listen on loopback without keys, got --host 0.0.0.0: give --keys-file",
        ),
        (["--allow-anonymous", "--version", "v7"], "v7"),
        (["--allow-anonymous", "--version", "v1", "--follow"], "--follow must be without --version, got v1: leave one"),
        (["--allow-anonymous", "--follow", "--follow-s", "0"], "--follow-s must be a number of seconds above 0, got 0"),
        (["--allow-anonymous", "--follow-s", "3"], "--follow-s must be given with --follow, got 3 alone"),
        (["--allow-anonymous", "--change-items"], "--change-items must be given with --keys-file, got --allow-anon"),
        (["--allow-anonymous", "--cutoff", "coverage", ".9"], "calibrat"),
        (["--allow-anonymous", "--port", "0"], "port must be from 1 to 65535, got 0"),
        (["--allow-anonymous", "--ranker.path", "nowhere"], "MODULE:NAME, got 'nowhere'"),
        (["--keys-file", "no-such-file"], "keys_file must be a text file of ASCII keys"),
    ],
)
def test_what_it_refuses(root: Path, options: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--single", "--storage", str(root), *options]) != 0
    said = capsys.readouterr().err
    assert told in said
    assert said.startswith("rails-ray: ")
    assert said.count("\n") == 1
