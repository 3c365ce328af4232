"""The wheel, installed away from the repository: its files, its core alone, its jobs, and the config that it prints."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml
from ray.dashboard.modules.serve.sdk import ServeSubmissionClient

from rails_ray.on_ray.environment import ENVIRONMENT
from rails_ray.on_ray.serving.plan import NAME
from rails_ray.serving import client
from support.data_folders import write_text_data
from support.head_node import HeadNode, head_node, submit
from support.ports import free_port
from support.processes import wait_for

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[1]
SOURCES = ("rails_ray", "pyproject.toml", "README.md", "LICENSE")
BUILD = """
import sys
from setuptools import build_meta
folder = sys.argv[1]  # which setuptools changes
build_meta.build_sdist(folder)
build_meta.build_wheel(folder)
"""
# Prints where a job's driver and a task import the package from, and what they could import of the repository.
WHERE = """
import importlib.util, json, ray, rails_ray
ray.init(log_to_driver=False)
in_task = ray.remote(lambda: __import__("rails_ray").__file__).remote()
others = [name for name in ("jobs", "serve", "tests") if importlib.util.find_spec(name)]
print(json.dumps([rails_ray.__file__, ray.get(in_task), others]))
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist, made of a copy: nothing is written into the repository."""
    source, folder = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("built")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source)
    subprocess.run([sys.executable, "-c", BUILD, folder], cwd=source, check=True, capture_output=True)
    return folder


def test_the_wheel_and_the_sdist_hold_every_file_of_the_package_and_nothing_else_to_import(built: Path) -> None:
    files = [file for file in (ROOT / "rails_ray").rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    expected = {str(file.relative_to(ROOT)) for file in files}
    assert {"rails_ray/jobs/train.py", "rails_ray/serve_app.py", "rails_ray/py.typed"} < expected
    assert "rails_ray/packaged/emoji/CURRENT" in expected
    [wheel], [sdist] = built.glob("*.whl"), built.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as opened:
        names = set(opened.namelist())
    assert {name for name in names if ".dist-info/" not in name} == expected
    with tarfile.open(sdist) as archive:
        assert expected <= {name.partition("/")[2] for name in archive.getnames()}


@dataclass(frozen=True)
class Outside:
    """A virtual environment with the wheel, in a folder from which the repository is not to be seen.

    Args:
        python: its interpreter.
        folder: where commands run.
    """

    python: Path
    folder: Path

    def ended(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A command of the environment, at its end."""
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        command, *arguments = words
        path = self.python.parent / command
        return subprocess.run(
            [path, *arguments], cwd=self.folder, env=kept, capture_output=True, text=True, timeout=300, check=False
        )

    def run(self, *words: str) -> str:
        """A command of the environment to its end; what it printed."""
        done = self.ended(*words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def light(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Outside:
    """An environment with the wheel and what it asks for, without an extra."""
    folder = tmp_path_factory.mktemp("light")
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    made = Outside(folder / "venv" / "bin" / "python", folder)
    [wheel] = built.glob("*.whl")
    for wanted in ("torch==2.13.0", str(wheel)):
        done = made.ended("python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wanted)
        if "Could not find a version" in done.stderr or "Connection" in done.stderr:
            pytest.skip("the package index must answer to install the core, got no answer")
        assert done.returncode == 0, done.stderr
    return made


IN_ONE_PROCESS = """
import sys
import numpy as np
from rails_ray import local
vectors = np.eye(8, dtype=np.float32)
assert local.build(vectors, folder="built").search(vectors[3:4], k=1).results[0].items == [3]
assert local.open("built").search(vectors[5:6], k=1).results[0].items == [5]
print(local.open("emoji").search(["dog"], k=1).results[0].items[0])
assert not {"ray", "starlette", "pandas"} & set(sys.modules)
"""


def test_the_core_alone_builds_opens_queries_and_inspects(light: Outside, tmp_path: Path) -> None:
    assert light.run("python", "-c", IN_ONE_PROCESS).strip() == "\N{DOG}"
    assert "\N{DOG}" in light.run("rails-ray", "query", "dog", "--local", "--storage", "emoji")
    assert "text-mol" in light.run("rails-ray", "inspect", str(write_text_data(tmp_path / "data")))
    for words, extra in ((["train"], "ray"), (["serve", "--allow-anonymous"], "ray"), (["serve", "--single"], "serve")):
        done = light.ended("rails-ray", *words, *(["--allow-anonymous"] if extra == "serve" else []))
        assert done.returncode == 1
        assert re.fullmatch(rf"rails-ray: .* needs the package .*: pip install 'rails-ray\[{extra}\]'\n", done.stderr)


def test_the_wheel_carries_a_version_that_answers(outside: Outside) -> None:
    code = 'from rails_ray import local; print(local.open("emoji").search(["dog"], k=1).results[0].items[0])'
    assert outside.run("python", "-c", code).strip() == "\N{DOG}"


@pytest.fixture(scope="module")
def outside(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Outside:
    """An environment with the wheel alone. What the wheel needs is read from the environment of the tests, without that
    one's .pth files, which lead to the repository."""
    folder = tmp_path_factory.mktemp("outside")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    made = Outside(folder / "venv" / "bin" / "python", folder)
    [wheel] = built.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", made.python]
    subprocess.run([*pip, "install", "--no-deps", "--no-index", wheel], check=True, cwd=folder)
    own = Path(made.run("python", "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])").strip())
    (own / "needed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return made


@pytest.fixture(scope="module")
def head(outside: Outside) -> Iterator[HeadNode]:
    """A cluster whose machine has the wheel."""
    environment = {**ENVIRONMENT, "PYTHONPATH": ""}
    with head_node(environment=environment, python=str(outside.python), working_dir=outside.folder) as started:
        yield started


@pytest.mark.cluster
def test_what_is_installed_runs_jobs_and_deploys_the_config_that_it_prints(
    outside: Outside, head: HeadNode, tmp_path: Path
) -> None:
    installed = submit(head, "python", "-c", WHERE, working_dir=None)
    assert installed.code == 0, installed.log
    in_driver, in_task, of_repository = json.loads(installed.log.splitlines()[-1])
    assert in_driver == in_task
    assert Path(in_driver).is_relative_to(outside.folder)
    assert of_repository == []

    storage, data, port = tmp_path / "storage", write_text_data(tmp_path / "data"), free_port()
    words = ["baseline-bm25", "--data.folder", str(data), "--run", "v1", "--storage", str(storage), "--shards", "2"]
    ended = submit(head, "python", "-m", "rails_ray.jobs.pipeline", *words, "--min-hit-rate", "0", working_dir=None)
    assert ended.code == 0, ended.log
    assert (ended.told["job"], ended.told["version"]) == ("pipeline", "v1")

    served = ["--storage", str(storage), "--allow-anonymous", "--port", str(port), "--cpus", "0.1"]
    config = outside.run("rails-ray", "serve", "--print-config", *served)
    (outside.folder / "config.yaml").write_text(config)
    [application] = yaml.safe_load(config)["applications"]
    module, name = application["import_path"].split(":")
    outside.run("python", "-c", f"from {module} import {name}")
    outside.run("python", "-m", "ray.serve.scripts", "deploy", "config.yaml", "--address", head.address)
    serve = ServeSubmissionClient(head.address)

    def status() -> str:
        return str(serve.get_serve_details()["applications"][NAME]["status"])

    wait_for(lambda: status() in ("RUNNING", "DEPLOY_FAILED"), timeout_s=180)
    assert status() == "RUNNING", serve.get_serve_details()["applications"][NAME]
    answer = client.search(f"http://127.0.0.1:{port}", [{"text": "red"}], 3, cutoff={"top_k": 3})
    assert answer["version"] == "v1"
    texts = {item["item_id"]: item["text"] for item in pq.read_table(data / "items.parquet").to_pylist()}
    assert all("red" in texts[item] for item in answer["results"][0]["items"])
