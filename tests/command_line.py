"""The installed command, and what the README says of it."""

import re
import subprocess
from pathlib import Path

import processes

ROOT = Path(__file__).parents[1]


def run(*arguments: str, timeout_s: float = 240) -> subprocess.CompletedProcess[str]:
    """The command to its end, in a process of its own, on a cluster of its own."""
    with processes.command(*arguments) as process:
        try:
            out, errors = process.communicate(timeout=timeout_s)
        finally:
            process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, out, errors)


def readme_commands(heading: str) -> list[str]:
    """The rails-ray lines of the shell code under a heading of the README."""
    section = (ROOT / "README.md").read_text().split(f"## {heading}\n", 1)[1].split("\n## ")[0]
    code = "".join(re.findall(r"```sh\n(.*?)```", section, re.DOTALL))
    lines = [re.split(" #| > ", line)[0].strip() for line in code.splitlines()]
    return [line for line in lines if line.startswith("rails-ray ")]
