"""docs/extending.md, followed: its code is added to a copy of the package, which is then trained, encoded and asked."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.command_line import ROOT

PAGE = (ROOT / "docs" / "extending.md").read_text()
NUMBERS = {"One": 1, "Two": 2, "Three": 3}
SECTION = re.compile(r"^## (.+?)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
SECTIONS: dict[str, str] = dict(SECTION.findall(PAGE))


def new_files(text: str) -> dict[str, str]:
    """The files that a section adds, by path."""
    return dict(re.findall(r"^```python\n# new file: (\S+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))


def changes(text: str) -> list[tuple[str, str, str]]:
    """The changes of a section: a path, the lines that are there, and those that take their place."""
    found = []
    for path, lines in re.findall(r"^```diff\n# (\S+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        before = "".join(f"{line[1:]}\n" for line in lines.splitlines() if line[:1] in " -")
        after = "".join(f"{line[1:]}\n" for line in lines.splitlines() if line[:1] in " +")
        found.append((path, before, after))
    return found


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the package to which all is added."""
    folder = tmp_path_factory.mktemp("extended")
    shutil.copytree(ROOT / "rails_ray", folder / "rails_ray", ignore=shutil.ignore_patterns("__pycache__"))
    for text in SECTIONS.values():
        for path, content in new_files(text).items():
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_text(content)
        for path, before, after in changes(text):
            source = (folder / path).read_text()
            assert source.count(before) == 1, f"{path} must have once:\n{before}"
            (folder / path).write_text(source.replace(before, after))
    return folder


@pytest.mark.parametrize("heading", SECTIONS)
def test_as_many_files_change_as_it_says(heading: str) -> None:
    text = SECTIONS[heading]
    [(said, _)] = re.findall(r"^(\w+) files? of ours changes?(\b)", text.strip(), re.MULTILINE)
    assert len({path for path, _, _ in changes(text)}) == NUMBERS[said]


def test_the_table_names_the_files_that_change() -> None:
    rows = dict(re.findall(r"^\| (an? [\w -]+?) +\|(.*)\|$", PAGE, re.MULTILINE))
    for heading, text in SECTIONS.items():
        named = rows[heading[0].lower() + heading[1:]]
        for path in {path for path, _, _ in changes(text)} - {"rails_ray/search/indexes/hnsw.py"}:
            assert f"`{path.removeprefix('rails_ray/')}`" in named
    beside = [ROOT / "rails_ray" / folder for folder in ("", "families/dual_encoder", "families/vector_items")]
    for files in rows.values():
        for path in re.findall(r"`([a-z_/]+\.py)`", files):
            assert any((folder / path).exists() for folder in beside), path


FOLLOWED = """
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

import rails_ray
from rails_ray import client, local, on_ray
from rails_ray.cli.encode import Encode
from rails_ray.cli.main import parse
from rails_ray.families.config import DataConfig
from rails_ray.families.recipes import by_name
from rails_ray.on_ray.cluster import cluster
from rails_ray.serving.http.arrow import KINDS
from rails_ray.serving.http.console import SCHEMA
from rails_ray.serving.http.single import SingleProcessServer, listening
from support.data_folders import write_text_data, write_vector_data
from support.ports import free_port

folder = Path(sys.argv[1])
assert Path(rails_ray.__file__).is_relative_to(sys.argv[2]), "the copy must be asked, not the package itself"
root = str(folder / "storage")
texts, vectors = write_text_data(folder / "texts"), write_vector_data(folder / "vectors")
letters = replace(by_name("text-letters"), data=DataConfig(folder=str(texts)))
cosine = replace(by_name("vector-cosine"), data=DataConfig(folder=str(vectors)))
rotated = Encode(run_name="cosine", index="rotated").stored()
with cluster(3):
    for name, config, stored in (("letters", letters, {}), ("cosine", cosine, rotated)):
        on_ray.train(config, root, run=name)
        on_ray.encode(root, name, version=name, stored=stored)
        on_ray.publish(root, name)

# The index kind
version = local.open(root, "cosine")
queries = [{"embedding": line} for line in np.random.default_rng(0).normal(size=(5, 7)).tolist()]
exact = version.search(queries, k=5).results
found = version.search(queries, k=5, method="ann", num_candidates=10, max_beam=100).results
assert [own.items for own in found] == [own.items for own in exact]
assert {own.certificate.reason for own in found} == {"candidates by an rotated index, which may pass over any item"}

# The search parameter
assert parse(["query", "x", "--max-beam", "5"]).params.max_beam == 5
try:
    version.search(queries, max_beam=0)
except ValueError as error:
    assert "max_beam must be greater than or equal to 1, got 0" in str(error), error
else:
    raise AssertionError("max_beam must be at least 1")

# The family, asked over HTTP; the cut-off; the field of an answer
letters = local.open(root, "letters")
port = free_port()
with listening(SingleProcessServer(letters, None), host="127.0.0.1", port=port):
    answer = client.search(f"http://127.0.0.1:{port}", [{"text": "red hat"}], cutoff={"relative": 0.9})
[one] = answer.results
assert one.items == letters.search([{"text": "red hat"}], cutoff={"relative": 0.9}).results[0].items
assert one.best_score == one.scores[0] and min(one.scores) >= 0.9 * one.best_score
assert 0 < len(one.items) < 60 and not one.is_truncated and one.certificate.is_exact
assert answer.cutoff == {"relative": 0.9}
assert str(KINDS["best_score"]) == "double"
assert parse(["query", "x", "--cutoff", "relative", "0.5"]).cutoff == ("relative", 0.5)
assert b'"relative"' in SCHEMA
"""


@pytest.mark.cluster
@pytest.mark.long
def test_what_it_adds_is_trained_encoded_and_asked(extended: Path, tmp_path: Path) -> None:
    paths = os.pathsep.join([str(extended), str(ROOT / "tests")])
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, "-c", FOLLOWED, str(tmp_path), str(extended)],
        capture_output=True,
        text=True,
        env=clean | {"PYTHONPATH": paths},
        cwd=extended,
        check=False,
    )
    assert done.returncode == 0, done.stderr
