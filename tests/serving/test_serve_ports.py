"""`rails-ray serve --profile production` on a machine where other programs use the default ports of HAProxy."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest

from rails_ray.cli.main import EXIT_FAILED, EXIT_INTERRUPTED
from rails_ray.on_ray.environment import ProxyPorts
from rails_ray.serving import client
from support import processes
from support.data_folders import write_text_data
from support.examples import publish_untrained
from support.ports import free_ports

pytestmark = [pytest.mark.cluster, pytest.mark.long]


@pytest.fixture
def default_ports_taken() -> Iterator[None]:
    with ExitStack() as stack:
        for port in ProxyPorts().by_option.values():
            with suppress(OSError):  # taken by another program already
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
        yield


@pytest.mark.usefixtures("ray_cluster", "default_ports_taken")  # the first starts Ray for all tests
def test_production_serves_at_chosen_ports_where_the_default_ones_are_taken(tmp_path: Path) -> None:
    publish_untrained(tmp_path, write_text_data(tmp_path / "my-data"))
    port, stats, metrics, fallback = free_ports(4)
    arguments = ["serve", "--allow-anonymous", "--profile", "production", "--host", "127.0.0.1", "--replicas", "1"]
    arguments += ["--storage", str(tmp_path), "--port", str(port)]

    with processes.command(*arguments) as refused:
        try:
            _, errors = refused.communicate(timeout=processes.PATIENCE * 60)
        finally:
            refused.kill()
    assert refused.returncode == EXIT_FAILED
    told = "rails-ray: --haproxy.stats-port must be free, got 8404, which another program uses: choose another "
    assert told in errors
    assert "Traceback" not in errors

    chosen = {"stats": stats, "metrics": metrics, "fallback": fallback}
    arguments += [word for name, number in chosen.items() for word in (f"--haproxy.{name}-port", str(number))]
    with processes.command(*arguments) as server:
        try:
            assert server.stdout is not None
            while "serving at" not in (line := server.stdout.readline()):
                assert line or server.poll() is None, server.stderr and server.stderr.read()
            answer = client.search(f"http://127.0.0.1:{port}", [{"text": "red"}], 3, cutoff={"top_k": 3})
            assert len(answer["results"][0]["items"]) == 3
            assert "Statistics Report for HAProxy" in httpx.get(f"http://127.0.0.1:{stats}/stats", timeout=30).text
            assert "haproxy_process" in httpx.get(f"http://127.0.0.1:{metrics}/metrics", timeout=30).text
            assert httpx.get(f"http://127.0.0.1:{fallback}/v1/health", timeout=30).json()["status"] == "ok"
        finally:
            server.terminate()  # which ends it as Ctrl-C does, and is never ignored
            try:
                server.communicate(timeout=processes.PATIENCE * 60)
            finally:
                server.kill()
    assert server.returncode == EXIT_INTERRUPTED
