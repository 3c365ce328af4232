"""Submit a command to a cluster as a job, follow its log, and learn how it ended."""

import re
import shlex
import time
from asyncio import run, sleep, to_thread
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import ray
import requests
from ray.dashboard.modules.dashboard_sdk import SubmissionClient
from ray.exceptions import AuthenticationError
from ray.job_submission import JobDetails, JobSubmissionClient

from rails_ray.errors import ConflictError, UnavailableError
from rails_ray.storage.filesystem import NAME

DEFAULT_ADDRESS = "http://127.0.0.1:8265"
RECONNECT_S = 60.0  # for so long a cluster that went away may come back
POLL_S = 1.0  # between two tries
TOO_LARGE = re.compile(r"Maximum request body size \d+ exceeded|Package size .*? exceeds the maximum size of \S*\w")


def submit(
    entrypoint: Sequence[str],
    *,
    address: str = DEFAULT_ADDRESS,
    submission_id: str | None = None,
    working_dir: str | None = ".",
    environment: Mapping[str, str] | None = None,
    num_cpus: float = 0,
    on_log: Callable[[str], None] = lambda text: print(text, end="", flush=True),
) -> int:
    """Run a command as a job on a cluster and wait for its end; its exit code.

    A job of the same submission id and entrypoint is not started twice: its log is followed, from its beginning, and
    its exit code told, also when it has ended. The cluster's token comes from where Ray looks for it (RAY_AUTH_TOKEN).

    Args:
        entrypoint: the command, word by word: ["python", "-m", "jobs.train", "--run", "demo"].
        address: of the cluster's dashboard.
        submission_id: of the caller's choice, so that to submit again is to ask again; by default a new one.
        working_dir: folder that is sent along and in which the job runs, less what .gitignore and .rayignore name; None
            where the image holds all.
        environment: variables of the job.
        num_cpus: CPUs that the job reserves on whichever machine has them; with 0 it runs on the head.
        on_log: called with each piece of the job's log.

    Raises:
        ValueError: if the address is none, or the working directory is no folder or too large to be sent.
        UnavailableError: if no cluster answers there, it refuses the token, or the job does not run to its end.
        ConflictError: if the submission id belongs to a job of another entrypoint.
    """
    if urlsplit(address).scheme not in ("http", "https"):
        raise ValueError(f"address must be http://host:port of a cluster's dashboard, got {address!r}")
    if submission_id is not None and not NAME.fullmatch(submission_id):
        raise ValueError(f"submission_id must be made of letters, digits, '.', '_' and '-', got {submission_id!r}")
    runtime_env: dict[str, Any] = {"env_vars": dict(environment or {})}
    if working_dir is not None:
        if not Path(working_dir).is_dir():
            raise ValueError(f"working_dir must be a folder, got {working_dir!r}")
        runtime_env["working_dir"] = working_dir
    command = shlex.join(entrypoint)
    options = {"runtime_env": runtime_env, "entrypoint_num_cpus": num_cpus or None}
    try:
        client = _Client(address)
        job = _start(client, command, submission_id, options, working_dir)
        run(_follow(client, job, on_log))
        return _exit_code(client.get_job_info(job))
    except (ConnectionError, requests.RequestException, AuthenticationError, RuntimeError) as error:
        first = str(error).strip().splitlines()[0]
        raise UnavailableError(f"a cluster must take the job at {address}, got: {first}") from None


class _Client(JobSubmissionClient):
    """Of the address that it is given, where Ray's own prefers RAY_ADDRESS."""

    def __init__(self, address: str) -> None:
        self._client_ray_version = ray.__version__
        SubmissionClient.__init__(self, address)
        self._check_connection_and_version(min_version="2.8")


def _start(
    client: JobSubmissionClient,
    command: str,
    submission_id: str | None,
    options: dict[str, Any],
    working_dir: str | None,
) -> str:
    """The submission id of the job that runs the command: a new one, or the one that has the id already."""
    deadline = time.monotonic() + RECONNECT_S
    while True:
        try:
            job: str = client.submit_job(entrypoint=command, submission_id=submission_id, **options)
            return job
        except (RuntimeError, ValueError) as error:
            reason = str(error)
            too_large = TOO_LARGE.search(reason)
            if too_large:
                raise ValueError(
                    f"working_dir must fit, packed, into what a cluster takes, got {working_dir!r}: {too_large[0]}: "
                    "name what the job does not need in .rayignore"
                ) from None
            if submission_id is not None and "already exists" in reason:
                break
            # A cluster that has just started has no agent yet.
            if "No available agent" not in reason or time.monotonic() > deadline:
                raise
        time.sleep(POLL_S)
    before = client.get_job_info(submission_id).entrypoint
    if before != command:
        raise ConflictError(
            f"submission_id must be new, or of a job of this entrypoint, got {submission_id!r}, which is of {before!r}"
        )
    return submission_id


async def _follow(client: JobSubmissionClient, job: str, on_log: Callable[[str], None]) -> None:
    async for text in _log(client, job):
        on_log(text)


async def _log(client: JobSubmissionClient, job: str) -> AsyncIterator[str]:
    """The whole log, each piece once, until the job has ended; a connection that breaks is made again."""
    told, last_heard = 0, time.monotonic()
    while True:
        read = 0
        try:
            async for text in client.tail_job_logs(job):  # from the beginning of the log, each time
                if read + len(text) > told:
                    yield text[max(0, told - read) :]
                read += len(text)
                told, last_heard = max(told, read), time.monotonic()
            has_ended = (await to_thread(client.get_job_status, job)).is_terminal()
            last_heard = time.monotonic()
        except (RuntimeError, OSError, aiohttp.ClientError, requests.RequestException):
            if time.monotonic() - last_heard > RECONNECT_S:
                raise
            has_ended = False
        if has_ended:
            rest = (await to_thread(client.get_job_logs, job))[told:]
            if rest:
                yield rest
            return
        await sleep(POLL_S)


def _exit_code(job: JobDetails) -> int:
    if job.driver_exit_code is None:
        message = (job.message or "no reason").strip().splitlines()[-1]
        raise UnavailableError(f"job {job.submission_id} must run to its end, got {job.status}: {message}")
    return job.driver_exit_code
