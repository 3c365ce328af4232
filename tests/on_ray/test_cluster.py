"""A cluster that does not start or does not answer, in place of which stands what `ray.init` raises then."""

import os
import re
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch
from ray.exceptions import RaySystemError

from rails_ray.cli.main import EXIT_BAD_ARGUMENT, EXIT_FAILED, main
from rails_ray.errors import UnavailableError
from rails_ray.on_ray import cluster as module
from rails_ray.on_ray.cluster import cluster, reserved_device, reserved_share, unused_gpu

# Word for word from ray/_private: node.py, worker.py, services.py and state.py.
TIMED_OUT = Exception(
    "The current node timed out during startup. This could happen because some of the raylet failed to startup or the "
    "GCS has become overloaded."
)
NO_GCS = RuntimeError(
    "Failed to start GCS.  Last 1 lines of error files:\n[2026-01-01 E 1 1] address in use\n.Please check "
    "/tmp/ray/gcs_server.out for details. Last connection error: Traceback (most recent call last):\n  File x"
)
NO_CONNECTION = RaySystemError(
    "Failed to connect to GCS. Please check if the GCS server is running and if this node can connect to the head node."
)
NOT_THERE = ConnectionError("Failed to connect to Ray cluster at 10.0.0.1:6379")
NO_SPACE = OSError(28, "No space left on device", "/tmp/ray")
NO_ADDRESS = ValueError("Malformed address port x. Must be an integer.")


class Fake:
    """In place of `ray.init` and `ray.shutdown`."""

    def __init__(self, *failures: BaseException) -> None:
        self.failures = list(failures)
        self.calls: list[str] = []
        self.options: list[dict[str, Any]] = []

    def init(self, **options: Any) -> None:
        self.calls.append("init")
        self.options.append(options)
        if self.failures:
            raise self.failures.pop(0)

    def shutdown(self) -> None:
        self.calls.append("shutdown")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    made = Fake()
    monkeypatch.setattr(os, "environ", dict(os.environ))  # of which some are set on the way
    os.environ.pop("RAY_ADDRESS", None)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", made.init)
    monkeypatch.setattr(ray, "shutdown", made.shutdown)
    return made


def enter(fake: Fake, *failures: BaseException) -> bool:
    fake.failures = list(failures)
    with cluster() as is_own:
        return is_own


@pytest.mark.parametrize("failure", [TIMED_OUT, NO_GCS, NO_CONNECTION])
def test_a_start_that_takes_too_long_is_tried_once_more(fake: Fake, failure: Exception) -> None:
    assert enter(fake, failure) is True
    assert fake.calls == ["init", "shutdown", "init", "shutdown"]
    assert fake.options[0] == fake.options[1]
    assert fake.options[0]["address"] == "local"


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (TIMED_OUT, "The current node timed out during startup"),
        (NO_GCS, "Failed to start GCS"),
        (NO_CONNECTION, "System error: Failed to connect to GCS"),
    ],
)
def test_a_start_that_takes_too_long_twice_is_told(fake: Fake, failure: Exception, reason: str) -> None:
    told = f"^Ray must start on this machine, got: {reason}: try again when the machine is less busy$"
    with pytest.raises(UnavailableError, match=told) as raised:
        enter(fake, TIMED_OUT, failure)
    assert raised.value.__cause__ is failure
    assert fake.calls == ["init", "shutdown"] * 2


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (NO_SPACE, r"\[Errno 28\] No space left on device: '/tmp/ray'"),
        (RuntimeError("Version mismatch: x\nThe cluster was started with y"), "Version mismatch: x"),
        (RuntimeError(), "RuntimeError"),
    ],
)
def test_a_start_that_fails_is_told_at_once(fake: Fake, failure: Exception, reason: str) -> None:
    told = f"^Ray must start on this machine, got: {reason}: fix that and try again$"
    with pytest.raises(UnavailableError, match=told) as raised:
        enter(fake, failure)
    assert raised.value.__cause__ is failure
    assert fake.calls == ["init", "shutdown"]


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (NOT_THERE, "Failed to connect to Ray cluster at 10.0.0.1:6379"),
        (TIMED_OUT, "The current node timed out during startup"),
        (NO_ADDRESS, "Malformed address port x"),
    ],
)
def test_a_cluster_that_does_not_answer_is_told(fake: Fake, failure: Exception, reason: str) -> None:
    os.environ["RAY_ADDRESS"] = "10.0.0.1:6379"
    told = (
        f"^the Ray cluster that RAY_ADDRESS names, 10.0.0.1:6379, must answer, got: {reason}: "
        "check RAY_ADDRESS, RAY_AUTH_TOKEN and that the cluster runs$"
    )
    with pytest.raises(UnavailableError, match=told) as raised:
        enter(fake, failure)
    assert raised.value.__cause__ is failure
    assert fake.calls == ["init", "shutdown"]
    assert os.environ.items() >= {"RAY_gcs_server_port_wait_time_s": "2"}.items()


