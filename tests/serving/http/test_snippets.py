"""The snippets of docs/http.md, run against a server as they are printed."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rails_ray.serving.local import LocalVersion

README = (Path(__file__).parents[3] / "docs" / "http.md").read_text()
URL = "http://127.0.0.1:8000"


def snippet(language: str, with_text: str) -> str:
    [found] = [code for code in re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL) if with_text in code]
    return found


def test_python(url: str, version: LocalVersion) -> None:
    code = snippet("python", "import Client").replace(URL, url)
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    expected = version.search(["pizza", "flag"], k=10).results
    assert said == "".join(f"{one.items} {one.certificate.is_exact}\n" for one in expected)


def test_python_with_arrow(url: str, version: LocalVersion) -> None:
    code = snippet("python", "import pyarrow").replace(URL, url)
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    expected = version.search(["pizza", "flag"], k=10, cutoff={"top_k": 10}).results
    assert said == f"{[one.items for one in expected]} v1\n"


# Node.js is no Python package, and nothing else here needs it.
@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_javascript(url: str, version: LocalVersion) -> None:
    code = snippet("js", "fetch").replace(URL, url)
    command = ["node", "--input-type=module", "-e", code]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    [expected] = version.search(["pizza"], k=10, cutoff={"top_k": 10}).results
    assert said == " ".join(map(str, expected.items)) + "\n"
