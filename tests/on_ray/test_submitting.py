"""Submitting without a cluster: what cannot be submitted, and a log that is followed through what goes wrong."""

import re
from typing import Any

import pytest
import requests
from ray.job_submission import JobStatus

from rails_ray import on_ray
from rails_ray.errors import UnavailableError
from rails_ray.on_ray import submitting
from support.ports import free_ports


class FlakyClient:
    """A cluster, as each look finds it: how much of the log there is, and whether the job has ended.

    None for no answer; (None, True) for an ended job whose log has gone with its machine.
    """

    def __init__(self, log: str, looks: list[tuple[int | None, bool] | None]) -> None:
        self.log = log
        self.looks = looks

    def get_job_status(self, job: str) -> JobStatus:
        if self.looks[0] is None:
            self.looks.pop(0)
            raise requests.ConnectionError("nobody there")
        return JobStatus.SUCCEEDED if self.looks[0][1] else JobStatus.RUNNING

    def get_job_logs(self, job: str) -> str:
        (end, _) = self.looks.pop(0)
        if end is None:
            raise RuntimeError("no such machine")
        return self.log[:end]


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(submitting, "time", clock)
    return clock


LOG = "abcdefghijkl"


@pytest.mark.parametrize(
    "looks",
    [
        [(12, True)],
        [(0, False), (4, False), (4, False), (9, False), (12, True)],
        [(4, False), None, (7, False), None, None, (12, True)],
        [(12, False), (12, True)],
        [(12, False), None, (None, True)],
    ],
)
def test_each_piece_of_a_log_is_told_once_however_often_the_cluster_goes_away(
    looks: list[tuple[int | None, bool] | None], clock: Clock
) -> None:
    pieces = list(submitting.log_of(FlakyClient(LOG, looks), "job", "http://x"))
    assert "".join(pieces) == LOG
    assert all(pieces)
    assert not looks


def test_a_cluster_that_goes_away_after_long_silence_is_waited_for_and_at_last_given_up(clock: Clock) -> None:
    silent: list[tuple[int | None, bool] | None] = [(4, False)] * 600
    back = [*silent, *[None] * 59, (12, True)]
    assert "".join(submitting.log_of(FlakyClient(LOG, back), "job", "http://x")) == LOG
    gone = [*silent, *[None] * 63]
    told = submitting.log_of(FlakyClient(LOG, gone), "job", "http://x")
    assert next(told) == LOG[:4]
    with pytest.raises(UnavailableError, match="job job must be followed to its end at http://x, got: nobody there"):
        next(told)


def test_an_error_of_the_listener_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """`print` raises it, say, when its reader is gone."""

    class Ended(FlakyClient):
        def __init__(self, address: str) -> None:
            super().__init__(LOG, [(12, True)])

        def submit_job(self, **job: Any) -> str:
            return "job"

    def listen(text: str) -> None:
        raise BrokenPipeError("nobody reads")

    monkeypatch.setattr(submitting, "JobClient", Ended)
    with pytest.raises(BrokenPipeError, match="nobody reads"):
        on_ray.submit(["true"], working_dir=None, on_log=listen)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"entrypoint": "python x.py"}, "entrypoint must be a list of at least 1 word, got 'python x.py'"),
        ({"entrypoint": []}, r"entrypoint must be a list of at least 1 word, got \[\]"),
        ({"num_cpus": -1}, "num_cpus must be at least 0, got -1"),
    ],
)
def test_a_submission_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        on_ray.submit(**{"entrypoint": ["true"], "working_dir": None, **options})


@pytest.mark.parametrize("address", ["ray://127.0.0.1:10001", "127.0.0.1:8265", "auto", ""])
def test_an_address_that_is_none(address: str) -> None:
    with pytest.raises(ValueError, match="address must be http://host:port of a cluster's dashboard, got '" + address):
        on_ray.submit(["true"], address=address)


@pytest.mark.parametrize("submission_id", ["a/b", "../up", ""])
def test_a_submission_id_that_cannot_be(submission_id: str) -> None:
    with pytest.raises(
        ValueError,
        match=r"^submission_id must be made of letters, digits, '\.', '_' and '-', got '"
        + re.escape(submission_id)
        + "'$",
    ):
        on_ray.submit(["true"], submission_id=submission_id, working_dir=None)


def test_nobody_at_the_address() -> None:
    address = f"http://127.0.0.1:{free_ports(1)[0]}"
    with pytest.raises(
        UnavailableError, match=f"^a cluster must take job job-[^ ]+ at {address}, got: Failed to connect"
    ):
        on_ray.submit(["true"], address=address, working_dir=None)


@pytest.mark.cluster
def test_somebody_else_at_the_address(s3_server: str) -> None:
    with pytest.raises(UnavailableError, match=f"^a cluster must take job job-[^ ]+ at {s3_server}, got: ") as told:
        on_ray.submit(["true"], address=s3_server, working_dir=None)
    assert "\n" not in str(told.value)
