"""`--exclude-seen` and `--no-exclude-seen`, and what commands say of sessions that come back to an item."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rails_ray.cli import stages
from rails_ray.cli.inspect import remarks
from rails_ray.cli.inspecting import facts
from rails_ray.cli.main import main, parse
from rails_ray.families.config import DataConfig
from rails_ray.families.data import read_data
from rails_ray.storage.filesystem import Storage
from rails_ray.training.evaluation.ranking import NOT_FOUND
from rails_ray.training.evaluation.seen import ALLOWED, EXCLUDED
from support.data_folders import write_text_data
from support.inspected import looked
from support.sessions import publish_repeating, sessions_config, write_sessions

SENTENCE = (
    "15 of the 50 relevant items of split test (30.0%) are in the history of their own query: answers leave them out "
    "in the first figure, as requests do by default, and may hold them in the second: choose one with --exclude-seen "
    "or --no-exclude-seen"
)
CHOICES: dict[bool | None, list[str]] = {None: [], True: ["--exclude-seen"], False: ["--no-exclude-seen"]}
COMMANDS = (
    ["train", "ml1m-sasrec"],
    ["pipeline", "ml1m-hstu-mol"],
    ["encode", "--run", "x"],
    ["evaluate"],
    ["calibrate"],
    ["tune"],
    ["inspect", "folder"],
)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
@pytest.mark.parametrize("choice", CHOICES)
def test_every_command_that_reads_queries_takes_the_choice(command: list[str], choice: bool | None) -> None:
    parsed: Any = parse([*command, *CHOICES[choice]])
    assert parsed.excludes_seen is choice
    if isinstance(parsed, stages.OfRecipe):
        assert parsed.chosen().data.exclude_seen is choice


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_both_choices_at_once_are_refused(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([*command, "--exclude-seen", "--no-exclude-seen"])
    assert stopped.value.code == 2
    assert "--exclude-seen and --no-exclude-seen are not allowed together" in capsys.readouterr().err


@pytest.mark.parametrize(("value", "choice"), [("True", True), ("False", False), ("None", None)])
def test_the_field_has_an_option_by_its_dotted_name(value: str, choice: bool | None) -> None:
    command = parse(["train", "ml1m-sasrec", "--data.exclude-seen", value])
    assert isinstance(command, stages.Train)
    assert command.chosen().data.exclude_seen is choice


def test_two_options_that_disagree() -> None:
    agreed = parse(["train", "ml1m-sasrec", "--data.exclude-seen", "False", "--no-exclude-seen"])
    assert isinstance(agreed, stages.Train)
    assert agreed.chosen().data.exclude_seen is False
    told = "--data.exclude-seen must agree with --no-exclude-seen, got True: give one of them"
    for command in ("train", "pipeline"):
        parsed = parse([command, "ml1m-sasrec", "--data.exclude-seen", "True", "--no-exclude-seen"])
        assert isinstance(parsed, stages.OfRecipe)
        with pytest.raises(ValueError, match=told):
            parsed.chosen()


@pytest.mark.parametrize("choice", CHOICES)
def test_data_that_options_name(choice: bool | None) -> None:
    """A choice alone leaves the data where they are, and data alone leave the choice."""
    former = DataConfig(folder="/a", items="/b", exclude_seen=True)
    assert stages.data_config(None) is None
    chosen = stages.data_config(None, exclude_seen=choice)
    if chosen is not None:
        assert chosen.over(former) == DataConfig(folder="/a", items="/b", exclude_seen=choice)
    assert DataConfig(folder="/c").over(former) == DataConfig(folder="/c", exclude_seen=True)
    assert DataConfig(items="/c").over(former) == DataConfig(folder="/a", items="/c", exclude_seen=True)


def slow_popularity(folder: Path, *, excludes_seen: bool) -> dict[str, float]:
    """The hit rates of popularity, by sorting."""
    read = read_data(sessions_config(folder), Storage("."))
    counts, queries, ranks = facts.training_queries_of_items(read), read.queries["test"], []
    for history, (wanted,) in zip(queries.inputs, queries.relevant, strict=True):
        hidden = set(history.tolist()) if excludes_seen else set()
        order = sorted(set(range(len(counts))) - hidden, key=lambda item: (-int(counts[item]), item))
        ranks.append(order.index(wanted) + 1 if wanted in order else NOT_FOUND)
    return {str(k): float(np.mean([rank <= k for rank in ranks])) for k in (1, 10, 50, 200)}


def test_inspect_has_popularity_with_seen_items_excluded_and_allowed(tmp_path: Path) -> None:
    folder = write_sessions(tmp_path / "sessions")
    [baseline] = looked(folder)["baselines"]
    assert baseline["hit_rate"] == slow_popularity(folder, excludes_seen=True)
    seen = baseline["seen_items"]
    assert seen["allowed"]["hit_rate"] == slow_popularity(folder, excludes_seen=False)
    assert (seen["is_excluded"], seen["num_seen"], seen["num_relevant"]) == (True, 15, 50)
    assert seen["allowed"]["hit_rate"]["50"] == 1 > baseline["hit_rate"]["50"] == 0.7


@pytest.mark.parametrize("choice", CHOICES)
def test_what_inspect_prints(choice: bool | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_sessions(tmp_path / "sessions")
    assert main(["inspect", str(folder), "--no-timing", *CHOICES[choice]]) == 0
    text = capsys.readouterr().out
    lines = {
        label: [line for line in text.splitlines() if f"popularity, {label}" in line] for label in (EXCLUDED, ALLOWED)
    }
    assert (SENTENCE in text.splitlines()) == (choice is None)
    assert [len(own) for own in lines.values()] == [choice is not False, choice is not True]
    for label, own in lines.items():
        rates = slow_popularity(folder, excludes_seen=label == EXCLUDED)
        assert all(f"{rates[k]:.4f}" in line for line in own for k in ("10", "1"))


@pytest.mark.parametrize("choice", [True, False])
def test_inspect_has_the_figure_of_the_choice(choice: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_sessions(tmp_path / "sessions")
    assert main(["inspect", str(folder), "--no-timing", "--json", *CHOICES[choice]]) == 0
    [baseline] = json.loads(capsys.readouterr().out)["baselines"]
    assert baseline["hit_rate"] == slow_popularity(folder, excludes_seen=choice)
    assert baseline["seen_items"] == {"is_excluded": choice, "num_seen": 15, "num_relevant": 50, "allowed": None}


def test_inspect_says_nothing_of_few(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One of fifty is 2%."""
    folder = write_sessions(tmp_path / "sessions", num_repeated=1)
    assert main(["inspect", str(folder), "--no-timing", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    [baseline] = report["baselines"]
    assert baseline["seen_items"] == {"is_excluded": True, "num_seen": 1, "num_relevant": 50, "allowed": None}
    assert not any("history of their own query" in told for told in remarks(report))
    assert main(["inspect", str(folder), "--no-timing"]) == 0
    assert "seen items" not in capsys.readouterr().out


def test_inspect_of_queries_without_histories_is_as_it_was(tmp_path: Path) -> None:
    [baseline] = looked(write_text_data(tmp_path / "texts"))["baselines"]
    assert baseline["seen_items"] is None


def test_tune_says_what_no_cut_off_keeps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    publish_repeating(tmp_path)
    told = (
        "left out: 15 of the 50 relevant items of split valid (30.0%) are in the history of their own query: "
        "requests exclude such items by default, so that no cut-off keeps them: choose with --exclude-seen or "
        "--no-exclude-seen"
    )
    for choice, options in CHOICES.items():
        assert main(["tune", "--cutoff", "top_k", "--storage", str(tmp_path), *options]) == 0
        assert (told in capsys.readouterr().out.splitlines()) == (choice is None)


def test_a_run_of_an_earlier_release_has_one_figure() -> None:
    validation = {"hit_rate": {"1": 0.5, "10": 0.75}, "mrr": 0.625, "cutoff_mass": None}
    told = "validation hit rate@1 0.5000, hit rate@10 0.7500, MRR 0.6250"
    assert stages.validated(validation) == [told]
    seen = {"is_excluded": True, "num_seen": 3, "num_relevant": 10, "allowed": None}
    assert stages.validated({**validation, "seen_items": seen}) == [f"{told}, {EXCLUDED}"]
    both = {**seen, "allowed": {"hit_rate": {"1": 0.75, "10": 1.0}, "mrr": 0.875, "lists": None}}
    assert stages.validated({**validation, "seen_items": both}) == [
        f"{told}, {EXCLUDED}",
        f"validation hit rate@1 0.7500, hit rate@10 1.0000, MRR 0.8750, {ALLOWED}",
    ]
    assert stages.validated({"hit_rate": {}, "mrr": 0.0}) == ["no queries to measure it with"]