def test_ctrl_c_during_the_start_is_no_failure(fake: Fake) -> None:
    with pytest.raises(KeyboardInterrupt):
        enter(fake, KeyboardInterrupt())
    assert fake.calls == ["init"]


def test_an_error_inside_the_block_is_left_as_it_is(fake: Fake) -> None:
    with pytest.raises(RuntimeError, match="timed out"), cluster():
        raise RuntimeError("it timed out")
    assert fake.calls == ["init", "shutdown"]


def test_the_command_says_it_in_a_sentence(fake: Fake, tmp_path, capfd: pytest.CaptureFixture[str]) -> None:
    fake.failures = [TIMED_OUT, TIMED_OUT]
    assert main(["evaluate", "--storage", str(tmp_path)]) == EXIT_FAILED
    (told,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("rails-ray: ")]
    assert told.startswith(
        "rails-ray: Ray must start on this machine, got: The current node timed out during startup: "
    )


@pytest.mark.parametrize("address", ["ray://10.0.0.1:10001", "http://10.0.0.1:8265", "https://head"])
def test_an_address_of_another_protocol_is_refused_at_once(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], address: str
) -> None:
    os.environ["RAY_ADDRESS"] = address
    sentence = (
        f"RAY_ADDRESS must be host:port of the cluster's head, such as 10.0.0.1:6379, or auto, got {address}: set it "
        "on a machine of the cluster, or unset it and submit the command as a job (ray job submit --address "
        "http://host:8265)"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        enter(fake)
    assert main(["train", "vector-cosine"]) == EXIT_BAD_ARGUMENT
    assert capsys.readouterr().err == f"rails-ray: {sentence}\n"
    assert fake.calls == []


@pytest.mark.parametrize("address", ["", " "])
def test_an_empty_address_is_none(fake: Fake, address: str) -> None:
    os.environ["RAY_ADDRESS"] = address
    assert enter(fake)
    assert fake.options[0]["address"] == "local"


def reserve(monkeypatch: pytest.MonkeyPatch, gpu_ids: list[str], share: float | None, *, has_gpu: bool) -> None:
    """Stand in for a replica's place on the cluster."""
    resources = {"CPU": 1.0} if share is None else {"CPU": 1.0, "GPU": share}
    context = SimpleNamespace(get_accelerator_ids=lambda: {"GPU": gpu_ids}, get_assigned_resources=lambda: resources)
    monkeypatch.setattr(module.ray, "is_initialized", lambda: True)
    monkeypatch.setattr(module.ray, "get_runtime_context", lambda: context)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    module._warn_of_cpu.cache_clear()


def test_a_replica_has_the_part_of_a_gpu_that_ray_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as place:
        reserve(place, ["0"], 0.25, has_gpu=True)
        assert (reserved_device(), reserved_share()) == ("cuda", 0.25)
    with monkeypatch.context() as place:
        reserve(place, [], None, has_gpu=True)
        assert (reserved_device(), reserved_share()) == ("cpu", 1.0)


def test_a_gpu_that_torch_cannot_use_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as place:
        reserve(place, ["0"], 1.0, has_gpu=False)
        assert [reserved_device() for _ in range(3)] == ["cpu"] * 3
        reason = unused_gpu()
        reserve(place, ["0"], 1.0, has_gpu=True)
        assert unused_gpu() is None
        reserve(place, [], None, has_gpu=False)
        assert unused_gpu() is None
    [message] = caplog.messages
    assert message == reason
    assert message.startswith("Ray has reserved a GPU that torch")
    assert "cannot use, so that the CPU computes: install a driver for CUDA" in message
