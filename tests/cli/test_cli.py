"""The command: what it prints, where it stops, and with which exit code."""

import importlib
import socket
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from rails_ray.cli import stages
from rails_ray.cli.main import COMMANDS, EXIT_BAD_ARGUMENT, EXIT_FAILED, main, parse
from rails_ray.families import calibrations
from rails_ray.on_ray.pipelining import Outcome
from rails_ray.storage import manifest, versions
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.runs import Run
from rails_ray.training.evaluation.report import HIT_RATES, Report
from support.calibrations import STORED
from support.examples import encode
from support.responses import search_response


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([command, "--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    assert f"rails-ray {command}" in text


WITHOUT_TORCH = """
import sys
from rails_ray.cli.main import EXIT_BAD_ARGUMENT, main
try:
    main(sys.argv[1:])
except SystemExit as stopped:
    assert stopped.code == 0, stopped.code
heavy = {"torch", "ray", "numpy", "scipy", "pyarrow"} & set(sys.modules)
assert not heavy, heavy
"""


def test_help_imports_no_command_and_describes_each_as_its_class_does(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.replace("│", " ").split())
    for command, place in COMMANDS.items():
        module, _, kind = place.partition(".")
        described = getattr(importlib.import_module(f"rails_ray.cli.{module}"), kind).__doc__.split("\n\n")[0]
        assert f"• {command} {' '.join(described.split())}" in said


@pytest.mark.parametrize("arguments", [[], ["nope"], ["--nope"]])
def test_what_is_no_command_is_told_those_there_are(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert "train-ranker" in "".join(capsys.readouterr())


def test_a_command_may_be_written_with_an_underscore() -> None:
    assert type(parse(["new_key", "--rate", "2"])) is type(parse(["new-key", "--rate", "2"]))


@pytest.mark.parametrize("name", ["publish", "evaluate", "calibrate", "tune", "serve"])
def test_a_version_may_be_named_without_its_option(name: str) -> None:
    options = ["--storage", "s"]
    assert parse([name, "v1", *options]) == parse([name, "--version", "v1", *options])
    with pytest.raises(SystemExit):
        parse([name, "v1", "v2", *options])


def test_a_shell_completes_commands_and_their_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--print-completion", "bash"])
    assert not stopped.value.code
    script = capsys.readouterr().out
    assert "complete" in script
    for word in ("train-ranker", "--allow-anonymous", "--num-candidates", "--run"):
        assert word in script


def test_a_recipes_fields_are_overridden_by_their_dotted_names() -> None:
    command = parse(
        ["train", "emoji-dot", "--training.num-steps", "7", "--data.folder", "/x", "--similarity.temperature", "0.2"]
    )
    assert isinstance(command, stages.Train)
    assert command.config.name == "emoji-dot"
    assert command.config.training.num_steps == 7
    assert command.config.training.batch_size == 512
    assert command.config.data.folder == "/x"
    assert command.config.family.similarity.temperature == 0.2


def test_the_recipe_may_stand_anywhere() -> None:
    for arguments in (["--run", "x", "emoji-dot"], ["emoji-dot", "--run", "x"], ["--run", "emoji-mol", "emoji-dot"]):
        command = parse(["train", *arguments])
        assert isinstance(command, stages.Train)
        assert command.config.name == command.recipe == "emoji-dot"
    with pytest.raises(ValueError, match=r"recipe must be one of emoji-mol, emoji-dot, text-mol, .*, got 'nope'"):
        parse(["train", "--run", "x", "nope"])


def test_a_query_is_no_markup() -> None:
    from io import StringIO

    from rich.console import Console

    from rails_ray.cli import rendering

    answer = search_response(items=["[/b]"], scores=[0.5], threshold=0.1)
    console = Console(file=StringIO(), width=100)
    console.print(rendering.answers(["x [/b] [red] :pizza:"], answer, answer, "title"))
    assert "x [/b] [red] :pizza:" in console.file.getvalue()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--training.num-steps", "0"], "num_steps must be at least 1, got 0"),
        (["train", "--training.speed", "9"], "--training.speed"),
        (["quickstart", "--port", "http"], "http"),
    ],
)
def test_an_argument_that_cannot_be_is_told_and_exits_with_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    text = capsys.readouterr().err
    assert message in text
    assert "Traceback" not in text


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            ["train", "nope"],
            2,
            "recipe must be one of emoji-mol, emoji-dot, text-mol, text-dot, text-transformer-mol, ",
        ),
        (["query"], 2, "at least 1 query must be given, got none"),
        (["query", "pizza", "--url", "http://127.0.0.1:1"], 1, "a rails-ray server must answer at http://127.0.0.1:1"),
        (["query", "pizza", "--url", "nonsense"], 1, "a rails-ray server must answer at nonsense"),
        (["publish", "--version", "v9", "--storage", "EMPTY"], 1, "version must be one that `rails-ray encode`"),
        (["serve", "--allow-anonymous", "--storage", "EMPTY"], 1, "storage must hold a published version, got none"),
        (["quickstart", "--port", "70000"], 2, "port must be from 1 to 65535, got 70000"),
        (
            ["serve", "--allow-anonymous", "--storage", "ftp://bucket/x"],
            2,
            "az://container/prefix or gs://bucket/prefix, got ftp://",
        ),
        (["serve", "--storage", "EMPTY"], 2, "give --keys-file, or --allow-anonymous to answer anyone, got neither"),
        (["serve", "--allow-anonymous", "--gpus", "1.5", "--storage", "EMPTY"], 2, "num_gpus must be a part of one"),
        (
            ["serve", "--allow-anonymous", "--cutoff", "coverage", "1.5"],
            2,
            "--cutoff coverage must be less than 1, got 1.5",
        ),
        (["serve", "--allow-anonymous", "--cutoff", "top_k", "2.5"], 2, "--cutoff top_k must be an integer, got 2.5"),
        (
            ["calibrate", "--split", "dev", "--version", "v9", "--storage", "EMPTY"],
            1,
            "version must be one of the ",
        ),
        (["pipeline", "nope"], 2, "recipe must be one of emoji-mol"),
        (
            ["serve", "--allow-anonymous", "--host", "0.0.0.0"],
            2,
            "profile local must listen on loopback, got --host 0.0.0.0: use --profile production",
        ),
        (
            ["train", "ml1m-sasrec", "--storage", "EMPTY"],
            2,
            "needs a data set with items and interactions, got none: give its folder with --data.folder",
        ),
        (
            ["train", "text-solar", "--run", "typo", "--resume", "--storage", "EMPTY"],
            2,
            "--resume needs --run to name a run that was begun in",
        ),
        (
            ["index", "show", "v9", "--storage", "EMPTY"],
            1,
            ", which has none, got 'v9'",
        ),
        (["encode", "--storage", "EMPTY"], 2, "encode must have --run or --recipe, got neither: name a run, or"),
        (
            ["encode", "--recipe", "vector-dot", "--storage", "EMPTY"],
            2,
            "--recipe must name a recipe that trains nothing, got vector-dot: run `rails-ray train vector-dot`",
        ),
        (
            ["encode", "--run", "r", "--nlist", "9", "--storage", "EMPTY"],
            2,
            "--nlist must be given with --index ivf, got none",
        ),
        (
            ["encode", "--run", "r", "--index", "flat", "--hnsw-m", "9", "--storage", "EMPTY"],
            2,
            "--hnsw-m must be given with --index hnsw, got flat",
        ),
        (
            ["encode", "--run", "r", "--index", "nope", "--storage", "EMPTY"],
            2,
            "--index must be one of flat, ivf, hnsw, got nope",
        ),
        (["encode", "--recipe", "nope", "--storage", "EMPTY"], 2, "recipe must be one of emoji-mol, "),
        (["index", "rollback", "--storage", "EMPTY"], 1, "a version must have been current before to roll back to it"),
        (["index", "verify", "--storage", "EMPTY"], 1, "storage must hold a published version, got none"),
    ],
)
def test_a_mistake_is_one_sentence(
    arguments: list[str], code: int, message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path) if word == "EMPTY" else word for word in arguments]) == code
    text = capfd.readouterr().err
    assert message in text
    assert text.startswith("rails-ray: ")
    assert text.count("\n") == 1
    assert "Traceback" not in text


