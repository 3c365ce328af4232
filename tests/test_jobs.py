"""What a job prints and ends with, without a cluster."""

import ast
import importlib
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rails_ray.cli import stages
from rails_ray.cli.main import COMMANDS, job, main
from rails_ray.storage.filesystem import Storage
from support.examples import encode
from support.processes import PATIENCE

ROOT = Path(__file__).parents[1]
JOBS = ("train", "encode", "calibrate", "publish", "evaluate", "pipeline", "refresh", "relevance", "train-ranker")
FOLDERS = ("rails_ray/jobs", "jobs")  # what is installed, and the names of old in the repository


def last_line(text: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(text.splitlines()[-1])
    return told


@pytest.mark.parametrize(
    ("name", "arguments", "code", "error"),
    [
        ("publish", ["--version", "v9", "--storage", "EMPTY"], 1, "version must be one that `rails-ray encode` has"),
        ("encode", ["--run", "r", "--storage", "relative"], 2, "a job's --storage must be s3://bucket/prefix, or an"),
        ("train", ["nope", "--storage", "EMPTY"], 2, "recipe must be one of emoji-mol, emoji-dot, text-mol, "),
        (
            "train",
            ["--training.speed", "9"],
            2,
            "the arguments must fit the command, got one that does not",
        ),
        ("pipeline", ["--min-hit-rate", "90", "--storage", "EMPTY"], 2, "min_hit_rate must be from 0 to 1, got 90"),
        ("publish", [], 2, "the arguments must fit the command, got one that does not"),
    ],
)
def test_a_job_that_fails_returns_the_code_and_says_why_in_its_last_line(
    name: str, arguments: list[str], code: int, error: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert job(name, [str(tmp_path) if word == "EMPTY" else word for word in arguments]) == code
    out, errors = capfd.readouterr()
    told = last_line(out)
    assert told.keys() == {"job", "error"}
    assert told["job"] == name
    assert told["error"].startswith(error)
    assert errors, "a person must be told as well"
    assert "Traceback" not in out + errors


def test_a_job_that_succeeds_tells_in_its_last_line_what_it_made(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    encode(Storage(str(tmp_path)), "v1", [3, 2])
    assert job("publish", ["--version", "v1", "--storage", str(tmp_path)]) == 0
    assert last_line(capfd.readouterr().out) == {"job": "publish", "version": "v1", "num_items": 5, "num_parts": 2}


@pytest.mark.parametrize("name", JOBS)
def test_help_is_no_jobs_end(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert job(name, ["--help"]) == 0
    out = capfd.readouterr().out
    assert f"rails-ray {name}" in out
    assert '{"job"' not in out


@pytest.mark.parametrize(
    ("raised", "error"),
    [
        (KeyError("x"), "KeyError: 'x'"),
        (KeyboardInterrupt(), "the job must end by itself, got an interruption"),
    ],
)
def test_a_job_that_breaks_off_says_so_in_its_last_line_and_shows_where(
    raised: BaseException, error: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def break_off(self: stages.Publish) -> dict[str, Any]:
        raise raised

    monkeypatch.setattr(stages.Publish, "run", break_off)
    with pytest.raises(type(raised)):
        job("publish", ["--version", "v1", "--storage", "/nowhere"])
    assert last_line(capfd.readouterr().out) == {"job": "publish", "error": error}


GOES_ON = {
    "train": "the same command with --resume --run NAME, the name of the run, goes on from the last checkpoint",
    "encode": "the same command with --version NAME, the name of the version, encodes the parts that are missing",
    "relevance": "the same command with the same --name scores the blocks that are missing",
    "publish": "run it again",
}
ARGUMENTS = {
    "train": [],
    "encode": ["--run", "r"],
    "relevance": ["--name", "m", "--folder", "f", "--ranker.path", "a:b"],
    "publish": ["--version", "v1"],
}


def stopped(self: Any) -> None:
    signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("name", GOES_ON)
@pytest.mark.parametrize("is_job", [True, False])
def test_sigterm_ends_a_command_with_a_sentence_that_says_how_it_goes_on(
    name: str, is_job: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    module, kind = COMMANDS[name].split(".")
    monkeypatch.setattr(getattr(importlib.import_module(f"rails_ray.cli.{module}"), kind), "run", stopped)
    before, arguments = signal.getsignal(signal.SIGTERM), [*ARGUMENTS[name], "--storage", str(tmp_path)]
    assert (job(name, arguments) if is_job else main([name, *arguments])) == 143
    out, errors = capfd.readouterr()
    assert errors == f"rails-ray: {name} was stopped by SIGTERM before its end: {GOES_ON[name]}\n"
    error = {"job": name, "error": "the job must end by itself, got signal 15"}
    assert [json.loads(line) for line in out.splitlines()] == ([error] if is_job else [])
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("arguments", [[], ["publish"], ["--help"], ["publish", "--help"], ["--version"]])
def test_any_other_exit_is_as_it_was(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == (0 if {"--help", "--version"} & set(arguments) else 2)
    assert "SIGTERM" not in capfd.readouterr().err


SLOW = """
import signal, sys
from rails_ray.cli import main, stages
def slow(self):
    print("begun", flush=True)
    signal.pause()
stages.Publish.run = slow
arguments = ["--version", "v1", "--storage", "/nowhere"]
sys.exit(main.job("publish", arguments) if sys.argv[1] == "job" else main.main(["publish", *arguments]))
"""


@pytest.mark.long
@pytest.mark.parametrize("door", ["job", "command"])
def test_a_process_that_gets_sigterm_ends_without_a_traceback(door: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, door], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGTERM)
        out, errors = process.communicate(timeout=PATIENCE * 30)
    finally:
        process.kill()
    assert process.returncode == 143
    assert errors == "rails-ray: publish was stopped by SIGTERM before its end: run it again\n"
    assert bool(out) == (door == "job")


def test_a_job_takes_its_arguments_from_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["jobs/encode.py", "--run", "r", "--storage", "relative"])
    assert job("encode") == 2
    assert "got 'relative'" in last_line(capfd.readouterr().out)["error"]


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_jobs_hold_no_logic_and_importing_them_does_nothing(folder: str) -> None:
    files = [ROOT / folder / f"{name.replace('-', '_')}.py" for name in JOBS]
    makes_package_data = ROOT / "jobs" / "packaged_emoji.py"
    assert sorted(files) == sorted({*(ROOT / folder).glob("[a-z]*.py")} - {makes_package_data})
    for name, file in zip(JOBS, files, strict=True):
        document, system, command, guard = ast.parse(file.read_text()).body
        assert isinstance(document, ast.Expr)
        assert ast.unparse([system, command]) == "import sys\nfrom rails_ray.cli.main import job"
        assert ast.unparse(guard) == f"if __name__ == '__main__':\n    sys.exit(job({name!r}))"
    modules = ", ".join(f"{folder.replace('/', '.')}.{file.stem}" for file in files)
    done = subprocess.run(
        [sys.executable, "-c", f"import sys, {modules}; sys.exit('ray' in sys.modules)"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
