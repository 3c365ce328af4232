"""The installed command, and what documents say of it."""

import dataclasses
import re
import subprocess
from pathlib import Path

from rails_ray.families.config import RunConfig
from support import processes

ROOT = Path(__file__).parents[2]


def run(*arguments: str, timeout_s: float = 240) -> subprocess.CompletedProcess[str]:
    """The command to its end, in a process of its own, on a cluster of its own."""
    with processes.command(*arguments) as process:
        try:
            out, errors = process.communicate(timeout=processes.PATIENCE * timeout_s)
        finally:
            process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, out, errors)


def code_blocks(file: str, language: str, heading: str | None = None) -> list[str]:
    """The code in one language of a document.

    Args:
        file: the document's path in the repository.
        heading: of the section, at any level, whose code is wanted, its subsections included; by default all.
    """
    text = (ROOT / file).read_text()
    if heading is not None:
        found = re.search(rf"^(#+) {re.escape(heading)}\n", text, re.MULTILINE)
        assert found, f"{file} must have the heading {heading!r}"
        text = re.split(rf"^#{{1,{len(found[1])}}} ", text[found.end() :], maxsplit=1, flags=re.MULTILINE)[0]
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def shell_lines(file: str, heading: str | None = None) -> list[str]:
    """The commands in the shell code of a document, without comments and redirections."""
    lines = "".join(code_blocks(file, "sh", heading)).replace("\\\n", " ").splitlines()
    commands = [re.split(" #| > ", line)[0].strip() for line in lines]
    return [command for command in commands if command]


def readme_commands(file: str, heading: str | None = None) -> list[str]:
    """Those of them that are `rails-ray`."""
    return [line for line in shell_lines(file, heading) if line.startswith("rails-ray ")]


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
