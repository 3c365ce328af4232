"""`rails-ray serve` as a process: where it listens, what it tells of its keys, and its end when its cluster ends."""

import secrets
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
import pytest

from rails_ray.cli.main import EXIT_FAILED
from support import processes
from support.data_folders import write_text_data
from support.examples import publish_untrained
from support.ports import free_port
from support.processes import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.faults]

KEY, OTHER = "a-key-of-the-test-1", "a-key-of-the-test-2"


class Serving:
    """The command at work, and what it has said."""

    def __init__(self, root: Path) -> None:
        self.keys = root / "keys"
        self.keys.write_text(f"{KEY}\n")
        self.port, self.token = free_port(), secrets.token_hex(32)
        arguments = ["--storage", str(root), "--keys-file", str(self.keys), "--port", str(self.port)]
        self.process = processes.command(
            "serve", *arguments, more_environment={"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self.token}
        )
        self.said = list[str]()
        streams = self.process.stdout, self.process.stderr
        self.listening = [threading.Thread(target=self._listen, args=(stream,)) for stream in streams]
        for thread in self.listening:
            thread.start()
        wait_for(lambda: self.heard("serving at") or self.process.poll() is not None)

    def _listen(self, stream: "subprocess.IO[str]") -> None:
        with stream:
            for line in stream:
                self.said.append(line)

    def heard(self, text: str) -> bool:
        return any(text in line for line in list(self.said))

    def health(self, key: str = KEY) -> httpx.Response:
        headers = {"authorization": f"Bearer {key}"}
        return httpx.get(f"http://127.0.0.1:{self.port}/v1/health", headers=headers, timeout=30)


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory, ray_cluster: None) -> Iterator[Serving]:
    root = tmp_path_factory.mktemp("serving")
    publish_untrained(root, write_text_data(root / "my-data"))
    serving = Serving(root)
    try:
        yield serving
    finally:
        serving.process.kill()
        for left in processes.with_token(serving.token):
            with suppress(psutil.Error):
                left.kill()
        serving.process.wait()
        for thread in serving.listening:
            thread.join()


def test_it_says_that_routers_hold_a_small_version(serving: Serving) -> None:
    assert serving.heard("each router holds the whole version, ")
    named = [" ".join(process.cmdline()) for process in processes.with_token(serving.token)]
    assert any("ServeReplica:rails-ray:Router" in title for title in named)
    assert not any("ServeReplica:rails-ray:Shard" in title for title in named)


def test_nothing_listens_on_all_interfaces_but_what_asks_for_rays_token(serving: Serving) -> None:
    open_ports = {
        connection.laddr.port
        for process in processes.with_token(serving.token)
        for connection in process.net_connections(kind="tcp")
        if connection.status == psutil.CONN_LISTEN and not connection.laddr.ip.startswith("127.")
    }
    assert open_ports  # Ray's own
    for port in open_ports:
        with suppress(httpx.TransportError):  # gRPC, which is no HTTP of this kind
            assert httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=5).status_code in (401, 404), port


def test_what_happens_to_the_keys_is_told_where_the_server_runs_and_by_its_health(serving: Serving) -> None:
    """The file is looked at again at Serve's health checks, every ten seconds, and by the command each second."""
    assert serving.health().json()["status"] == "ok"
    serving.keys.write_text(f"{OTHER}\nshort\n")
    wait_for(lambda: serving.heard("2 of "))
    problem = (
        f"line 2 of {serving.keys} must be a key of at least 16 characters, got 5: the keys that were valid before "
        "stay valid until it is fixed"
    )
    assert f"rails-ray: {problem}\n" in serving.said
    wait_for(lambda: "warning" in serving.health().json())
    assert serving.health().json()["warning"] == problem
    serving.keys.write_text("")
    wait_for(lambda: serving.heard(f"got none in {serving.keys}: nobody gets in until it holds one"))
    wait_for(lambda: serving.health().status_code == 401)
    assert "its file of keys is missing or empty" in serving.health().json()["error"]
    serving.keys.write_text(f"{OTHER}\n")
    wait_for(lambda: serving.heard(f"the keys of {serving.keys} are valid"))
    wait_for(lambda: serving.health(OTHER).status_code == 200)
    assert serving.health(KEY).status_code == 403


def test_a_router_that_starts_anew_knows_the_last_good_keys(serving: Serving) -> None:
    serving.keys.write_text(f"{OTHER}\n")
    wait_for(lambda: serving.health(OTHER).status_code == 200)
    serving.keys.write_text("short\n")
    assert processes.kill_one("ServeReplica:rails-ray:Router", serving.token)

    def is_back() -> bool:
        with suppress(httpx.TransportError):
            answer = serving.health(OTHER)
            return answer.status_code == 200 and "stay valid until it is fixed" in answer.json().get("warning", "")
        return False

    wait_for(is_back)
    assert serving.health(KEY).status_code == 403


def test_the_command_ends_with_its_cluster(serving: Serving) -> None:
    """The last test of the module."""
    for process in processes.with_token(serving.token):
        if process.name() == "raylet":
            process.send_signal(signal.SIGKILL)
    assert serving.process.wait(timeout=processes.PATIENCE * 60) == EXIT_FAILED
    told = "rails-ray: the Ray cluster must stay up, got one that has ended on this machine: start it again\n"
    wait_for(lambda: told in serving.said)
    assert not serving.heard("Traceback")
    wait_for(lambda: not processes.with_token(serving.token))
