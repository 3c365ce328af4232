"""The fused gradient in Triton's interpreter, or on a GPU."""

import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rails_ray.kernels import checked_gradient, fused_gradient, fused_scan, hashed_dropout, mol_gradient
from rails_ray.kernels.fused_gradient import FusedGradient, PaddedSizes, Task
from rails_ray.kernels.hashed_dropout import STEPS, Dropout
from rails_ray.kernels.mol_scan import Activation, Gate, plain_scores
from support.tried import tried

pytest.importorskip("triton", reason="needs Triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SINGLE, HALF = (torch.float32, torch.float32), (torch.float16, torch.float16)
Shape = tuple[int, int, int, int]  # P_Q, P_X, d, H
NAMES = ("f", "u", "g", "v", "W1", "b1", "W2", "b2")


@pytest.fixture(autouse=True)
def nothing_is_checked() -> None:
    checked_gradient._checked.cache_clear()


def leaves_of(shape: Shape, num_queries: int, num_items: int, seed: int = 0) -> list[Tensor]:
    """f, u, g, v, W1, b1, W2, b2."""
    p_q, p_x, width, hidden = shape
    generator, num = torch.Generator().manual_seed(seed), p_q * p_x

    def normal(*sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=generator)

    f, g = F.normalize(normal(num_queries, p_q, width), dim=2), F.normalize(normal(num_items, p_x, width), dim=2)
    layers = normal(hidden, num) / num**0.5, normal(hidden), normal(num, hidden) / hidden**0.5, normal(num)
    found = (f, normal(num_queries, num), g, normal(num_items, num), *layers)
    return [tensor.to(DEVICE).requires_grad_() for tensor in found]


def gate_of(leaves: list[Tensor], activation: Activation) -> Gate:
    return Gate(*leaves[4:], 0.2, activation)


def dropout_of(num_queries: int, num_items: int, logits: float, gates: float) -> Dropout:
    torch.manual_seed(5)
    found = hashed_dropout.drawn(num_queries, num_items, logits, gates, torch.device(DEVICE))
    assert found is not None
    return found


def differentiated(scores: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    slope = torch.randn(scores.shape, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    return [scores.detach(), *torch.autograd.grad((scores * slope).sum(), leaves)]


def check(
    shape: Shape,
    num_queries: int,
    num_items: int,
    activation: Activation,
    dropped: tuple[float, float] | None,
    operands: tuple[torch.dtype, torch.dtype] = SINGLE,
    tolerance: float = 2e-5,
) -> None:
    """Against `mol_gradient` with the masks that the kernel draws, by autograd where there are none."""
    leaves = leaves_of(shape, num_queries, num_items)
    gate = gate_of(leaves, activation)
    kernel = FusedGradient(shape[:2], shape[2], shape[3], activation, operands)
    if dropped is None:
        dropout, exact = None, plain_scores(*leaves[:4], gate)
    else:
        dropout = dropout_of(num_queries, num_items, *dropped)
        exact = mol_gradient.scores(*leaves[:4], gate, kept=dropout.kept(shape[:2]))
    found = differentiated(kernel.scores(*leaves[:4], gate, dropout), leaves)
    for name, own, other in zip(("scores", *NAMES), found, differentiated(exact, leaves), strict=True):
        assert own.shape == other.shape, name
        if other.numel():
            assert (own - other).abs().max() <= tolerance * max(1.0, float(other.abs().max())), name


@pytest.mark.parametrize(
    ("shape", "num_queries", "num_items", "dropped", "activation"),
    [
        ((8, 8, 32, 128), 9, 17, None, "silu"),
        ((8, 8, 32, 128), 9, 17, (0.1, 0.2), "silu"),
        ((8, 8, 32, 128), 9, 17, (0.1, 0.2), "relu"),
        ((8, 4, 64, 128), 3, 33, (0.1, 0.2), "silu"),
        ((2, 3, 5, 7), 35, 6, None, "silu"),
        ((2, 3, 5, 7), 35, 6, (0.1, 0.2), "relu"),
        ((1, 4, 8, 16), 2, 20, (0.1, 0.2), "silu"),
        ((16, 4, 8, 20), 5, 21, None, "relu"),
    ],
)
def test_scores_and_gradients_are_those_of_the_equation(
    shape: Shape, num_queries: int, num_items: int, dropped: tuple[float, float] | None, activation: Activation
) -> None:
    check(shape, num_queries, num_items, activation, dropped)


@pytest.mark.long
@tried(5)
@given(
    st.integers(0, 40),
    st.integers(0, 40),
    st.sampled_from([(1, 1), (1, 4), (2, 3), (3, 2), (4, 4), (5, 3), (4, 1), (7, 9)]),
    st.integers(1, 20),
    st.integers(1, 20),
    st.sampled_from([None, (0.3, 0.0), (0.0, 0.4), (0.2, 0.3)]),
    st.sampled_from(["silu", "relu"]),
)
def test_any_shape(
    b: int,
    x: int,
    num_components: tuple[int, int],
    width: int,
    hidden: int,
    dropped: tuple[float, float] | None,
    activation: Activation,
) -> None:
    check((*num_components, width, hidden), b, x, activation, dropped)


@pytest.mark.parametrize("dropped", [None, (0.1, 0.2)])
def test_with_operands_of_16_bits_they_are_close(dropped: tuple[float, float] | None) -> None:
    check((4, 4, 16, 32), 20, 30, "silu", dropped, HALF, 5e-3)


def test_columns_are_shared_out_when_rows_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """More shares than one, and more tiles than shares."""
    for programs in (1, 3):
        monkeypatch.setattr(fused_gradient, "PROGRAMS", programs)
        check((8, 4, 8, 16), 17, 20, "silu", (0.1, 0.2))


def test_dropped_shares_are_those_of_the_config_and_pairs_are_independent() -> None:
    """Over queries, items and pairs of components: means, and products of neighbours in each direction."""
    dropout = dropout_of(60, 200, 0.1, 0.25)
    kept = dropout.kept((8, 4))
    assert dropout.share == pytest.approx(0.9, abs=1 / STEPS)
    masks = []
    for mask, share in ((kept.logits, 0.9), (kept.gates, 0.75)):
        assert mask is not None
        each = mask.double().view(32, 60, 200)
        assert each.mean() == pytest.approx(share, abs=0.003)
        for axes in ((0, 1), (0, 2), (1, 2)):
            assert (each.mean(dim=axes) - share).abs().max() < 0.05
        masks.append((each - share) / (share * (1 - share)) ** 0.5)
    logits, gates = masks
    pairs = [
        (logits, gates),
        *((each.narrow(axis, 0, 20), each.narrow(axis, 1, 20)) for each in masks for axis in range(3)),
    ]
    for one, other in pairs:
        assert (one * other).mean().abs() < 5 / one.numel() ** 0.5


def test_words_are_of_torchs_generator_and_none_where_nothing_is_dropped() -> None:
    first, again = dropout_of(3, 4, 0.1, 0.2), dropout_of(3, 4, 0.1, 0.2)
    assert torch.equal(first.query_words, again.query_words)
    assert torch.equal(first.item_words, again.item_words)
    assert hashed_dropout.drawn(3, 4, 0.0, 0.0, torch.device(DEVICE)) is None


def test_a_pair_without_any_gate_scores_0() -> None:
    leaves = leaves_of((2, 2, 4, 4), 3, 5)
    kernel = FusedGradient((2, 2), 4, 4, "silu", SINGLE)
    dropout = dropout_of(3, 5, 0.1, 0.2)._replace(gates=STEPS)
    found = differentiated(kernel.scores(*leaves[:4], gate_of(leaves, "silu"), dropout), leaves)
    assert not found[0].any()
    assert all(gradient.isfinite().all() for gradient in found)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the interpreter's arithmetic
@pytest.mark.parametrize("activation", ["silu", "relu"])
def test_what_is_not_a_number_is_not_lost(activation: Activation) -> None:
    leaves = leaves_of((2, 2, 4, 4), 3, 5)
    with torch.no_grad():
        leaves[2][3, 0, 0] = leaves[1][1, 2] = torch.nan
    scores = FusedGradient((2, 2), 4, 4, activation, SINGLE).scores(*leaves[:4], gate_of(leaves, activation))
    assert scores[:, 3].isnan().all()
    assert scores[1].isnan().all()
    assert scores.isfinite().sum() == 2 * 4


def test_a_mixture_that_does_not_fit_is_refused() -> None:
    assert PaddedSizes.of((8, 8), 32, 128) is not None
    for num_components, width, hidden in (((16, 16), 8, 8), ((128, 1), 8, 8), ((8, 8), 129, 8), ((8, 8), 32, 129)):
        assert PaddedSizes.of(num_components, width, hidden) is None
    with pytest.raises(ValueError, match=re.escape("needs Triton 3.7.1 or later, and a mixture that fits a program")):
        FusedGradient((16, 16), 8, 8, "silu")


CHECKED = ((2, 4), 8, 8, "silu", torch.device(DEVICE))


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter stands for a compiler, without bfloat16, which it multiplies wrongly; sizes are small."""
    monkeypatch.setattr(checked_gradient, "why_missing", lambda: None)
    monkeypatch.setattr(FusedGradient.__init__, "__defaults__", (HALF,))
    monkeypatch.setattr(checked_gradient, "CHECKED_QUERIES", 9)
    monkeypatch.setattr(checked_gradient, "CHECKED_ITEMS", 10)


@pytest.mark.usefixtures("as_on_a_gpu")
def test_a_kernel_that_is_right_is_checked_once(caplog: pytest.LogCaptureFixture) -> None:
    right = checked_gradient._checked(*CHECKED)
    assert right is not None
    assert right is checked_gradient._checked(*CHECKED)
    assert not caplog.records


class Wrong:
    """The kernel as a compiler may make it: one of the tensors that it writes is off."""

    def __init__(self, kernel: Any, argument: int) -> None:
        self.kernel = kernel
        self.argument = argument

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def run(*arguments: Any, **constants: Any) -> None:
            self.kernel[grid](*arguments, **constants)
            is_backward = constants["HAS_ROWS"] or constants["HAS_WEIGHTS"]
            if len(arguments[self.argument]) and not (is_backward and self.argument == 10):
                arguments[self.argument][0] *= 3

        return run


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize(
    "argument", [10, 11, pytest.param(12, marks=pytest.mark.long), pytest.param(13, marks=pytest.mark.long)]
)
def test_a_kernel_is_compared_with_the_other_way_before_it_is_used(
    argument: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each of its outputs in turn is wrong: scores, and gradients of components, gates and weights."""
    from rails_ray.kernels import fused_gradient_kernel

    wrong = Wrong(fused_gradient_kernel.mol_training, argument)
    monkeypatch.setattr(fused_gradient_kernel, "mol_training", wrong)
    with caplog.at_level(logging.WARNING):
        assert [checked_gradient._checked(*CHECKED) for _ in range(3)] == [None] * 3
    [message] = caplog.messages
    assert re.fullmatch(
        "a GPU trains without the fused kernel, and more slowly: it is compiled wrongly: scores or gradients are off "
        r"by [\d.]+ of their size",
        message,
    )


def test_why_there_is_no_kernel_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(fused_scan, "triton_kernels", lambda: None)
    assert checked_gradient._checked(*CHECKED) is None
    assert "and more slowly: triton 3.7.1 or later is not installed: pip install 'rails-ray[gpu]'" in caplog.text
    monkeypatch.setattr(checked_gradient, "why_missing", lambda: None)
    assert checked_gradient._checked((32, 16), 4, 16, "silu", torch.device(DEVICE)) is None
    assert "a mixture of 32 x 16 components of width 4, 16 hidden units, does not fit a program" in caplog.text

    def fail(*_: object) -> None:
        raise RuntimeError("CUDA driver version is insufficient")

    monkeypatch.setattr(checked_gradient, "FusedGradient", fail)
    assert checked_gradient._checked(*CHECKED[:3], "relu", torch.device(DEVICE)) is None
    assert "could not be compiled: RuntimeError: CUDA driver version is insufficient" in caplog.text


def test_a_gpu_with_too_few_registers_has_none(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(checked_gradient, "why_missing", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert checked_gradient._checked(*CHECKED[:4], torch.device("cuda", 7)) is None
    assert "its way back needs more registers than GPUs before compute capability 9.0 have" in caplog.text


def test_the_interpreter_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_scan, "triton_kernels", lambda: SimpleNamespace(IS_INTERPRETED=True))
    with pytest.raises(ValueError, match="TRITON_INTERPRET must not be set where a GPU scans or trains, got 1: unset"):
        checked_gradient._checked(*CHECKED)


def test_a_processor_and_other_dtypes_have_no_kernel() -> None:
    assert checked_gradient.fused_gradient(torch.zeros(2, 2, 8), (2, 4), 8, "silu") is None
    assert (
        checked_gradient.fused_gradient(torch.zeros(2, 2, 8, dtype=torch.float64, device=DEVICE), (2, 4), 8, "silu")
        is None
    )


COMPILE = """
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from rails_ray.kernels.fused_gradient import WARPS, PaddedSizes
from rails_ray.kernels.fused_gradient_kernel import mol_training as kernel

capability, p_q, p_x, width, hidden, is_turned = map(int, sys.argv[1:7])
task = sys.argv[7]
kinds = dict(x="*fp16", x_gate="*fp32", x_words="*i32", y="*fp16", y_gate="*fp32", y_words="*i32", w1="*bf16",
             b1="*fp32", w2="*bf16", b2="*fp32", pairs="*fp32", of_x="*fp32", of_x_gate="*fp32", of_weights="*fp32",
             num_rows="i32", num_columns="i32", columns_each="i32", logits_dropped="i32", gates_dropped="i32",
             zero="i32")
constants = {
    **PaddedSizes.of((p_q, p_x), width, hidden).constants(task, is_turned=bool(is_turned)),
    "DROPS": True, "IS_RELU": False, "HAS_TANH": True, "PRECISION": "ieee",
}
signature = {**kinds, **dict.fromkeys(constants, "constexpr")}
names = kernel.arg_names
aligned = {(names.index(name),): [["tt.divisibility", 16]] for name, kind in kinds.items() if kind[0] == "*"}
source = ASTSource(kernel, signature, {(names.index(name),): value for name, value in constants.items()}, aligned)
options = {"num_warps": WARPS[task], "num_stages": 1}
made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
open(sys.argv[8], "wb").write(made.asm["cubin"])
ptx = made.asm["ptx"]
print(*(f"{word}={ptx.count(word)}" for word in ("wgmma.mma_async", "mma.sync", "tcgen05.mma")), made.metadata.shared)
"""


# Bytes of a thread on Hopper; the way back needs more than the 255 registers that a thread can have.
MOST_SPILLED: dict[Task, int] = {"scores": 0, "rows": 400, "weights": 520}


@pytest.mark.long
@pytest.mark.parametrize(
    ("capability", "instruction", "most_shared"),
    [(80, "mma.sync", 163), (90, "wgmma.mma_async", 227), (100, "tcgen05.mma", 227)],
)
@pytest.mark.parametrize("shape", [(8, 4, 64, 128), (8, 8, 32, 128)])
@pytest.mark.parametrize(("is_turned", "task"), [(1, "scores"), (1, "rows"), (0, "rows"), (1, "weights")])
def test_it_compiles_for_gpus_that_are_not_here(
    capability: int,
    instruction: str,
    most_shared: int,
    shape: Shape,
    is_turned: int,
    task: Task,
    tmp_path: Path,
) -> None:
    """To the instructions of matrix units, within a multiprocessor's memory, on Hopper without spills there."""
    import triton

    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    binary = tmp_path / "cubin"
    numbers = map(str, (capability, *shape, is_turned, task))
    done = subprocess.run(
        [sys.executable, "-c", COMPILE, *numbers, str(binary)],
        env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *counts, shared = done.stdout.split()
    assert int(dict(count.split("=") for count in counts)[instruction]) >= 3
    assert int(shared) <= most_shared * 1024
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    usage = subprocess.run([tool, "-res-usage", binary], capture_output=True, text=True, check=True).stdout
    if capability == 90:
        spilled = int(re.findall(r"STACK:(\d+)", usage)[-1])
        assert spilled <= MOST_SPILLED[task], usage


# CI has no GPU: `python -m jobs.benches.gpu --only tests` runs it on a machine that has one.
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("activation", ["silu", "relu"])
@pytest.mark.parametrize("shape", [(8, 8, 32, 128), (8, 4, 64, 128), (2, 2, 8, 16), (8, 4, 128, 128)])
def test_on_a_gpu_what_is_compiled_passes_its_check(shape: Shape, activation: Activation) -> None:
    query = torch.zeros(1, shape[0], shape[2], device="cuda")
    assert checked_gradient.fused_gradient(query, shape[:2], shape[3], activation) is not None
