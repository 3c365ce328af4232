"""The fused scan in Triton's interpreter, or on a GPU."""

import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from rails_ray.kernels import fused_scan, top_k
from rails_ray.kernels.mol_scan import Activation, Gate, plain_scores

pytest.importorskip("triton", reason="needs Triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BOOKS = (8, 8, 32, 128)  # P_Q, P_X, d, H


@pytest.fixture(autouse=True)
def nothing_was_said() -> None:
    fused_scan._warn.cache_clear()


def drawn(
    shape: tuple[int, int, int, int], num_queries: int, num_items: int, seed: int = 0
) -> tuple[Gate, list[Tensor]]:
    """A gate, and f, u, g, v."""
    p_q, p_x, width, hidden = shape
    generator = torch.Generator().manual_seed(seed)

    def normal(*sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=generator).to(DEVICE)

    num = p_q * p_x
    gate = Gate(0.1 * normal(hidden, num), 0.1 * normal(hidden), 0.3 * normal(num, hidden), normal(num), 0.1)
    f, g = F.normalize(normal(num_queries, p_q, width), dim=2), F.normalize(normal(num_items, p_x, width), dim=2)
    return gate, [f, normal(num_queries, num), g, normal(num_items, num)]


@pytest.mark.parametrize("activation", ["silu", "relu"])
@pytest.mark.parametrize(
    ("shape", "num_queries", "num_items"),
    [
        (BOOKS, 3, 70),
        (BOOKS, 1, 65),
        ((8, 4, 128, 128), 2, 33),
        ((2, 3, 5, 7), 9, 40),
        ((1, 4, 8, 16), 17, 3),
        ((4, 1, 8, 130), 4, 65),
        ((4, 4, 200, 32), 5, 10),  # d in two parts
        ((3, 5, 12, 20), 1, 1),
        ((2, 2, 4, 4), 3, 0),
        ((2, 2, 4, 4), 0, 3),
    ],
)
def test_scores_equal_the_plain_version(
    shape: tuple[int, int, int, int], num_queries: int, num_items: int, activation: Activation
) -> None:
    gate, states = drawn(shape, num_queries, num_items)
    gate = gate._replace(activation=activation)
    expected = plain_scores(*states, gate)
    for operand, tolerance in ((torch.float32, 2e-6), (torch.float16, 2e-3)):
        scan = fused_scan.FusedScan(gate, shape[:2], shape[2], operand)
        assert torch.allclose(scan.scores(*states), expected, atol=tolerance, rtol=0)


@pytest.mark.parametrize("shape", [BOOKS, (4, 4, 200, 32), (3, 5, 12, 20)])
@pytest.mark.parametrize("num_queries", [1, 3])
def test_a_list_of_rows_scores_these_items_alone(shape: tuple[int, int, int, int], num_queries: int) -> None:
    """In their order, repeated ones again; of other items nothing is read."""
    gate, (f, u, g, v) = drawn(shape, num_queries, 40)
    scan = fused_scan.FusedScan(gate, shape[:2], shape[2], torch.float32)
    for listed in ([], [6], [39, 0, 17], [5, 5, 2, 38, 2] * 7, list(range(40))):
        rows = torch.tensor([0, *listed], device=DEVICE)[1:]  # which no address of 16 bytes begins
        others = torch.ones(40, dtype=torch.bool, device=DEVICE).index_fill(0, rows, False)
        own = g.masked_fill(others[:, None, None], torch.nan), v.masked_fill(others[:, None], torch.nan)
        found = scan.scores(f, u, *own, rows)
        assert torch.equal(found, scan.scores(f, u, g[rows], v[rows]))
        assert torch.allclose(found, plain_scores(f, u, g[rows], v[rows], gate), atol=2e-6, rtol=0)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the interpreter's arithmetic
def test_a_relu_loses_nothing_that_is_not_a_number() -> None:
    gate, (f, u, g, v) = drawn((2, 4, 16, 16), 3, 20)
    scan = fused_scan.FusedScan(gate._replace(activation="relu"), (2, 4), 16, torch.float32)
    v[7, 2] = g[9, 0, 0] = torch.nan
    scores = scan.scores(f, u, g, v)
    assert scores[:, [7, 9]].isposinf().all()
    assert scores.isfinite().sum() == 3 * 18


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16, torch.float64])
def test_items_are_read_as_they_are_stored(stored: torch.dtype) -> None:
    gate, (f, u, g, v) = drawn((2, 4, 16, 16), 3, 20)
    g, v = g.to(stored), v.to(stored)
    scan = fused_scan.FusedScan(gate, (2, 4), 16, torch.float32)
    assert torch.allclose(scan.scores(f, u, g, v), plain_scores(f, u, g.float(), v.float(), gate), atol=2e-6)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the interpreter's arithmetic
