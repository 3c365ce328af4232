"""Jobs that are submitted, followed, stopped and refused: their ids, arguments, tokens and working directories."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from ray.job_submission import JobSubmissionClient

from rails_ray import on_ray
from rails_ray.errors import ConflictError, UnavailableError
from support.head_node import ROOT, HeadNode, Heard, submit
from support.ports import free_ports
from support.processes import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.long]

WAITING_JOB = """
import os, sys, time
from pathlib import Path

folder = Path(os.environ["FOLDER"])
with (folder / "started").open("a") as started:
    started.write("once\\n")
for number in range(25):
    print("line", number)
print(sys.argv[1:])
deadline = time.monotonic() + 60
while not (folder / "heard").exists():
    if time.monotonic() > deadline:
        sys.exit("nobody heard what was printed while the job ran")
    time.sleep(0.05)  # a file of another process gives no event to wait for
print("last line", file=sys.stderr)
sys.exit(7)
"""


def test_a_submission_id_stands_for_one_job_that_any_number_of_submitters_follow(
    head: HeadNode, tmp_path: Path
) -> None:
    folder, working_dir = tmp_path / "folder", tmp_path / "working_dir"
    folder.mkdir()
    working_dir.mkdir()
    (working_dir / "waiting.py").write_text(WAITING_JOB)
    entrypoint = ["python", "waiting.py", "two words", "it's", "$HOME; exit 0"]
    options = {
        "submission_id": "waiting",
        "working_dir": str(working_dir),
        "environment": {"FOLDER": str(folder)},
        "num_cpus": 1,
    }
    second = Heard()

    def answer(text: str) -> None:
        second.pieces.append(text)
        if "two words" in text:
            (folder / "heard").touch()

    with ThreadPoolExecutor() as threads:
        following = threads.submit(submit, head, *entrypoint, **options)
        wait_for((folder / "started").exists)
        also_following = threads.submit(submit, head, *entrypoint, heard=second, **options | {"on_log": answer})
        with pytest.raises(
            ConflictError,
            match="submission_id must be new, or of a job of this entrypoint, got 'waiting', which is of "
            r"'python waiting\.py \S+two words\S+ ",
        ):
            submit(head, "python", "other.py", **options)
        first = following.result()
        also_following.result()
    again = submit(head, *entrypoint, **options)
    assert first.code == second.code == again.code == 7
    assert (folder / "started").read_text() == "once\n"
    assert first.log == second.log == again.log == JobSubmissionClient(head.address).get_job_logs("waiting")
    assert len(second.pieces) > 1, "the job waited until a part of its log was heard"
    *_, arguments, last = first.log.splitlines()
    assert arguments == str(entrypoint[2:]), "words must come as they were given"
    assert last == "last line"
    assert [line for line in first.log.splitlines() if line.startswith("line")] == [
        f"line {number}" for number in range(25)
    ]
    assert JobSubmissionClient(head.address).get_job_info("waiting").runtime_env["env_vars"]["FOLDER"] == str(folder)


def test_jobs_whose_arguments_cannot_be_and_one_that_is_stopped(head: HeadNode) -> None:
    """Side by side, as each of them is mostly waited for."""

    def stop(text: str) -> None:
        if "Running entrypoint" in text:
            JobSubmissionClient(head.address).stop_job("stopped")

    with ThreadPoolExecutor() as threads:
        unknown = threads.submit(
            submit, head, "python", "-m", "jobs.train", "--training.speed", "9", working_dir=str(ROOT)
        )
        publish = ["python", "-m", "rails_ray.jobs.publish", "--version", "v"]
        relative = threads.submit(submit, head, *publish, working_dir=str(ROOT))
        stopped = threads.submit(submit, head, "sleep", "600", submission_id="stopped", working_dir=None, on_log=stop)
    assert unknown.result().code == relative.result().code == 2
    assert "--training.speed" in unknown.result().log
    assert unknown.result().told == {
        "job": "train",
        "error": "the arguments must fit the command, got one that does not: the log names it",
    }
    assert relative.result().told == {
        "job": "publish",
        "error": "a job's --storage must be s3://bucket/prefix, or an absolute folder that all machines of the cluster "
        "share, got 'rails-ray-data'",
    }
    assert "Traceback" not in unknown.result().log + relative.result().log
    with pytest.raises(UnavailableError, match=r"^job stopped must run to its end, got STOPPED: \S"):
        stopped.result()


def test_the_address_is_that_of_the_argument(head: HeadNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's client takes these variables for more important than what it is given."""
    monkeypatch.setenv("RAY_ADDRESS", head.address)
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", head.address)
    address = f"http://127.0.0.1:{free_ports(1)[0]}"
    with pytest.raises(UnavailableError, match=address):
        on_ray.submit(["true"], address=address, working_dir=None)


def test_a_wrong_token(head: HeadNode) -> None:
    """In a process of its own: Ray reads the token once."""
    told = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from rails_ray.errors import AccessError; from rails_ray.on_ray import submit\n"
            "try: submit(['true'], address=sys.argv[1], working_dir=None, submission_id='x')\n"
            "except AccessError as error: print(error)",
            head.address,
        ],
        env=os.environ | {"RAY_AUTH_TOKEN": "0" * 64},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.stdout.count("\n") == 1, told.stderr
    assert told.stdout.rstrip() == (
        f"a cluster must take job x at {head.address}, got a refusal of the token: set RAY_AUTH_TOKEN to the cluster's"
    )
    assert os.environ["RAY_AUTH_TOKEN"] not in told.stdout + told.stderr


def test_a_working_dir_that_cannot_be_sent(head: HeadNode, tmp_path: Path) -> None:
    nowhere, file, large = (str(tmp_path / name) for name in ("nowhere", "file", "large"))
    Path(file).touch()
    for path in (nowhere, file):
        with pytest.raises(ValueError, match=f"^working_dir must be a folder, got '{path}'$"):
            submit(head, "true", working_dir=path)
    Path(large).mkdir()
    Path(large, "weights").write_bytes(os.urandom(101 * 2**20))  # of random bytes a packed folder is no smaller
    with pytest.raises(
        ValueError,
        match=f"^working_dir, packed, must be within the cluster's size limit, got '{large}': .*[0-9].*: "
        r"list what the job does not need in \.rayignore$",
    ):
        submit(head, "true", working_dir=large)
    Path(large, "weights").unlink()  # pytest keeps the folders of three sessions
