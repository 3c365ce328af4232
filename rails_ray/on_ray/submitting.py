"""Submit a command to a cluster as a job, follow its log, and learn how it ended."""

import logging
import re
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import ray
import requests
from ray.dashboard.modules.dashboard_sdk import SubmissionClient
from ray.exceptions import AuthenticationError
from ray.job_submission import JobDetails, JobSubmissionClient

from rails_ray.errors import AccessError, ConflictError, UnavailableError
from rails_ray.storage.filesystem import NAME, timed_name

DEFAULT_ADDRESS = "http://127.0.0.1:8265"
RECONNECT_S = 60.0  # how long a cluster may be away
REQUEST_S = 60.0  # how long a request may go unanswered
POLL_S = 1.0  # between two looks at the log; Ray itself looks as often
FAILURES = (requests.RequestException, OSError, RuntimeError, AuthenticationError)
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
    """Run a command as a job on a cluster, wait for its end, and return its exit code: -N or 128 + N for signal N.

    A job with the same submission id and entrypoint never starts twice, whatever the other arguments say. Calling again
    follows its log from the beginning and returns its exit code, even if it has ended. The job outlives this process.
    Ray finds the cluster's token itself (RAY_AUTH_TOKEN).

    Args:
        entrypoint: the command, word by word: ["python", "-m", "rails_ray.jobs.train", "--run", "demo"].
        address: URL of the cluster's dashboard.
        submission_id: name of the job. Submitting it again follows the same job. By default a new name.
        working_dir: folder to upload and run the job in, without what .gitignore and .rayignore name; None if the image
            has everything.
        environment: environment variables of the job. Put no secrets here: anyone who can see the job sees them.
        num_cpus: CPUs that the job reserves on any machine; with 0 it runs on the head.
        on_log: called with each new piece of the job's log.

    Raises:
        ValueError: if an argument is invalid, or the working directory is too large to upload.
        AccessError: if the cluster refuses the token.
        UnavailableError: if no cluster answers, or the job does not run to its end.
        ConflictError: if the submission id belongs to a job of another entrypoint.
    """
    if isinstance(entrypoint, str) or not entrypoint:
        raise ValueError(f"entrypoint must be a list of at least 1 word, got {entrypoint!r}")
    if urlsplit(address).scheme not in ("http", "https"):
        raise ValueError(f"address must be http://host:port of a cluster's dashboard, got {address!r}")
    job = timed_name("job") if submission_id is None else submission_id
    if not NAME.fullmatch(job):
        raise ValueError(f"submission_id must be made of letters, digits, '.', '_' and '-', got {job!r}")
    if working_dir is not None and not Path(working_dir).is_dir():
        raise ValueError(f"working_dir must be a folder, got {working_dir!r}")
    if num_cpus < 0:
        raise ValueError(f"num_cpus must be at least 0, got {num_cpus:g}")
    for noisy in ("ray._private.runtime_env.packaging", "ray.dashboard.modules.dashboard_sdk"):
        logging.getLogger(noisy).setLevel(logging.WARNING)  # they log a line for each file that is not sent
    with _plain_errors(f"a cluster must take job {job} at {address}"):
        client = JobClient(address)
        _start(client, job, shlex.join(entrypoint), working_dir, dict(environment or {}), num_cpus)
    for text in log_of(client, job, address):
        on_log(text)
    with _plain_errors(f"job {job} must be followed to its end at {address}"):
        return _exit_code(client.get_job_info(job))


class JobClient(JobSubmissionClient):
    """Uses the given address, whereas Ray's own client prefers RAY_ADDRESS; and bounds each request's time."""

    def __init__(self, address: str) -> None:
        self._client_ray_version = ray.__version__
        SubmissionClient.__init__(self, address)
        self._check_connection_and_version(min_version="2.8")

    def _do_request(self, method: str, endpoint: str, **options: Any) -> requests.Response:
        response: requests.Response = super()._do_request(method, endpoint, timeout=REQUEST_S, **options)
        return response


def _start(
    client: JobSubmissionClient,
    job: str,
    command: str,
    working_dir: str | None,
    environment: dict[str, str],
    num_cpus: float,
) -> None:
    """Start the job, unless it was started before."""
    runtime_env: dict[str, Any] = {"env_vars": environment}
    if working_dir is not None:
        runtime_env["working_dir"] = working_dir
    deadline = time.monotonic() + RECONNECT_S
    while True:
        try:
            client.submit_job(
                entrypoint=command,
                submission_id=job,
                runtime_env=runtime_env,
                entrypoint_num_cpus=num_cpus or None,
            )
            return
        except (RuntimeError, ValueError) as error:
            reason = str(error)
            too_large = TOO_LARGE.search(reason)
            if too_large:
                raise ValueError(
                    f"working_dir, packed, must be within the cluster's size limit, got {working_dir!r}: "
                    f"{too_large[0]}: list what the job does not need in .rayignore"
                ) from None
            if "already exists" in reason:
                break
            # A cluster that has just started has no agent yet.
            if "No available agent" not in reason or time.monotonic() > deadline:
                raise
        time.sleep(POLL_S)  # the only way to learn that a cluster is ready is to ask
    before = client.get_job_info(job).entrypoint
    if before != command:
        raise ConflictError(
            f"submission_id must be new, or of a job of this entrypoint, got {job!r}, which is of {before!r}"
        )


def log_of(client: JobSubmissionClient, job: str, address: str) -> Iterator[str]:
    """The whole log, each piece once, until the job has ended.

    Raises:
        UnavailableError: if the cluster goes away and does not come back.
    """
    num_printed, broken_since = 0, None
    while True:
        started = time.monotonic()
        has_ended, log = False, ""
        try:
            has_ended = client.get_job_status(job).is_terminal()  # before the log: an ended job's log is complete
            log = client.get_job_logs(job)
            broken_since = None
        except FAILURES as error:
            broken_since = broken_since or started
            # The log of an ended job may be gone with its machine; its end is known.
            if not has_ended and started - broken_since > RECONNECT_S:
                with _plain_errors(f"job {job} must be followed to its end at {address}"):
                    raise error
        if len(log) > num_printed:
            yield log[num_printed:]
            num_printed = len(log)
        if has_ended:
            return
        # Ray returns only the whole log. The longer that takes, the less often we ask.
        time.sleep(max(POLL_S, 2 * (time.monotonic() - started)))


@contextmanager
def _plain_errors(what: str) -> Iterator[None]:
    try:
        yield
    except AuthenticationError:
        raise AccessError(f"{what}, got a refusal of the token: set RAY_AUTH_TOKEN to the cluster's") from None
    except FAILURES as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = lines[-1 if "Traceback" in str(error) else 0] if lines else type(error).__name__
        raise UnavailableError(f"{what}, got: {reason}") from None


def _exit_code(job: JobDetails) -> int:
    if job.driver_exit_code is None:
        lines = (job.message or "no reason").strip().splitlines()
        raise UnavailableError(
            f"job {job.submission_id} must run to its end, got {job.status}: {lines[-1]}: see its log"
        )
    return job.driver_exit_code
