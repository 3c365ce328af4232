"""The `rails-ray` command: arguments in, an exit code out."""

import ast
import importlib
import itertools
import json
import logging
import os
import re
import secrets
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import make_dataclass
from functools import reduce
from importlib.util import find_spec
from operator import or_
from pathlib import Path
from typing import Annotated, Any

import tyro

from rails_ray import __version__
from rails_ray.cli import Command
from rails_ray.cli.base import (
    EXIT_BAD_ARGUMENT,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_TERMINATED,
    Stored,
    errors,
    fail,
    out,
)
from rails_ray.errors import RailsRayError
from rails_ray.paths import expanded

DESCRIPTION = "Train, index and serve retrieval with learned similarities on Ray."

COMMANDS = {  # each in a module of `rails_ray.cli`, which is imported when the command is named: some import torch
    "quickstart": "stages.Quickstart",
    "train": "stages.Train",
    "train-ranker": "rankers.TrainRanker",
    "relevance": "relevance.Relevance",
    "encode": "encode.Encode",
    "publish": "stages.Publish",
    "evaluate": "stages.Evaluate",
    "calibrate": "stages.Calibrate",
    "tune": "tune.Tune",
    "pipeline": "pipeline.Pipeline",
    "serve": "serving.Serve",
    "new-key": "keys.NewKey",
    "query": "query.Query",
    "index": "index.IndexCommand",
    "items": "items.ItemsCommand",
    "refresh": "refresh.Refresh",
    "plan": "plan.PlanDeployment",
    "inspect": "inspect.InspectData",
}
RESUMED = {  # how a command goes on that a signal has ended
    "train": "the same command with --resume --run NAME, the name of the run, goes on from the last checkpoint",
    "encode": "the same command with --version NAME, the name of the version, encodes the parts that are missing",
    "pipeline": "the same command with --resume --run NAME, the name of the run, goes on from the last checkpoint",
    "relevance": "the same command with the same --name scores the blocks that are missing",
}
WITH_RECIPE = ("train", "pipeline")
OF_VERSION = ("publish", "evaluate", "calibrate", "tune", "serve")  # whose version may stand first, without its option
COMPLETION = "--print-completion"
NOTING = ("rails_ray.families.running", "rails_ray.families.encoding")  # modules that log notes on the data


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code. An error that a user can cause is one sentence on stderr."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with _ending_at_sigterm(), _each_note_once():
            command = parse(arguments)
            _quiet_ray()
            command.run()
    except ValueError as error:
        return _fail(error, EXIT_BAD_ARGUMENT)
    except (RailsRayError, OSError) as error:
        return _fail(error, EXIT_FAILED)
    except KeyboardInterrupt:
        errors.print("rails-ray: stopped")
        return EXIT_INTERRUPTED
    except SystemExit as error:
        return _terminated(next(iter(arguments), ""), error)
    return 0


@contextmanager
def _ending_at_sigterm() -> Iterator[None]:
    """Inside the block, SIGTERM raises SystemExit with its number, as it does where Ray is connected."""
    if threading.current_thread() is not threading.main_thread():  # where Python takes no handlers
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _each_note_once() -> Iterator[None]:
    """Inside the block, what is noted of the data is said once, although a command may read them for several stages."""
    said = set[str]()

    def is_new(record: logging.LogRecord) -> bool:
        note, num_said = record.getMessage(), len(said)
        said.add(note)
        return len(said) > num_said

    loggers = [logging.getLogger(name) for name in NOTING]
    for logger in loggers:
        logger.addFilter(is_new)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_new)


def _terminated(name: str, error: SystemExit) -> int:
    """Say that SIGTERM has ended a command, and how it goes on; raise any other exit again."""
    if error.code != signal.SIGTERM:
        raise error
    how = RESUMED.get(name.replace("_", "-"), "run it again")
    fail(f"{name} was stopped by SIGTERM before its end: {how}")
    return EXIT_TERMINATED


def job(name: str, arguments: Sequence[str] | None = None) -> int:
    """Run a command as a job on the cluster that it was submitted to, and return its exit code.

    The last line on stdout is JSON: {"job": name} with the command's results, or with its `error`.

    Args:
        arguments: the command's arguments, without its name.
    """
    code = EXIT_FAILED
    result: dict[str, Any] | None = {"error": "the job must end by itself, got an interruption"}
    try:
        with _ending_at_sigterm(), _each_note_once():
            command = _parsed([name, *(sys.argv[1:] if arguments is None else arguments)])
            if command is None:  # help: no job has ended
                result = None
                return 0
            _check_storage(command)
            _quiet_ray()
            result = command.run() or {}
        code = 0
    except (ValueError, RailsRayError, OSError) as error:
        code = _fail(error, EXIT_BAD_ARGUMENT if isinstance(error, ValueError) else EXIT_FAILED)
        result = {"error": str(error)}
    except SystemExit as error:  # `ray job stop` sends SIGTERM
        result = {"error": f"the job must end by itself, got signal {error.code}"}
        code = _terminated(name, error)
    except Exception as error:
        result = {"error": f"{type(error).__name__}: {error}"}
        raise
    finally:
        if result is not None:
            print(json.dumps({"job": name, **result}), flush=True)
    return code


