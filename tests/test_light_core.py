"""The core alone, without the packages of any extra."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from support.data_folders import write_text_data, write_vector_data
from support.examples import publish_here
from support.hidden import run_without
from support.sources import ROOT

EXTRAS = {
    *("ray", "fastapi", "starlette", "uvicorn", "httptools", "prometheus_client", "numba", "s3fs", "aiobotocore"),
    *("botocore", "boto3", "aiohttp", "msgpack", "yaml", "psutil", "requests", "tokenizers", "emoji", "matplotlib"),
    *("obstore", "sklearn", "transformers", "sentence_transformers", "h5py", "lightgbm", "rdkit", "apted"),
}
ON_RAY = {
    "quickstart": [],
    "train": ["vector-cosine", "--data.folder", "data"],
    "pipeline": ["vector-cosine", "--data.folder", "data"],
    "encode": ["--recipe", "vector-cosine", "--folder", "data", "--workers", "2"],
    "evaluate": [],
    "calibrate": [],
    "relevance": ["--name", "x", "--folder", "data"],
    "serve": ["--allow-anonymous"],
}
RUN = """
import importlib, io, json
from rails_ray.cli import base
from rails_ray.cli.main import main
def carried_out(words):
    base.errors.file = io.StringIO()
    return main(words), base.errors.file.getvalue()
def refused(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
"""


def result_of(code: str) -> Any:
    """The JSON that code prints last, in a process without the extras."""
    done = run_without(EXTRAS, RUN + code)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.long
def test_versions_are_built_opened_searched_and_inspected(tmp_path: Path) -> None:
    publish_here(tmp_path / "storage")
    data, built = write_text_data(tmp_path / "data"), str(tmp_path / "built")
    vectors, encoded = str(write_vector_data(tmp_path / "vectors")), str(tmp_path / "encoded")
    here = ["--storage", str(tmp_path / "storage")]
    commands = [
        ["query", "red", "--local", *here],
        ["inspect", str(data), "--no-timing"],
        ["index", "list", *here],
        ["index", "verify", *here],
        ["publish", "--version", "v1", "--storage", built],
        ["tune", *here],
        ["plan", "--items", "1000"],
        ["encode", "--recipe", "vector-cosine", "--folder", vectors, "--version", "v", "--storage", encoded],
        ["publish", "--version", "v", "--storage", encoded],
    ]
    code = f"""
import numpy as np
from rails_ray import local
vectors = np.eye(8, dtype=np.float32)
assert local.build(vectors, folder={built!r}).search(vectors[3:4], k=1).results[0].items == [3]
assert local.open({built!r}).search(vectors[5:6], k=1).results[0].items == [5]
print(json.dumps([carried_out(words) for words in {commands!r}]))
"""
    assert result_of(code) == [[0, ""]] * len(commands)


@pytest.mark.long
def test_what_needs_an_extra_says_which(tmp_path: Path) -> None:
    publish_here(tmp_path)
    commands = [
        *([name, *words] for name, words in ON_RAY.items()),
        ["serve", "--single", "--allow-anonymous", "--storage", str(tmp_path)],
        ["index", "list", "--storage", "s3://bucket/x"],
        ["index", "list", "--storage", "az://bucket/x"],
    ]
    code = f"""
from rails_ray import on_ray
from rails_ray.data import emoji
from rails_ray.modules.encoders import tokenizer
calls = [lambda: on_ray.train, lambda: emoji.tables(1, 1, 0), lambda: tokenizer.learn(["a"], 300)]
print(json.dumps([[carried_out(words) for words in {commands!r}], [refused(call) for call in calls]]))
"""
    of_commands, of_calls = result_of(code)
    subjects = [
        *((f"rails-ray {name}", "ray", "ray") for name in ON_RAY),
        ("rails-ray serve --single", "fastapi", "serve"),
        ("storage s3://..", "s3fs", "clouds"),
        ("storage az://..", "obstore", "clouds"),
        ("rails_ray.on_ray.train", "ray", "ray"),
        ("the emoji data set", "emoji", "ray"),
        ("a tokenizer", "tokenizers", "ray"),
    ]
    said = [
        f"{what} needs the package {name}, got none: pip install 'rails-ray[{extra}]'" for what, name, extra in subjects
    ]
    assert of_commands == [[1, f"rails-ray: {sentence}\n"] for sentence in said[: len(commands)]]
    assert of_calls == [f"UnsupportedError: {sentence}" for sentence in said[len(commands) :]]


def test_each_extra_that_a_sentence_names_has_the_package() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra, packages in {
        "ray": {"ray[data,train,serve,default]>=2.60", "emoji", "tokenizers"},
        "serve": {"fastapi", "uvicorn", "httptools", "prometheus_client"},
        "clouds": {"s3fs>=2025.3", "aiobotocore", "obstore"},
    }.items():
        assert packages <= set(extras[extra])
