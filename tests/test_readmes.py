"""What READMEs say: commands and code are of ours, links lead somewhere, and the first README is short.

`test_cli_on_ray` runs the commands of the quickstart and of the stages, and README.md's Python; `k8s/test_entrypoints`
reads the commands of k8s/README.md.
"""

import ast
import inspect
import json
import re
import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from rails_ray.cli.main import parse
from rails_ray.families import recipes
from rails_ray.serving.schemas import ExplainRequest, FeedbackRequest, SearchRequest
from support.command_line import ROOT, code_blocks, readme_commands, shell_lines

LONGEST_README = 140  # lines: README.md sells and starts, all else stands beside what it is about
BODIES = {
    "/v1/search": SearchRequest,
    "/v1/explain": ExplainRequest,
    "/v1/feedback": FeedbackRequest,
    "/v1/index": None,
    "/v1/health": None,
}
JOB = ["python", "-m"]

every_readme = pytest.mark.parametrize("file", ["README.md", "jobs/README.md", "serve/README.md"])
every_readme_with_links = pytest.mark.parametrize(
    "file", ["README.md", "jobs/README.md", "serve/README.md", "k8s/README.md"]
)


def check_module(words: list[str]) -> None:
    """`python -m rails_ray.jobs.<stage>` takes what the command of that name does; any other module is there."""
    assert words[:2] == JOB
    package, _, name = words[2].rpartition(".")
    assert package in ("rails_ray.jobs", "jobs", "jobs.benches")
    assert find_spec(words[2]) is not None, words[2]
    if package != "jobs.benches":
        parse([name.replace("_", "-"), *words[3:]])


def check_request(words: list[str]) -> None:
    """A curl line asks for a path of the API, with a body that it takes."""
    [url] = [word for word in words if word.startswith("http")]
    path = "/" + url.split("/", 3)[3]
    request = BODIES[path]
    bodies = [words[number + 1] for number, word in enumerate(words) if word == "-d"]
    assert len(bodies) == (request is not None)
    for body in bodies:
        assert request is not None
        request.model_validate(json.loads(body))


def is_of_others(words: list[str]) -> bool:
    """Whether this is the shell's or Ray's, which have no part of ours in it."""
    return words[0] == "export" or words[:2] in (["ray", "start"], ["ray", "get-auth-token"], ["serve", "deploy"])


@every_readme
def test_every_line_of_shell_code_is_a_command_of_ours(file: str) -> None:
    lines = shell_lines(file)
    assert lines
    for line in lines:
        match shlex.split(line):
            case ["rails-ray", *arguments]:
                parse(arguments)
            case ["make", target]:
                assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
            case ["ray", "job", "submit", *words]:
                check_module(words[words.index("--") + 1 :])
            case ["curl", *words]:
                check_request(words)
            case words:
                assert is_of_others(words), line


def test_the_readmes_show_every_command_but_the_pipeline() -> None:
    commands = [line for file in ("README.md", "jobs/README.md", "serve/README.md") for line in readme_commands(file)]
    assert {line.split()[1] for line in commands} == {
        "quickstart", "inspect", "plan", "train", "encode", "calibrate", "publish", "evaluate", "index", "serve",
        "query", "relevance", "train-ranker", "tune", "new-key",
    }  # fmt: skip
    assert len(commands) >= 25


@every_readme
def test_every_command_in_a_sentence_is_one_of_ours(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    prose = re.sub(r"^```.*?^```$", "", (ROOT / file).read_text(), flags=re.DOTALL | re.MULTILINE)
    spans = [re.sub(r"\s+", " ", span) for span in re.findall(r"`([^`]+)`", prose)]
    for arguments in [shlex.split(span)[1:] for span in spans if span.startswith("rails-ray ")]:
        if any(word.startswith("--") for word in arguments):
            parse(arguments)
        else:  # named, not given in full
            with pytest.raises(SystemExit) as stopped:
                parse([*arguments, "--help"])
            assert stopped.value.code == 0
            assert "usage" in capsys.readouterr().out
    for span in spans:
        if span.startswith("python -m "):
            check_module(shlex.split(span))
        if span.startswith("make "):
            assert re.search(rf"^{span.split()[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_every_job_in_the_jobs_can_be_parsed() -> None:
    folder = ROOT / "rails_ray" / "jobs"
    lines = [line for path in folder.glob("[a-z]*.py") for line in path.read_text().splitlines()]
    entrypoints = [line.split(" -- ")[1] for line in lines if "-- python" in line]
    assert len(entrypoints) == 8
    for entrypoint in entrypoints:
        check_module(shlex.split(entrypoint))


@every_readme
def test_python_code_calls_functions_as_they_are(file: str) -> None:
    for code in code_blocks(file, "python"):
        tree = ast.parse(code)
        names: dict[str, Any] = {}
        imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        assert imports
        exec(compile(ast.Module(imports, []), file, "exec"), names)
        for node in ast.walk(tree):
            if isinstance(node, ast.List) and all(isinstance(word, ast.Constant) for word in node.elts):
                words = ast.literal_eval(node)
                if words[:2] == JOB:
                    check_module(words)
            if isinstance(node, ast.Call) and root_of(node.func) in names:
                given = {option.arg: option.value for option in node.keywords if option.arg is not None}
                inspect.signature(eval(ast.unparse(node.func), names)).bind(*node.args, **given)


def root_of(node: ast.expr) -> str | None:
    """The name that a dotted name begins with; None if it begins with something else."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def test_the_first_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= LONGEST_README


def test_the_table_of_recipes_is_whole() -> None:
    section = (ROOT / "README.md").read_text().split("## Recipes\n", 1)[1].split("\n## ")[0]
    rows = [line.split("|")[2] for line in section.splitlines() if line.startswith("|")]
    assert sorted(re.findall(r"`([^`]+)`", " ".join(rows))) == sorted(recipes.names())


def anchors(path: Path) -> set[str]:
    """What GitHub calls the headings of a file."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    found = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
    assert len(found) == len(set(found)), f"{path} must have each heading once, or links to it are ambiguous"
    return set(found)


@every_readme_with_links
def test_every_relative_link_leads_to_a_file_and_a_heading(file: str) -> None:
    here = ROOT / file
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", here.read_text()) if "://" not in link]
    assert links
    for link in links:
        path, _, anchor = link.partition("#")
        target = (here.parent / path).resolve() if path else here
        assert target.exists(), f"{file}: {link}"
        assert target.is_relative_to(ROOT), f"{file}: {link}"
        if anchor:
            assert anchor in anchors(target), f"{file}: {link}"
