"""Which module may import which: rules that import-linter has no words for."""

import ast
import re
import tomllib
from collections import Counter
from pathlib import Path

from support.examples import publish_here
from support.hidden import run_without
from support.sources import ROOT, imported, modules_of, sources

MATHEMATICS = ("kernels", "modules", "search", "cutoffs", "reranking")


def test_the_mathematics_runs_where_only_torch_numpy_scipy_and_jaxtyping_are() -> None:
    blocked = {
        "ray",
        "tokenizers",
        "regex",
        "numba",
        "mmh3",
        "pyarrow",
        "faiss",
        "fsspec",
        "s3fs",
        "pydantic",
        "rich",
        "tyro",
        "httpx",
        "emoji",
        "fastapi",
        "sklearn",
        "rdkit",
        "apted",
    }
    names = [*modules_of(*MATHEMATICS), *(name for name in modules_of("families") if name.endswith(".model"))]
    names.remove("rails_ray.kernels.compiled_loops")  # imported where there is numba
    code = f"""
import importlib
for name in {names!r}:
    importlib.import_module(name)
import torch
from rails_ray.search.methods.brute_force import BruteForce
from rails_ray.modules.similarities.dot_product import DotProduct, DotProductConfig
from rails_ray.modules.similarities.states import ItemState, QueryState
from rails_ray.search.spec import SearchSpec
vectors = torch.eye(4)[:, None]
query = QueryState(vectors[:2], None, torch.ones(2))
found = BruteForce(DotProduct(DotProductConfig()), ItemState(vectors, None, vectors[:, 0])).search(query, SearchSpec(1))
assert found.item_rows.tolist() == [[0], [1]]
"""
    done = run_without(blocked, code)
    assert done.returncode == 0, done.stderr


def test_training_and_evaluation_run_without_ray() -> None:
    names = modules_of("training", "data", "storage", "families")
    names.remove("rails_ray.storage.s3")  # imported where a root is on S3, and there alone
    code = f"""
import importlib
for name in {names!r}:
    importlib.import_module(name)
"""
    done = run_without({"ray", "faiss", "fsspec", "s3fs", "botocore", "aiobotocore"}, code)
    assert done.returncode == 0, done.stderr


def test_what_serves_imports_neither_training_nor_ray(tmp_path: Path) -> None:
    """Neither does a search in the process: it opens a version and encodes queries."""
    publish_here(tmp_path)
    code = f"""
import sys
import rails_ray.client, rails_ray.local
opened = rails_ray.local.open({str(tmp_path)!r})
assert len(opened.search([{{"text": "red"}}], k=3).results[0].items) == 3
import rails_ray.serving.engine, rails_ray.serving.http.api
found = [name for name in sys.modules if name.startswith(("ray.", "rails_ray.training"))]
assert not found, found
"""
    done = run_without({"ray"}, code)
    assert done.returncode == 0, done.stderr


def test_the_client_and_the_schema_need_no_torch() -> None:
    names = [*modules_of("schema"), "rails_ray.client"]
    blocked = {"torch", "numpy", "pyarrow", "ray", "faiss"}
    done = run_without(blocked, f"import importlib\nfor name in {names!r}:\n    importlib.import_module(name)")
    assert done.returncode == 0, done.stderr


def test_nothing_in_the_package_imports_what_is_not_installed_with_it() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert settings["tool"]["setuptools"]["packages"]["find"]["include"] == ["rails_ray*"]
    for path, source in sources().items():
        assert not {name.split(".")[0] for name in imported(source)} & {"serve", "jobs", "tests"}, path


def test_nothing_that_is_printed_or_deployed_names_a_module_that_is_not_installed() -> None:
    """The benches aside, which the repository alone has. Documents may name the repository's own names too."""
    lacking = re.compile(r"(?<![\w.])(serve\.app\b|jobs\.(?!benches\b|plots\b)[a-z]\w*)")
    assert lacking.findall("serve.app:build, python -m jobs.train, rails_ray.jobs.train") == ["serve.app", "jobs.train"]
    files = [*(ROOT / "rails_ray").rglob("*.py"), *(ROOT / "k8s").rglob("*.yaml"), ROOT / "serve" / "config.yaml"]
    assert {str(file): found for file in files if (found := lacking.findall(file.read_text()))} == {}


def test_no_test_imports_another() -> None:
    tests = sources("tests")
    others = {path.removeprefix("tests/").removesuffix(".py").replace("/", ".") for path in tests}
    others = {name for name in others if name.rpartition(".")[2].startswith(("test_", "conftest"))}
    for path, source in tests.items():
        parts = {part for name in imported(source) for part in name.split(".")[:-1]} | imported(source)
        assert not imported(source) & others, path
        assert not {part for part in parts if part.startswith("tests")}, path


def test_the_deployable_application_is_a_typed_builder() -> None:
    import inspect

    from ray.serve import Application

    from rails_ray.serve_app import ServeArgs, build
    from serve import app

    assert app.build is build, "a config with the name of old must deploy the same"
    (parameter,) = inspect.signature(build).parameters.values()
    assert parameter.annotation is ServeArgs  # a string would make Ray pass a plain dict
    assert inspect.signature(build).return_annotation is Application


def test_faiss_searches_without_a_gpu() -> None:
    import faiss
    import numpy as np

    index = faiss.IndexFlatIP(2)
    index.add(np.eye(2, dtype=np.float32))
    assert index.search(np.array([[0, 1]], dtype=np.float32), 1)[1].tolist() == [[1]]


def test_what_a_room_lists_is_in_it() -> None:
    """The table in the docstring of a folder's `__init__.py` names files and folders that are there."""
    listed = {}
    for path, source in sources().items():
        if path.endswith("/__init__.py"):
            names = re.findall(r"^\| `(\w+)` *\|", ast.get_docstring(ast.parse(source)) or "", re.MULTILINE)
            listed[path] = names
            beside = {file.stem for file in (ROOT / path).parent.iterdir()}
            assert set(names) <= beside, (path, set(names) - beside)
    assert len(listed["rails_ray/search/__init__.py"]) > 5


def test_a_class_name_occurs_once() -> None:
    """One word stands for one thing."""
    found = [
        node.name
        for source in sources().values()
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
    assert {name: number for name, number in Counter(found).items() if number > 1} == {}


def test_no_folder_has_a_name_that_tools_pass_over() -> None:
    """pytest, ripgrep, Docker and editors take some names for output."""
    files = [file for top in ("rails_ray", "tests", "jobs", "serve", "k8s") for file in (ROOT / top).rglob("*")]
    folders = {part for file in files for part in file.relative_to(ROOT).parts[:-1]}
    assert not folders & {"build", "dist", "out", "target", "node_modules", "venv", "env", "lib"}
