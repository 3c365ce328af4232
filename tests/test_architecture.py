"""What may be imported where, seen from outside the linters."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
MATHEMATICS = ("encoders", "similarities", "kernels", "losses", "quantizers", "indexes", "retrieval", "cutoffs")


def modules_of(*folders: str) -> list[str]:
    files = [file for folder in folders for file in (ROOT / "rails_ray" / folder).rglob("*.py")]
    names = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files]
    return [name.removesuffix(".__init__") for name in names]


def run_without(blocked: set[str], code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own in which some packages cannot be imported."""
    prelude = f"""
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ImportError(name + " is blocked")
sys.meta_path.insert(0, Blocked())
"""
    return subprocess.run([sys.executable, "-c", prelude + code], capture_output=True, text=True, cwd=ROOT, check=False)


def test_the_mathematics_runs_where_only_torch_numpy_scipy_and_jaxtyping_are() -> None:
    blocked = {
        "ray",
        "tokenizers",
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
    }
    names = [*modules_of(*MATHEMATICS), "rails_ray.top_k", "rails_ray.masks", "rails_ray.wanted", "rails_ray.scan"]
    names.remove("rails_ray.encoders.tokenizer")  # imported where there are tokens to learn or to read
    names.remove("rails_ray.kernels.compiled_loops")  # imported where there is numba
    code = f"""
import importlib
for name in {names!r}:
    importlib.import_module(name)
import torch
from rails_ray.retrieval.brute_force import BruteForce
from rails_ray.similarities.dot_product import DotProduct, DotProductConfig
from rails_ray.similarities.states import ItemState, QueryState
from rails_ray.wanted import Wanted
vectors = torch.eye(4)[:, None]
query = QueryState(vectors[:2], None, torch.ones(2))
found = BruteForce(DotProduct(DotProductConfig()), ItemState(vectors, None, vectors[:, 0])).search(query, Wanted(1))
assert found.item_rows.tolist() == [[0], [1]]
"""
    done = run_without(blocked, code)
    assert done.returncode == 0, done.stderr


def test_training_and_evaluation_run_without_ray() -> None:
    names = modules_of("training", "evaluation", "collectives", "data", "storage", "recipes")
    names.remove("rails_ray.storage.s3")  # imported where a root is on S3, and there alone
    code = f"""
import importlib
for name in {[*names, "rails_ray.build", "rails_ray.config"]!r}:
    importlib.import_module(name)
"""
    done = run_without({"ray", "faiss", "fsspec", "s3fs", "botocore", "aiobotocore"}, code)
    assert done.returncode == 0, done.stderr


def test_nothing_in_the_package_imports_what_is_not_installed_with_it() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert settings["tool"]["setuptools"]["packages"]["find"]["include"] == ["rails_ray*"]
    for file in (ROOT / "rails_ray").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            assert not {name.split(".")[0] for name in names} & {"serve", "jobs", "tests"}, file


def test_the_deployable_application_is_a_typed_builder() -> None:
    import inspect

    from ray.serve import Application

    from serve.app import ServeArgs, build

    (parameter,) = inspect.signature(build).parameters.values()
    assert parameter.annotation is ServeArgs  # a string would make Ray pass a plain dict
    assert inspect.signature(build).return_annotation is Application


def test_faiss_searches_without_a_gpu() -> None:
    import faiss
    import numpy as np

    index = faiss.IndexFlatIP(2)
    index.add(np.eye(2, dtype=np.float32))
    assert index.search(np.array([[0, 1]], dtype=np.float32), 1)[1].tolist() == [[1]]
