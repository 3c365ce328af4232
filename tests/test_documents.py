"""What README.md and docs/ say: commands and code are of ours, links lead somewhere, and the README is short.

`test_cli_on_ray` runs the commands of the quickstart and of the stages, and README.md's Python; `k8s/test_entrypoints`
reads the commands of docs/kubernetes.md.
"""

import ast
import inspect
import json
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

import pytest

from rails_ray.cli.main import parse
from rails_ray.families import recipes
from rails_ray.schema.queries import QueryInput
from rails_ray.schema.requests import (
    BudgetInput,
    CutoffInput,
    ExplainRequest,
    FeedbackRequest,
    Method,
    SearchRequest,
)
from rails_ray.schema.responses import BudgetResult, CertificateResult, QueryResult, SearchResponse
from support.command_line import ROOT, code_blocks, readme_commands, shell_lines

LONGEST_README = 120  # lines: README.md sells and starts, docs/ explain
BODIES = {
    "/v1/search": SearchRequest,
    "/v1/explain": ExplainRequest,
    "/v1/feedback": FeedbackRequest,
    "/v1/index": None,
    "/v1/health": None,
}
JOB = ["python", "-m"]

DOCUMENTS = [
    "README.md",
    *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md"))),
    "AGENTS.md",
    "llms.txt",
    "jobs/README.md",
    "serve/README.md",
    "k8s/README.md",
]
PAGES = [file for file in DOCUMENTS if not file.startswith("docs/log/")]  # of today; the log says what was
OTHERS = ("docs/kubernetes.md", "docs/extending.md")  # whose code `k8s/test_entrypoints` and `test_extending` read

every_page = pytest.mark.parametrize("file", [file for file in PAGES if file not in OTHERS])
every_document = pytest.mark.parametrize("file", DOCUMENTS)


def check_module(words: list[str]) -> None:
    """`python -m rails_ray.jobs.<stage>` takes what the command of that name does; any other module is there."""
    assert words[:2] == JOB
    package, _, name = words[2].rpartition(".")
    assert package in ("rails_ray.jobs", "jobs", "jobs.benches")
    assert find_spec(words[2]) is not None, words[2]
    if package != "jobs.benches" and name != "packaged_emoji":
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


@every_page
def test_every_line_of_shell_code_is_a_command_of_ours(file: str) -> None:
    for line in shell_lines(file):
        match shlex.split(line):
            case ["rails-ray", *arguments]:
                parse(arguments)
            case ["pip", "install", "."]:
                pass
            case ["make", target]:
                assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
            case ["ray", "job", "submit", *words]:
                check_module(words[words.index("--") + 1 :])
            case ["curl", *words]:
                check_request(words)
            case words:
                assert is_of_others(words), line


def test_the_documents_show_every_command_but_the_pipeline() -> None:
    commands = [line for file in PAGES for line in readme_commands(file)]
    assert {line.split()[1] for line in commands} == {
        "quickstart", "inspect", "plan", "train", "encode", "calibrate", "publish", "evaluate", "index", "serve",
        "query", "relevance", "train-ranker", "tune", "new-key", "items", "refresh",
    }  # fmt: skip
    assert len(commands) >= 25


@every_page
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
    assert len(entrypoints) == 9
    for entrypoint in entrypoints:
        check_module(shlex.split(entrypoint))


@every_page
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


def test_the_readmes_first_code_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    code = code_blocks("README.md", "python")[0]
    promised = [line.removeprefix("# ") for line in code.splitlines() if line.startswith("# ")]
    exec(compile(code, "README.md", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert len(promised) == len(printed) == 2
    for line, found in zip(promised, printed, strict=True):
        assert re.sub(r"[.]\d+", "", line) == re.sub(r"[.]\d+", "", found)
        for number, other in zip(re.findall(r"[.]\d+", line), re.findall(r"[.]\d+", found), strict=True):
            assert float(number) == pytest.approx(float(other), abs=1e-5)


@pytest.mark.long
def test_the_documentation_is_built_strictly(tmp_path: Path) -> None:
    """A link between pages that leads nowhere, or a page that the navigation lacks, fails it."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "local.build" in (tmp_path / "python" / "index.html").read_text()


def test_what_a_request_may_say_and_what_an_answer_says_is_explained() -> None:
    text = "".join((ROOT / "docs" / name).read_text() for name in ("http.md", "search.md", "cutoffs.md", "budgets.md"))
    said = QueryInput, SearchRequest, CutoffInput, BudgetInput
    answered = SearchResponse, QueryResult, CertificateResult, BudgetResult
    names = {name for model in (*said, *answered) for name in model.model_fields} | set(get_args(Method))
    assert {name for name in names if f"`{name}`" not in text and f'"{name}"' not in text} == set()


def test_every_guarantee_has_tests() -> None:
    """Each of the sentences names tests that there are."""
    sentences = (ROOT / "docs" / "guarantees.md").read_text().partition("## Holes")[0].split("\n\n")[2]
    numbered = re.split(r"\n(?=\d\. )", sentences.strip())
    assert len(numbered) == 8
    for sentence in numbered:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", sentence)
        assert named, sentence
        for file, name in named:
            assert f"def {name}(" in (ROOT / file).read_text(), name


def test_decimals_have_their_zero() -> None:
    for file in DOCUMENTS:
        prose = re.sub(r"^```.*?^```$", "", (ROOT / file).read_text(), flags=re.DOTALL | re.MULTILINE)
        found = re.findall(r"(?<![\w.\])/*])[.]\d+", prose)
        assert not found, f"{file}: {found}"


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    begun = re.compile(r'"""(What|Whether|Of|The same)\b.*')
    files = sorted((ROOT / "rails_ray").rglob("*.py"))
    assert {str(file.relative_to(ROOT)): found for file in files if (found := begun.findall(file.read_text()))} == {}


def test_nobody_is_told_and_whoever_is_nobody() -> None:
    """Two words that name nothing: say who tells what, and who that is."""
    words = re.compile(r"\b(told|whoever)\b", re.IGNORECASE)
    files = [
        *sorted((ROOT / "rails_ray").rglob("*.py")),
        *(ROOT / file for file in DOCUMENTS if "log/" not in str(file)),
    ]
    assert {str(file.relative_to(ROOT)): found for file in files if (found := words.findall(file.read_text()))} == {}


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


@every_document
def test_every_relative_link_leads_to_a_file_and_a_heading(file: str) -> None:
    here = ROOT / file
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", here.read_text()) if "://" not in link]
    for link in links:
        path, _, anchor = link.partition("#")
        target = (here.parent / path).resolve() if path else here
        assert target.exists(), f"{file}: {link}"
        assert target.is_relative_to(ROOT), f"{file}: {link}"
        if anchor:
            assert anchor in anchors(target), f"{file}: {link}"
