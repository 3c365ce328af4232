"""What a server does when its cluster has ended, with a cluster that says what it is told to."""

import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from rails_ray.errors import UnavailableError
from rails_ray.on_ray import liveness


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Of a cluster of two machines, of which the first is ours."""
    found = [{"NodeID": "ours", "Alive": True}, {"NodeID": "another", "Alive": True}]
    monkeypatch.setattr(ray, "nodes", lambda: found)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "ours"))
    return found


def test_a_cluster_goes_on_while_this_machine_of_it_does(nodes: list[dict[str, Any]]) -> None:
    liveness.check()
    nodes[1]["Alive"] = False
    liveness.check()
    nodes[0]["Alive"] = False
    with pytest.raises(UnavailableError, match="the Ray cluster must stay up, got one that has ended on this machine"):
        liveness.check()


def test_a_cluster_that_does_not_say_has_ended(nodes: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "nodes", threading.Event().wait)
    with pytest.raises(UnavailableError, match=r"must stay up, got no answer in 0\.05 s: start it again"):
        liveness.check(timeout_s=0.05)


def test_a_cluster_that_cannot_be_asked_has_ended(
    nodes: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise ConnectionError("the connection is closed")

    monkeypatch.setattr(ray, "nodes", fail)
    with pytest.raises(UnavailableError, match="must stay up, got the connection is closed: start it again"):
        liveness.check()
    assert "Traceback" not in capfd.readouterr().err


def test_a_server_stays_until_its_cluster_ends(nodes: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "LOOK_S", 0)
    looks = list[int]()

    def look() -> None:
        looks.append(1)
        nodes[0]["Alive"] = len(looks) < 3

    with pytest.raises(UnavailableError):
        liveness.stay(look, print, exit_code=1, exit_s=3600)
    assert len(looks) == 3


def test_a_process_that_hangs_while_it_stops_is_ended_with_its_sentence() -> None:
    program = """
import threading
from rails_ray.errors import UnavailableError
from rails_ray.on_ray import liveness

def check():
    raise UnavailableError("it has ended")

liveness.check = check
try:
    liveness.stay(lambda: None, lambda sentence: print(sentence, flush=True), exit_code=7, exit_s=0.1)
finally:
    threading.Event().wait()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (7, "it has ended\n")