def test_a_port_in_use_is_told_before_anything_is_done(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["quickstart", "--storage", str(tmp_path / "s"), "--port", str(port)]) == 1
    assert f"port must be free, got {port}" in capfd.readouterr().err
    assert not (tmp_path / "s").exists()


def test_versions_are_listed_shown_verified_and_rolled_back(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    store = Storage(str(tmp_path))
    for name in ("v1", "v2"):
        versions.publish(store, encode(store, name, [3, 2]), "2026-01-01T00:00:00Z")
    encode(store, "v3", [2])

    def said(*arguments: str, code: int = 0) -> tuple[str, str]:
        assert main(["index", *arguments, "--storage", str(tmp_path)]) == code
        return capfd.readouterr()

    lines = {line.split("│")[1].strip(): line for line in said("list")[0].splitlines() if line.startswith("│")}
    assert "published" in lines["v1"]
    assert "current" in lines["v2"]
    assert "encoded" in lines["v3"]
    assert "shard 1 from item 3" in said("show")[0]
    assert "version v2: 4 files, 5 items, all as published" in said("verify")[0]
    assert "version v1 is current" in said("rollback")[0]
    assert versions.current_version(store) == "v1"
    assert "version v2 is current" in said("rollback", "v2")[0]

    part = tmp_path / versions.read_manifest(store, "v2").parts[1].path
    whole = part.read_bytes()
    part.write_bytes(whole[:-1])
    damage = said("verify", code=EXIT_FAILED)[1]
    assert f"{part.name} of version v2 must have the sha256 of its manifest" in damage
    assert "all 4 files of v2 must be whole, got 1 damaged" in damage
    assert "Traceback" not in damage
    part.write_bytes(whole)

    assert "calibrated" not in said("verify", "v1")[0]
    calibrations.write(store, "v1", STORED)
    assert "calibrated at 2026-01-01T00:00:00Z on 90 queries" in said("verify", "v1")[0]
    table = next((tmp_path / "versions" / "v1").glob("calibration-*.parquet"))
    table.write_bytes(table.read_bytes()[:-1])
    assert (
        f"{table.name} must hold the bytes that `rails-ray calibrate` wrote"
        in said("verify", "v1", code=EXIT_FAILED)[1]
    )


@pytest.mark.parametrize("replaced", [False, True], ids=["a number", "the whole"])
def test_a_manifest_that_was_changed_is_told_and_written_anew(
    replaced: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    store = Storage(str(tmp_path))
    made = versions.publish(store, encode(store, "v1", [3, 2]), "2026-01-01T00:00:00Z")
    path, last = tmp_path / "versions" / "v1" / "manifest.json", ["--storage", str(tmp_path)]
    if replaced:
        path.write_bytes(manifest.to_json(replace(made, cutoff_mass=0.19)))
        told = f"manifest.json must be the manifest that CURRENT names, {made.sha256[:12]}, got "
    else:
        path.write_text(path.read_text().replace('"cutoff_mass": 0.9', '"cutoff_mass": 0.19'))
        told = "manifest.json must name the sha256 of its other fields, "
    for command in (["index", "verify"], ["index", "verify", "v1"], ["index", "show"], ["serve", "--allow-anonymous"]):
        capfd.readouterr()
        assert main([*command, *last]) == EXIT_FAILED
        out, errors = capfd.readouterr()
        assert "all as published" not in out
        assert errors.startswith(f"rails-ray: {path.parent}/{told}")
        assert errors.endswith(": rewrite it with `rails-ray publish --version v1`\n")
        assert errors.count("\n") == 1
    assert main(["publish", "--version", "v1", *last]) == 0
    assert main(["index", "verify", *last]) == 0
    assert "version v1: 4 files, 5 items, all as published" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("gate", "churn", "line"),
    [
        (["--max-churn", "0.2"], 0.125, "churn@10: 0.1250"),
        (["--max-churn", "0.2", "--k", "1"], None, "churn@1: no other version was current, which passes"),
        ([], None, None),
    ],
)
def test_a_pipeline_says_how_far_answers_have_changed(
    gate: list[str],
    churn: float | None,
    line: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = Storage(str(tmp_path))
    made = versions.publish(store, encode(store, "v1", [3]), "2026-01-01T00:00:00Z")
    run = Run(name="v1", config=b"", weights_sha256={}, validation={}, training={})
    report = Report("test", 1, 3, dict.fromkeys(HIT_RATES, 0.5), mrr=0.5, cutoff_mass=None, lists=None)
    monkeypatch.setattr("rails_ray.on_ray.cluster.cluster", lambda num_cpus: nullcontext())
    monkeypatch.setattr(
        "rails_ray.on_ray.pipelining.pipeline", lambda *_, **given: Outcome(run, made, report, None, churn)
    )
    result = parse(["pipeline", "--storage", str(tmp_path), *gate]).run()
    assert result is not None
    assert result["churn"] == churn
    said = [text for text in capsys.readouterr().out.splitlines() if text.startswith("churn")]
    assert said == ([] if line is None else [line])


def test_a_run_without_data_starts_no_cluster(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def started(*arguments: object) -> None:
        raise AssertionError("a mistake must be found first")

    monkeypatch.setattr("rails_ray.on_ray.cluster.cluster", started)
    for command in ("train", "pipeline"):
        assert main([command, "ml1m-sasrec", "--storage", "nowhere"]) == EXIT_BAD_ARGUMENT
        assert (
            "needs a data set with items and interactions, got none: give its folder with --data.folder"
            in capsys.readouterr().err
        )