def _parsed(arguments: Sequence[str]) -> Any:
    """The command; None if the arguments ask only for help.

    Raises:
        ValueError: if an argument is wrong; tyro has said on stderr which.
    """
    try:
        return parse(arguments)
    except SystemExit as error:
        if error.code == signal.SIGTERM:
            raise
        if error.code:
            raise ValueError("the arguments must fit the command, got one that does not: the log names it") from None
        return None


def _check_storage(command: Any) -> None:
    """Raises:
    ValueError: if storage lies in the working directory: Ray deletes a job's copy of it.
    """
    if not isinstance(command, Stored):
        return
    if "://" not in command.storage and not expanded(command.storage).is_absolute():
        raise ValueError(
            "a job's --storage must be s3://bucket/prefix, or an absolute folder that all machines of the cluster "
            f"share, got {command.storage!r}"
        )


def parse(arguments: Sequence[str]) -> Command:
    """The command that these arguments name.

    Raises:
        ValueError: if a recipe is unknown.
        SystemExit: if an argument is wrong or asks for help or for shell completion, as in `argparse`.
    """
    if arguments == ["--version"]:
        out.print(__version__)
        raise SystemExit(0)
    if arguments[:1] == [COMPLETION]:  # it has all options of all commands
        return _among({name: _imported(name) for name in COMMANDS}, [f"--tyro{COMPLETION[1:]}", *arguments[1:2]])
    name = arguments[0].replace("_", "-") if arguments else ""
    if name not in COMMANDS:
        return _among({name: _outline(name) for name in COMMANDS}, arguments)
    kind = _imported(name)
    if name in OF_VERSION and len(arguments) > 1 and not arguments[1].startswith("-"):
        arguments = [name, "--version", *arguments[1:]]
    if name not in WITH_RECIPE:
        command: Command = tyro.cli(kind, prog=f"rails-ray {name}", args=arguments[1:])
        return command
    from rails_ray.cli.stages import DEFAULT_RECIPE
    from rails_ray.families.recipes import by_name, names

    def parsed(recipe: str) -> Any:  # the recipe decides the fields and their defaults
        default = kind(recipe=recipe, config=by_name(recipe).with_kinds(_kinds(arguments)))
        return tyro.cli(kind, prog=f"rails-ray {name}", args=arguments[1:], default=default)

    named = next((word for word in arguments[1:] if word in names()), DEFAULT_RECIPE)
    first = parsed(named)
    # The recipe may be unknown, or an option's value may look like a recipe.
    found: Command = first if first.recipe == named else parsed(first.recipe)
    return found


def _among(kinds: Mapping[str, Any], arguments: Sequence[str]) -> Command:
    """Parse arguments that may name any of several commands."""
    members: list[Any] = [Annotated[kind, tyro.conf.subcommand(name)] for name, kind in kinds.items()]
    found: Command = tyro.cli(reduce(or_, members), prog="rails-ray", description=DESCRIPTION, args=arguments)
    return found


def _imported(name: str) -> Any:
    module, _, kind = COMMANDS[name].partition(".")
    return getattr(importlib.import_module(f"{__package__}.{module}"), kind)


def _outline(name: str) -> type:
    """A command without options, described as the command is: read from its source, as an import takes seconds."""
    module, _, kind = COMMANDS[name].partition(".")
    found = find_spec(f"{__package__}.{module}")
    assert found is not None
    assert found.origin is not None
    for node in ast.parse(Path(found.origin).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name == kind:
            return make_dataclass(kind, [], namespace={"__doc__": ast.get_docstring(node)})
    raise AssertionError(f"{module} has no {kind}")


def _kinds(arguments: Sequence[str]) -> dict[str, str]:
    """The kinds that `--NAME.kind KIND` chooses. They decide which other options exist."""
    words = [part for argument in arguments for part in argument.split("=", 1)]
    found = {}
    for word, kind in itertools.pairwise(words):
        option = re.fullmatch(r"--([\w.-]+)\.kind", word)
        if option is not None:
            found[option[1].replace("-", "_")] = kind
    return found


def _quiet_ray() -> None:
    """Keep Ray quiet, so that our own progress can be seen. Ray reads its environment when it is first imported."""
    if not os.environ.get("RAY_ADDRESS", "").strip():  # give our own cluster its own secret, not one in the home folder
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    os.environ.setdefault("RAY_DATA_LOG_LEVEL", "CRITICAL")


def _fail(error: Exception, code: int) -> int:
    fail(error)
    return code
