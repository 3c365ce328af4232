"""What a GPU computes against what the CPU computes, and the repository's own tests that need a GPU.

The checks need torch alone, so that they run where pytest is not installed. Each says in an AssertionError what is
wrong. The tests are found by their mark, a `skipif` whose condition asks torch for a GPU.
"""

import ast
import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args
from xml.etree import ElementTree

import torch
from torch import Tensor

from jobs.benches.gpu_measuring import Bench, Case, products_in
from jobs.benches.gpu_scan import K, Shape, corpora, methods, search
from jobs.benches.gpu_step import CASES, SMALL, Training, built, made_small, mixture_step
from rails_ray.data.in_batch import InBatchSampler
from rails_ray.data.queries import ItemLists, Queries
from rails_ray.kernels import lookup_scan, postings
from rails_ray.kernels.checked_gradient import fused_gradient
from rails_ray.kernels.mol_scan import Activation
from rails_ray.modules.encoders.text import TextTransformer, Tokens, TransformerConfig
from rails_ray.modules.similarities.states import map_tensors
from rails_ray.reranking.l2_greedy import l2_greedy
from rails_ray.training.contrast import Contrast, Gathered, Streamed

ROOT = Path(__file__).parents[2]
NEEDED = ("pytest", "hypothesis")  # by the files that such tests stand in
TESTS_TIMEOUT_S = 300


def cases(bench: Bench) -> Iterator[Case]:
    for name, check in CHECKS.items():
        yield Case({"check": name}, partial(_checked, check, bench))
    yield Case({"check": "pytest"}, run_tests)


def _checked(check: Callable[[Bench], None], bench: Bench) -> dict[str, Any]:
    with products_in("float32"):
        check(bench)
    return {"passed": True}


def equal_gradients(bench: Bench, make: Callable[[], Training], most: float | None = None) -> None:
    """The loss and the gradient of a step on this device and on the CPU, from the same weights and batch.

    Args:
        most: share of a gradient's length by which it may differ, where products are of 16 bits.
    """
    losses, gradients = [], []
    for device in (torch.device("cpu"), bench.device):
        torch.manual_seed(0)
        training = make()
        step = training.step.to(device)
        loss = step(training.batch_of(0).to(device))
        loss.backward()
        losses.append(loss.detach().cpu())
        gradients.append({name: own.grad.cpu() for name, own in step.named_parameters() if own.grad is not None})
    _close("loss", losses[1], losses[0], rtol=1e-3 if most is None else most, atol=1e-5)
    assert gradients[0].keys() == gradients[1].keys(), "the same parameters must have a gradient"
    for name, gradient in gradients[0].items():
        if most is None:
            _close(f"gradient of {name}", gradients[1][name], gradient, rtol=1e-2, atol=1e-5)
        else:
            error = ((gradients[1][name] - gradient).norm() / gradient.norm().clamp(min=1e-5)).item()
            assert error <= most, f"gradient of {name} must be the CPU's, got a difference of {error:.2g} of its length"


def transformer(contrast: Contrast, encode_size: int) -> Training:
    """Texts that are read by a small transformer with aggregation tokens, without dropout."""
    sizes = made_small(CASES["text, gathered"])
    config = TransformerConfig(width=8, num_heads=2, hidden=8, max_length=6, pooling="aggregation", dropout=0.0)
    encoder = TextTransformer(config, sizes.components)
    generator = torch.Generator().manual_seed(0)
    texts = [Tokens(torch.randint(2, 300, (40, 6), generator=generator)) for _ in range(2)]
    queries = Queries([""] * 40, ItemLists.of([[number] for number in range(40)]))
    sampler = InBatchSampler(queries, *texts, batch_size=sizes.batch, seed=0)
    step = mixture_step(encoder, sizes, contrast, torch.float32, encode_size=encode_size, dropout=0.0)
    return Training(step, sampler.batch)


def without_dropout(name: str, way: str = "plain") -> Training:
    training = built(name, made_small(CASES[name]), SMALL, torch.float32, way)
    training.step.eval()  # no dropout, which a GPU draws otherwise
    return training


