"""What pip would install on machines that are not this one, by what the package index says."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MOST_DIRECT = 12
NO_INDEX = re.compile(r"error sending request|Failed to fetch|dns error|timed out|Connection refused", re.IGNORECASE)
MACHINES = {  # by uv's names, with the marker's names of the system and the processor
    "x86_64-manylinux_2_28": ("linux", "x86_64", "faiss-gpu"),
    "aarch64-manylinux_2_28": ("linux", "aarch64", "faiss-cpu"),
    "aarch64-apple-darwin": ("darwin", "arm64", "faiss-cpu"),
    "x86_64-pc-windows-msvc": ("win32", "AMD64", "faiss-cpu"),
}


def resolved(machine: str, python: str, *, project: Path = ROOT / "pyproject.toml") -> list[str]:
    """All packages of the extra `all`, from wheels alone."""
    words = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--extra", "all"]
    words += ["--only-binary", ":all:", "--python-platform", machine, "--python-version", python, str(project)]
    environment = os.environ | {"MACOSX_DEPLOYMENT_TARGET": "14.0"}  # the oldest that faiss-cpu has wheels for
    if "PIP_INDEX_URL" in environment:
        environment["UV_DEFAULT_INDEX"] = environment["PIP_INDEX_URL"]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=300, check=False)
    if done.returncode and NO_INDEX.search(done.stderr):
        pytest.skip("the package index must answer to resolve for other machines, got no answer")
    assert done.returncode == 0, done.stderr
    return [line.partition("==")[0] for line in done.stdout.splitlines()]


@pytest.mark.long
@pytest.mark.parametrize("python", ["3.11", "3.13"])
@pytest.mark.parametrize("machine", MACHINES)
def test_every_machine_has_wheels_of_all_that_is_needed(machine: str, python: str) -> None:
    found = resolved(machine, python)
    assert {"torch", "ray", "fastapi", "obstore", "rdkit", MACHINES[machine][2]} <= set(found)
    assert len([name for name in found if name.startswith("faiss-")]) == 1


@pytest.mark.long
def test_a_package_without_wheels_for_a_machine_is_noticed(tmp_path: Path) -> None:
    text = (ROOT / "pyproject.toml").read_text()
    (tmp_path / "pyproject.toml").write_text(re.sub(r'("faiss-gpu>=[\d.]+);[^"]*"', r'\1"', text))
    with pytest.raises(AssertionError, match=r"faiss-gpu.* has no wheels with a matching platform tag"):
        resolved("aarch64-apple-darwin", "3.12", project=tmp_path / "pyproject.toml")


@pytest.mark.parametrize("machine", MACHINES)
def test_the_core_is_twelve_packages_at_most(machine: str) -> None:
    from packaging.requirements import Requirement

    system, processor, faiss = MACHINES[machine]
    asked = [Requirement(line) for line in PROJECT["dependencies"]]
    here = {"sys_platform": system, "platform_machine": processor}
    direct = {one.name for one in asked if one.marker is None or one.marker.evaluate(here)}
    assert faiss in direct
    assert {"ray", "fastapi", "uvicorn", "s3fs", "aiohttp"}.isdisjoint(direct)
    assert len(direct) <= MOST_DIRECT