def test_large_gates_do_not_overflow_and_what_is_not_a_number_is_inf() -> None:
    gate, (f, u, g, v) = drawn((2, 4, 16, 16), 3, 20)
    scan = fused_scan.FusedScan(gate, (2, 4), 16, torch.float32)
    assert torch.allclose(scan.scores(f, 100 * u, g, v), plain_scores(f, 100 * u, g, v, gate), atol=1e-5)
    v[7, 2] = torch.nan
    g[9] = torch.inf
    scores = scan.scores(f, u, g, v)
    assert scores[:, [7, 9]].isposinf().all()
    assert scores.isfinite().sum() == 3 * 18


def test_weights_that_might_overflow_float16_are_multiplied_in_bfloat16() -> None:
    gate, _ = drawn(BOOKS, 1, 1)
    assert fused_scan.FusedScan(gate, (8, 8), 32).operand == torch.float16
    assert fused_scan.FusedScan(gate._replace(temperature=1e-5), (8, 8), 32).operand == torch.bfloat16


def test_the_selection_equals_that_of_top_k() -> None:
    for seed in range(40):
        torch.manual_seed(seed)
        sizes = int(torch.randint(1, 4, ())), int(torch.randint(1, 6000, ()))
        scores = torch.randint(-4, 4, sizes).float() / 3 if seed % 2 else torch.randn(sizes)
        for each, value in ((3, torch.nan), (4, torch.inf), (5, -torch.inf)):
            if seed % each == 0:
                scores = scores.masked_fill(torch.rand(sizes) < 0.1, value)
        if seed % 7 == 0:
            scores = 0 * torch.randint(-1, 2, sizes) * scores.nan_to_num(0, 0, 0)  # 0 and -0
        k = min(int(torch.randint(1, 40, ())), sizes[1])
        expected, found = top_k.select(scores, k), fused_scan.select(scores.to(DEVICE), k)
        found = top_k.select(found.scores.cpu(), k, found.item_rows.cpu())
        assert torch.equal(found.scores, expected.scores)
        is_there = expected.scores > -torch.inf
        assert torch.equal(found.item_rows[is_there], expected.item_rows[is_there])


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter stands for a compiler."""
    monkeypatch.setattr(fused_scan, "why_missing", lambda: None)


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("wrong_with_rows", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_scan_is_compared_with_the_plain_version_before_it_is_used(
    wrong_with_rows: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gate, _ = drawn((2, 4, 16, 16), 3, 20)
    scan = fused_scan.fused_scan(gate, (2, 4), 16, torch.float32)
    assert isinstance(scan, fused_scan.FusedScan)
    assert not caplog.records
    right = scan.kernel.mol_scores

    class Wrong:
        """As a compiler may be: a query's scores are lost, of all items or of a list of rows."""

        def __getitem__(self, grid: tuple[int, ...]) -> object:
            def run(*arguments: object, **constants: object) -> None:
                right[grid](*arguments, **constants)
                found = arguments[9]
                assert isinstance(found, Tensor)
                if constants["HAS_ROWS"] == wrong_with_rows:
                    found[0] = 0

            return run

    wrong = SimpleNamespace(mol_scores=Wrong(), IS_INTERPRETED=False)
    monkeypatch.setattr(fused_scan, "triton_kernels", lambda: wrong)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):  # as shards and versions do
            reason = fused_scan.fused_scan(gate, (2, 4), 16, torch.float32)
            assert re.fullmatch(r"it is compiled wrongly: scores are off by [\d.]+ of their spread", str(reason))
    [message] = caplog.messages
    assert message == f"a GPU scans without the fused kernel, at a tenth of its speed: {reason}"


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize(("tile", "has_parents"), [(128, False), (16, False), (16, True), (1, False), (1, True)])
def test_a_selection_is_compared_before_it_is_used(
    tile: int, has_parents: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of its steps, as a compiler may lose some of the best scores."""
    gate, _ = drawn((2, 4, 16, 16), 3, 20)
    kernels = fused_scan.triton_kernels()
    assert kernels is not None
    right = kernels.tile_keys

    class Wrong:
        def __getitem__(self, grid: tuple[int, ...]) -> object:
            def run(*arguments: object, **constants: object) -> None:
                right[grid](*arguments, **constants)
                found = arguments[2]
                assert isinstance(found, Tensor)
                if (constants["TILE"], constants["HAS_PARENTS"]) == (tile, has_parents):
                    found[:, ::2] = torch.iinfo(torch.int64).min

            return run

    wrong = SimpleNamespace(mol_scores=kernels.mol_scores, tile_keys=Wrong(), IS_INTERPRETED=False)
    monkeypatch.setattr(fused_scan, "triton_kernels", lambda: wrong)
    found = fused_scan.fused_scan(gate, (2, 4), 16, torch.float32)
    assert found == "it is compiled wrongly: its selection misses some of the best scores"


@pytest.mark.usefixtures("as_on_a_gpu")
def test_a_gate_that_does_not_fit_and_a_compiler_that_fails_are_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    large, _ = drawn((32, 16, 4, 16), 1, 1)
    reasons = [fused_scan.fused_scan(large, (32, 16), 4, torch.float32)]
    assert reasons == ["a gate of 512 pairs and 16 hidden units does not fit a program"]
    gate, _ = drawn((2, 4, 16, 16), 1, 1)
    for error in (
        RuntimeError("CUDA driver version is insufficient for CUDA runtime version"),
        ValueError("sm_37 has no such instruction"),
    ):

        def fail(*_: object, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(fused_scan, "FusedScan", fail)
        reasons.append(fused_scan.fused_scan(gate, (2, 4), 16, torch.float32))
        assert reasons[-1] == f"it could not be compiled: {type(error).__name__}: {error}"
    assert [message.partition(": ")[2] for message in caplog.messages] == reasons


def test_without_a_compiler_the_other_scan_is_used_and_it_is_said_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fused_scan, "triton_kernels", lambda: None)
    gate, _ = drawn((2, 4, 16, 16), 1, 1)
    reason = fused_scan.fused_scan(gate, (2, 4), 16, torch.float32)
    assert reason == "triton 3.7.1 or later is not installed: pip install 'rails-ray[gpu]'"
    assert reason in caplog.text


def test_the_interpreter_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_scan, "triton_kernels", lambda: SimpleNamespace(IS_INTERPRETED=True))
    gate, _ = drawn((2, 4, 16, 16), 1, 1)
    with pytest.raises(ValueError, match="TRITON_INTERPRET must not be set where a GPU scans or trains, got 1: unset"):
        fused_scan.fused_scan(gate, (2, 4), 16, torch.float32)


def test_an_old_triton_counts_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    import triton

    fused_scan.triton_kernels.cache_clear()
    monkeypatch.setattr(triton, "__version__", "3.6.0")
    try:
        assert fused_scan.triton_kernels() is None
        fused_scan.triton_kernels.cache_clear()
        monkeypatch.setattr(triton, "__version__", "3.8.0rc1+git1234")
        assert fused_scan.triton_kernels() is not None
    finally:
        fused_scan.triton_kernels.cache_clear()


COMPILE = """
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from rails_ray.kernels import fused_kernel
from rails_ray.kernels.fused_scan import Tiling

capability, is_single, is_relu, has_rows = int(sys.argv[1]), *(bool(int(word)) for word in sys.argv[3:])
kernel = fused_kernel.mol_scores
kinds = dict(f="*fp16", u="*fp32", g="*fp32", v="*fp32", rows="*i64", w1="*fp16", b1="*fp32", w2="*fp16", b2="*fp32",
             out="*fp32", num="i32", num_queries="i32", queries_each="i32")
tiling = vars(Tiling.of((8, 8), 32, 128, is_single=is_single))
constants = {**tiling, "HAS_ROWS": has_rows, "IS_RELU": is_relu, "HAS_TANH": True, "PRECISION": "ieee"}
signature = {**kinds, **dict.fromkeys(constants, "constexpr")}
names = kernel.arg_names
aligned = {(names.index(name),): [["tt.divisibility", 16]] for name, kind in kinds.items()
           if kind[0] == "*" and name != "rows"}
source = ASTSource(kernel, signature, {(names.index(name),): value for name, value in constants.items()}, aligned)
made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 4, "num_stages": 3})
open(sys.argv[2], "wb").write(made.asm["cubin"])
ptx = made.asm["ptx"]
print(*(f"{word}={ptx.count(word)}" for word in ("wgmma.mma_async", "mma.sync", "tcgen05.mma")), made.metadata.shared)
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("capability", "instruction"), [(80, "mma.sync"), (90, "wgmma.mma_async"), (100, "tcgen05.mma")]
)
@pytest.mark.parametrize(("is_single", "is_relu", "has_rows"), [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)])
def test_it_compiles_for_gpus_that_are_not_here(
    capability: int, instruction: str, is_single: int, is_relu: int, has_rows: int, tmp_path: Path
) -> None:
    """To the instructions of matrix units, within a multiprocessor's memory, and on Hopper without spills."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    binary = tmp_path / "cubin"
    words = map(str, (capability, binary, is_single, is_relu, has_rows))
    command = [sys.executable, "-c", COMPILE, *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    *counts, shared = done.stdout.split()
    assert int(dict(count.split("=") for count in counts)[instruction]) >= 10
    assert int(shared) <= 100 * 1024
    if capability == 90:
        import triton

        tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
        usage = subprocess.run([tool, "-res-usage", binary], capture_output=True, text=True, check=True).stdout
        assert "STACK:0 " in usage
        assert "LOCAL:0 " in usage


# CI has no GPU: `python -m jobs.benches.gpu --only tests` runs it on a machine that has one.
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("activation", ["silu", "relu"])
def test_on_a_gpu_what_is_compiled_passes_its_check(activation: Activation) -> None:
    gate, _ = drawn(BOOKS, 1, 1)
    for stored in (torch.float32, torch.float16, torch.bfloat16):
        found = fused_scan.fused_scan(gate._replace(activation=activation), (8, 8), 32, stored)
        assert isinstance(found, fused_scan.FusedScan), found