def fused(bench: Bench) -> None:
    """A GPU has a kernel for a mixture's training at the shapes that are measured, right within 16 bits, with dropout
    and without. Steps by it have the CPU's gradient."""
    if bench.device.type == "cuda":
        for num_components, width in (((8, 8), 32), ((8, 4), 64), ((8, 4), 32)):
            states = torch.zeros(1, num_components[0], width, device=bench.device)
            for activation in get_args(Activation):
                kernel = fused_gradient(states, num_components, 128, activation)
                assert kernel is not None, f"{num_components} must have a fused gradient, got none: the log says why"
    for name in ("text, uniform", "text, gathered", "text, streamed", "histories of 200"):
        equal_gradients(bench, partial(without_dropout, name, "fused"), 0.1)


def compiled(bench: Bench) -> None:
    """Compiled blocks have the CPU's gradient."""
    way = "compiled" if bench.device.type == "cuda" else "plain"  # a CPU's compiler takes a minute, and has a test
    equal_gradients(bench, partial(without_dropout, "histories of 200", way))


def chunk(bench: Bench) -> None:
    """A chunk's step has the CPU's gradient in float32, and about its loss in bfloat16."""
    for name in ("solar text, sampled", "solar text, all buckets", "solar features"):
        sizes = made_small(CASES[name])
        equal_gradients(bench, partial(built, name, sizes, SMALL, torch.float32))
        losses = []
        for precision in (torch.float32, torch.bfloat16):
            torch.manual_seed(0)
            training = built(name, sizes, SMALL, precision)
            losses.append(training.step.to(bench.device)(training.batch_of(0).to(bench.device)).detach())
        _close(f"loss in bfloat16 of {name}", losses[1], losses[0], rtol=2e-2, atol=0.0)


def scans(bench: Bench) -> None:
    """What each method finds scores as what it finds on the CPU; which items, rounding may decide."""
    on_cpu = replace(bench, device=torch.device("cpu"), is_small=True, batches=(5,))
    mixture, dot = corpora(Shape(3000, (4, 4), 16, 32, (5, 100)), on_cpu)
    for asked in methods(Shape(3000, (4, 4), 16, 32, (5, 100)), on_cpu):
        corpus = dot if asked.method == "dot_product" else mixture
        there = corpus._replace(
            similarity=deepcopy(corpus.similarity).to(bench.device),
            items=map_tensors(lambda tensor: tensor.to(bench.device), corpus.items),
            queries=map_tensors(lambda tensor: tensor.to(bench.device), corpus.queries),
        )
        exact = corpus.similarity.scores(corpus.queries, corpus.items)
        found, expected = (
            exact.gather(1, search(asked, own.similarity, own.items)(own.queries, K).item_rows.cpu()).sort(dim=1).values
            for own in (there, corpus)
        )
        error = (found - expected).abs().mean().item()
        most = 1e-2 if asked.precision == "bfloat16" else 1e-4
        assert error <= most, f"{asked.method} {asked.width}: scores must differ by {most} at most, got {error:.2g}"


def look_ups(bench: Bench) -> None:
    """Sums of table look-ups are the same to the last bit."""
    generator = torch.Generator().manual_seed(0)
    tables = torch.randn(4, 8, 256, generator=generator)
    codes = torch.randint(256, (1000, 8), generator=generator, dtype=torch.uint8)
    own = codes[torch.randint(1000, (4, 30), generator=generator)]
    for name, part in (("of all items", codes), ("of candidates", own)):
        found = lookup_scan.scores(tables.to(bench.device), part.to(bench.device)).cpu()
        assert torch.equal(found, lookup_scan.scores(tables, part)), f"scores {name} must equal those of the CPU"


def sums_of_postings(bench: Bench) -> None:
    """So are sums over postings, and the rows of the best."""
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(50, (3000, 4), generator=generator)
    tables = torch.randn(3, 4, 50, generator=generator)
    found = []
    for device in (torch.device("cpu"), bench.device):
        top = postings.top_entries(tables.flatten(end_dim=1).to(device), 7)
        made = postings.sort_by_bucket(codes.to(device), 50)
        best = postings.best_sums(made, top.item_rows.view(3, 4, 7), top.scores.view(3, 4, 7), 100)
        found.append([top.item_rows, made.rows, made.starts, best.top_k.scores, best.top_k.item_rows])
    for name, here, there in zip(("top", "rows", "starts", "sums", "best"), *found, strict=True):
        assert torch.equal(here, there.cpu()), f"{name} must equal those of the CPU"


