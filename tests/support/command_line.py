"""The installed command, and what the README says of it."""

import dataclasses
import re
import subprocess
from pathlib import Path

from rails_ray.config import RunConfig
from support import processes

ROOT = Path(__file__).parents[2]


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


def options_of(config: RunConfig) -> list[str]:
    """The numbers and words of a config as options, lists aside."""
    fields = dataclasses.asdict(config)
    sections = {"training": fields["training"]} | fields["family"]
    options = ["--data.folder", str(config.data.folder)]
    for section, values in sections.items():
        for name, value in values.items() if isinstance(values, dict) else ():
            if isinstance(value, bool):
                options.append(f"--{section}.{'' if value else 'no-'}{name.replace('_', '-')}")
            elif not isinstance(value, tuple):
                options += [f"--{section}.{name.replace('_', '-')}", str(value)]
    return options
