"""The bench of a GPU, on a CPU: that it runs where little is installed, and what it says where something fails."""

import importlib
import json
import math
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
import torch

from jobs.benches import gpu, gpu_checks, gpu_measuring, gpu_scan, gpu_step, record
from jobs.benches.gpu_measuring import Bench, Case

ROOT = Path(__file__).parents[2]
# With what they need themselves. All else that is installed here counts as missing there.
ALONE = {
    "torch", "torchgen", "functorch", "triton", "numpy", "scipy", "jaxtyping", "wadler_lindig", "filelock", "jinja2",
    "markupsafe", "mpmath", "networkx", "setuptools", "sympy", "typing_extensions", "rails_ray",
}  # fmt: skip
# Read by every Python process before its program, so by those of the bench's own too.
AS_IF_NOT_INSTALLED = f"""
from importlib.machinery import PathFinder
find = PathFinder.find_spec
def find_spec(name, path=None, target=None):
    return None if name.split(".")[0] in {packages_distributions().keys() - ALONE!r} else find(name, path, target)
PathFinder.find_spec = staticmethod(find_spec)
"""


def rows_in(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def numbers_of(row: dict[str, Any]) -> list[float]:
    return [value for value in row.values() if isinstance(value, int | float)]


@pytest.mark.long
def test_every_section_has_its_rows_where_torch_numpy_scipy_and_jaxtyping_are_alone(tmp_path: Path) -> None:
    site, out = tmp_path / "site", tmp_path / "out"
    site.mkdir()
    out.mkdir()
    (site / "sitecustomize.py").write_text(AS_IF_NOT_INSTALLED)
    command = [sys.executable, "-m", "jobs.benches.gpu", "--device", "cpu", "--small", "--batches", "3", "1"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (site, ROOT)))}
    environment.pop("TRITON_INTERPRET", None)  # set for kernels' own tests, and refused by a scan
    done = subprocess.run(
        [*command, "--out", str(out)],
        capture_output=True, text=True, check=False, cwd=ROOT, env=environment, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    described, limits, *rows = rows_in(out / "gpu.jsonl")
    assert (described["kind"], described["device"], described["is_small"]) == ("environment", "cpu", True)
    assert described["torch"] == torch.__version__
    assert limits["kind"] == "limits"
    assert len({row["execution"] for row in rows}) == 1
    assert all(math.isfinite(number) for row in (limits, *rows) for number in numbers_of(row))
    assert not any("failed" in row for row in rows)

    checks = {row["check"]: row for row in rows if "check" in row}
    assert all(row.get("passed") for name, row in checks.items() if name != "pytest")
    assert checks.keys() == {*gpu_checks.CHECKS, "pytest"}
    assert checks["pytest"]["reason"] == "pytest and hypothesis not installed"
    assert checks["pytest"]["not_run"] == len(gpu_checks.tests_for_a_gpu(ROOT / "tests"))

    scans = {(row["shape"], row["batch"], row["method"], row["width"]): row for row in rows if "method" in row}
    for shape in gpu_scan.SHAPES:
        for batch in (3, 1):
            assert sum(key[:2] == (shape, batch) for key in scans) == 21
            for share in ("1%", "10%", "50%"):
                of_share = [
                    scans[shape, batch, "filtered", f"{how}, {share}"] for how in ("gathered", "hidden", "listed")
                ]
                assert min(row["recall@100"] for row in of_share) > 0.98, share
                gathered, hidden, listed = (row["gflop"] for row in of_share)
                assert gathered <= listed < hidden  # which scores all items
            for exact in (("brute_force", "pruned"), ("on_gpu", "fused"), ("naive", "float32"), ("two_pass", "100")):
                assert scans[shape, batch, *exact]["recall@100"] > 0.98, exact  # but for equal scores all of it
            assert scans[shape, batch, "dot_product", "on_gpu"]["host_reads"] == 0
            assert scans[shape, batch, "brute_force", "plain"]["host_reads"] > 0
    assert all(row["latency_ms"] > 0 and row["share_of_limit"] > 0 for row in scans.values())

    steps = [(row["step"], row["precision"], row["way"]) for row in rows if "step" in row]
    assert steps == [
        (name, precision, way)
        for name in gpu_step.CASES
        for precision in ("float32", "bfloat16")
        for way in gpu_step.ways_of(name, torch.device("cpu"))
    ]
    assert all(row["steps_per_s"] > 0 and row["gflop"] > 0 for row in rows if "step" in row)


def test_a_failure_is_a_row_and_an_exit_code_and_all_else_still_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> dict[str, Any]:
        raise ValueError("k must be at least 1, got 0")

    def some_fail(bench: Bench) -> Iterator[Case]:
        yield Case({"case": "first"}, fails)
        yield Case({"case": "second"}, lambda: {"value": 1.0})
        yield Case({"case": "third"}, lambda: {"failed": "it said so itself"})

    def breaks(bench: Bench) -> Iterator[Case]:
        yield Case({"case": "first"}, lambda: {"value": 2.0})
        raise RuntimeError("no corpus")

    def works(bench: Bench) -> Iterator[Case]:
        yield Case({"case": "only"}, lambda: {"value": 3.0})

    for name, section in (("tests", some_fail), ("scan", breaks), ("step", works)):
        monkeypatch.setitem(gpu.SECTIONS, name, section)
    words = ["--device", "cpu", "--small", "--out", str(tmp_path / "new" / "rows.jsonl")]
    assert gpu.main(words) == 1
    _, _, *rows = rows_in(tmp_path / "new" / "rows.jsonl")
    told = [
        (row["section"], row.get("case"), row.get("value"), row.get("failed")) for row in rows if "seconds" not in row
    ]
    assert told == [
        ("tests", "first", None, "ValueError: k must be at least 1, got 0"),
        ("tests", "second", 1.0, None),
        ("tests", "third", None, "it said so itself"),
        ("scan", "first", 2.0, None),
        ("scan", None, None, "RuntimeError: no corpus"),
        ("step", "only", 3.0, None),
    ]
    assert "in fails" in capsys.readouterr().err  # the traceback
    assert gpu.main([*words, "--only", "step"]) == 0


def test_the_commit_is_told_where_no_git_can_say(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COMMIT", "abc")
    assert record.environment()["commit"] not in ("", "abc")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    (tmp_path / "copy").mkdir()
    monkeypatch.chdir(tmp_path / "copy")
    told = record.environment()
    assert (told["commit"], told["is_clean"]) == ("abc", None)  # git, and no history
    monkeypatch.setenv("PATH", str(tmp_path))
    told = record.environment()
    assert (told["commit"], told["is_clean"]) == ("abc", None)  # no git


def test_a_gpu_is_asked_for_where_there_is_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        gpu.main([])
    assert "--device must be cpu where torch sees no GPU, got cuda" in capsys.readouterr().err


def test_shapes_are_those_of_table5() -> None:
    table5 = importlib.import_module("jobs.benches.table5")
    for name, shape in table5.SHAPES.items():
        ours = gpu_scan.SHAPES[name]
        for field in ("num_items", "components", "width", "representation"):
            assert getattr(ours, field) == getattr(shape, field)
        assert ours.combined in shape.combined


def test_a_batch_that_does_not_fit_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    def fits_below_40(bench: Bench, name: str, sizes: gpu_step.Sizes, precision: str, way: str) -> dict[str, Any]:
        if sizes.batch >= 40:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return {"batch": sizes.batch}

    monkeypatch.setattr(gpu_step, "measured_step", fits_below_40)
    bench = Bench(torch.device("cpu"), True, gpu_measuring.Limits(1.0, {}), (), ())
    row = gpu_step.measured(bench, "text, uniform", gpu_step.Sizes(128), "float32")
    assert row == {"batch": 32, "out_of_memory_at": [128, 64]}


def test_what_waits_is_counted_by_line(monkeypatch: pytest.MonkeyPatch) -> None:
    modes = []
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)

    def waits_twice() -> None:
        for _ in range(2):
            warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
        warnings.warn("something else", stacklevel=1)

    row = gpu_measuring.synchronisations(waits_twice)
    assert row["warned_synchronisations"] == 2
    [(place, count)] = row["waits_at"].items()
    assert place.startswith("benches/test_gpu_bench.py:")
    assert count == 2
    assert modes == ["warn", "default"]


def test_what_the_host_reads_is_counted_on_any_device() -> None:
    numbers = torch.arange(6.0)
    with gpu_measuring.Operators() as seen:
        assert numbers.sum() == 15  # 1
        assert len(numbers[numbers > 2]) == 3  # 2
        numbers[numbers > 3] = torch.ones(2)  # 3
        assert len(numbers.unique()) == 4  # 4
        numbers[numbers > 2] = 0.0
        assert len(numbers[torch.tensor([1, 2])] + numbers.topk(2).values) == 2
    assert seen.num_reads == 4
    assert seen.num_operators > 10


def test_tests_for_a_gpu_are_found_and_their_outcomes_counted() -> None:
    names = gpu_checks.tests_for_a_gpu(ROOT / "tests")
    assert "tests/training/test_step.py::test_a_gpu_has_the_gradient_of_a_processor" in names
    assert "tests/kernels/test_lookup_scan.py::test_on_a_gpu" in names
    report = """<testsuites><testsuite>
    <testcase classname="a" name="passes"/>
    <testcase classname="a" name="skips"><skipped message="needs two GPUs"/></testcase>
    <testcase classname="b" name=""><error message="collection failure">E   ModuleNotFoundError: No module named 'tyro'
    </error></testcase>{}</testsuite></testsuites>"""
    counts = {"passed": 1, "skipped": 1, "not_run": 1, "reason": "ModuleNotFoundError: No module named 'tyro'"}
    assert gpu_checks.outcomes(report.format("")) == counts
    broken = '<testcase classname="c" name="test_sum"><failure message="assert 1 == 2"/></testcase>'
    assert gpu_checks.outcomes(report.format(broken)) == counts | {"failed": "c.test_sum: assert 1 == 2"}