def supports(bench: Bench) -> None:
    """l2-greedy chooses the same items, in the same order."""
    generator = torch.Generator().manual_seed(0)
    relevance = torch.randn(600, 20, generator=generator) @ torch.randn(20, 200, generator=generator)
    relevance += 0.1 * torch.randn(600, 200, generator=generator)
    expected = l2_greedy(relevance.double(), 50)
    found = l2_greedy(relevance.double().to(bench.device), 50)
    assert torch.equal(found, expected), "supports must be those of the CPU"


def _close(name: str, found: Tensor, expected: Tensor, *, rtol: float, atol: float) -> None:
    error = (found - expected).abs().max().item()
    assert torch.allclose(found, expected, rtol=rtol, atol=atol), f"{name} must be the CPU's, got a difference {error}"


CHECKS: dict[str, Callable[[Bench], None]] = {
    "gradient, text towers": partial(equal_gradients, make=partial(without_dropout, "text, uniform")),
    "gradient, histories": partial(equal_gradients, make=partial(without_dropout, "histories of 200, own negatives")),
    "gradient, gathered": partial(equal_gradients, make=partial(transformer, Gathered(), 0)),
    "gradient, cached": partial(equal_gradients, make=partial(transformer, Gathered(), 5)),
    "gradient, streamed": partial(equal_gradients, make=partial(transformer, Streamed(3), 0)),
    "gradient, fused": fused,
    "gradient, compiled": compiled,
    "chunk of SOLAR": chunk,
    "scans": scans,
    "look-ups": look_ups,
    "postings": sums_of_postings,
    "supports": supports,
}


def run_tests() -> dict[str, Any]:
    """The repository's tests that need a GPU, by pytest; without the fixtures and the hooks that need more packages."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    names = tests_for_a_gpu(ROOT / "tests")
    if missing:
        return {"not_run": len(names), "reason": f"{' and '.join(missing)} not installed"}
    with tempfile.TemporaryDirectory(prefix="rails-ray-") as folder:
        report = Path(folder, "report.xml")
        options = ["--override-ini=addopts=", "--import-mode=importlib", "--noconftest", "-p", "no:cacheprovider"]
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            *options,
            f"--junitxml={report}",
            "--continue-on-collection-errors",
        ]
        done = subprocess.run(
            [*command, *names], capture_output=True, text=True, check=False, cwd=ROOT, timeout=TESTS_TIMEOUT_S
        )
        if not report.exists():
            return {"failed": f"pytest must write a report, got: {(done.stdout + done.stderr)[-2000:]}"}
        return outcomes(report.read_text())


def tests_for_a_gpu(folder: Path) -> list[str]:
    """What pytest calls the tests that are skipped for the want of a GPU."""
    names = []
    for file in sorted(folder.rglob("test_*.py")):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.FunctionDef) and any(map(_wants_a_gpu, node.decorator_list)):
                names.append(f"{file.relative_to(ROOT)}::{node.name}")
    return names


def _wants_a_gpu(decorator: ast.expr) -> bool:
    return "skipif" in (source := ast.unparse(decorator)) and "torch.cuda" in source


def outcomes(report: str) -> dict[str, Any]:
    """How many tests passed and did not, from a report in JUnit's XML. A file that cannot be imported because a package
    is missing did not run; anything else that is no pass and no skip failed."""
    counts = {"passed": 0, "skipped": 0, "not_run": 0}
    failures, reasons = [], set[str]()
    for test in ElementTree.fromstring(report).iter("testcase"):
        broken = next((part for part in test if part.tag in ("failure", "error")), None)
        if broken is not None:
            text = (broken.get("message") or "") + "\n" + (broken.text or "")
            missing = [line.strip("E ") for line in text.splitlines() if "ModuleNotFoundError: " in line]
            if missing:
                counts["not_run"] += 1
                reasons.add(missing[-1])
            else:
                failures.append(f"{test.get('classname')}.{test.get('name')}: {text.strip()[:500]}")
        else:
            counts["skipped" if test.find("skipped") is not None else "passed"] += 1
    row: dict[str, Any] = dict(counts)
    if reasons:
        row["reason"] = "; ".join(sorted(reasons))
    if failures:
        row["failed"] = "; ".join(failures)
    return row
