"""How the bench of a GPU measures: time, memory, work of the host, and the limits that the hardware has.

Limits are measured in the same run, on the same machine: a copy that fits no cache, and a square matrix product for
each precision. A share of a limit is the time that the limit allows over the time that was taken.

The host waits for the GPU wherever it reads what the GPU computed. That is counted three ways, each in its own run:

    synchronisations          every `cudaStreamSynchronize` that the profiler saw: the reliable one, on a GPU alone
    warned_synchronisations   torch's own warnings (`set_sync_debug_mode`), which torch calls incomplete, but which name
                              the lines, `waits_at`
    host_reads                operators whose result the host must read before it can go on; the same on any device, so
                              that a CPU can foretell them; moves to and from the GPU are not in it
"""

import shutil
import statistics
import subprocess
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

DTYPES = {"float32": torch.float32, "tf32": torch.float32, "bfloat16": torch.bfloat16}
TIMED_MS = 500  # runs of one thing together, unless MOST_REPEATS come first
MOST_REPEATS, LEAST_REPEATS = 30, 5
NUM_PLACES = 8  # lines that wait, of which a row tells
COPIED_BYTES, SQUARE = 2**30, 8192  # 20 times the caches of an H100; a product that keeps all its cores busy
SMALL_BYTES, SMALL_SQUARE = 2**24, 256
aten = torch.ops.aten
READS = {  # operators whose output's size or value the host needs
    aten._local_scalar_dense, aten.nonzero, aten._unique2, aten.unique_dim, aten.unique_consecutive, aten.masked_select,
    aten.repeat_interleave, aten.bincount,
}  # fmt: skip
INDEXING = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_}  # where by a mask
CLOCKS = ("driver_version", "clocks.sm", "clocks.max.sm", "clocks.mem", "power.draw", "power.limit")


@dataclass(frozen=True)
class Limits:
    """
    bytes_per_s: of a copy, read and written.
    flops_per_s: of a matrix product, by precision.
    """

    bytes_per_s: float
    flops_per_s: dict[str, float]


@dataclass(frozen=True)
class Bench:
    """
    is_small: sizes for a test, each thing timed once.
    batches: queries of a search.
    """

    device: torch.device
    is_small: bool
    limits: Limits
    shapes: tuple[str, ...]
    batches: tuple[int, ...]

    @property
    def precisions(self) -> tuple[str, ...]:
        return ("float32", "tf32", "bfloat16") if self.device.type == "cuda" else ("float32", "bfloat16")


class Case(NamedTuple):
    """
    labels: what is measured.
    measure: the numbers; an entry `failed` says why they do not count.
    """

    labels: dict[str, Any]
    measure: Callable[[], dict[str, Any]]


@contextmanager
def products_in(precision: str) -> Iterator[None]:
    """Inside the block products of float32 may be of TF32, or must not."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def median_ms(run: Callable[[], object], device: torch.device, is_small: bool = False) -> tuple[float, int]:
    """The median of so many runs, after one that is not timed."""
    run()
    times: list[float] = []
    while not times or (not is_small and _goes_on(times)):
        times.append(elapsed_ms(run, device))
    return statistics.median(times), len(times)


def _goes_on(times: list[float]) -> bool:
    return len(times) < LEAST_REPEATS or (sum(times) < TIMED_MS and len(times) < MOST_REPEATS)


def elapsed_ms(run: Callable[[], object], device: torch.device) -> float:
    """From the first command to the end of the last, by events on a GPU; waits of the host are in it."""
    if device.type != "cuda":
        started = time.perf_counter()
        run()
        return 1000 * (time.perf_counter() - started)
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize(device)
    first.record()
    run()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last))


def peak_mb(run: Callable[[], object], device: torch.device) -> dict[str, float]:
    """GPU memory that tensors took at most, all of it, and above what was there before; nothing on a CPU."""
    if device.type != "cuda":
        run()
        return {}
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    run()
    torch.cuda.synchronize(device)
    most = torch.cuda.max_memory_allocated(device)
    return {"peak_mb": most / 1e6, "peak_mb_above": (most - before) / 1e6}


def work_of_the_host(run: Callable[[], object], device: torch.device) -> dict[str, Any]:
    """How many operators one run has and how often the host waits; on a GPU also where, how many kernels are started,
    and for how long they run."""
    with Operators() as seen:
        run()
    row: dict[str, Any] = {"operators": seen.num_operators, "host_reads": seen.num_reads}
    if device.type == "cuda":
        for look in (synchronisations, profiled):
            try:
                row |= look(run)
            except Exception as error:  # an instrument that does not work on a machine costs its own numbers alone
                row[f"no_{look.__name__}"] = f"{type(error).__name__}: {error}"[:300]
    return row


class Operators(TorchDispatchMode):
    """Counts what is computed inside the block, views included."""

    def __init__(self) -> None:
        super().__init__()
        self.num_operators = self.num_reads = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kind = func.overloadpacket
        self.num_operators += 1
        kwargs = kwargs or {}
        has_size = kind is aten.repeat_interleave and kwargs.get("output_size") is not None
        self.num_reads += (kind in READS and not has_size) or (kind in INDEXING and _reads_a_mask(*args))
        return func(*args, **kwargs)


def _reads_a_mask(_: Tensor, indices: Sequence[Tensor | None], values: Tensor | None = None, *rest: object) -> bool:
    """Whether the places that a mask selects are counted; to fill them with one number, they need not be."""
    has_mask = any(index is not None and index.dtype == torch.bool for index in indices)
    return has_mask and (values is None or values.numel() != 1)


def synchronisations(run: Callable[[], object]) -> dict[str, Any]:
    """What torch warns of, and the lines that it names."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            run()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    own = [warning for warning in caught if "synchronizing CUDA operation" in str(warning.message)]
    places = Counter(f"{'/'.join(Path(warning.filename).parts[-2:])}:{warning.lineno}" for warning in own)
    return {"warned_synchronisations": len(own), "waits_at": dict(places.most_common(NUM_PLACES))}


def profiled(run: Callable[[], object]) -> dict[str, Any]:
    """What the profiler sees; empty where it cannot look at the GPU, as in some containers."""
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        run()
        torch.cuda.synchronize()  # which is a cudaDeviceSynchronize and so not counted
    # As they are: to make `seen.events()` of the 200,000 of a search takes longer than ten searches.
    events = seen.profiler.kineto_results.events()
    on_gpu = [event for event in events if event.device_type() == DeviceType.CUDA]
    if not on_gpu:
        return {}
    names = Counter(event.name() for event in events if event.device_type() == DeviceType.CPU)
    return {
        "synchronisations": names["cudaStreamSynchronize"] + names["cudaEventSynchronize"],
        "kernels": sum(not event.name().startswith(("Memcpy", "Memset")) for event in on_gpu),
        "busy_ms": sum(event.duration_ns() for event in on_gpu) / 1e6,
    }


def measured_limits(device: torch.device, is_small: bool) -> Limits:
    num_bytes, square = (SMALL_BYTES, SMALL_SQUARE) if is_small else (COPIED_BYTES, SQUARE)
    latency = _copy_ms(num_bytes, device, is_small)
    precisions = DTYPES if device.type == "cuda" else {name: DTYPES[name] for name in DTYPES if name != "tf32"}
    rates = {name: _product_rate(name, square, device, is_small) for name in precisions}
    return Limits(2 * num_bytes / latency * 1000, rates)


def _copy_ms(num_bytes: int, device: torch.device, is_small: bool) -> float:
    source = torch.zeros(num_bytes // 4, device=device)
    target = torch.empty_like(source)
    latency, _ = median_ms(lambda: target.copy_(source), device, is_small)
    return latency


def _product_rate(precision: str, square: int, device: torch.device, is_small: bool) -> float:
    a, b = (torch.randn(square, square, device=device).to(DTYPES[precision]) for _ in range(2))  # zeros run faster
    with products_in(precision):
        latency, _ = median_ms(lambda: a @ b, device, is_small)
    return 2 * square**3 / latency * 1000


def device_facts(device: torch.device) -> dict[str, Any]:
    """The GPU, its driver and its clocks as they are now, as far as they are known."""
    if device.type != "cuda":
        return {"device": "cpu", "threads": torch.get_num_threads()}
    facts = torch.cuda.get_device_properties(device)
    return {
        "device": facts.name,
        "capability": f"{facts.major}.{facts.minor}",
        "multiprocessors": facts.multi_processor_count,
        "memory_gb": facts.total_memory / 1e9,
        "cuda": torch.version.cuda,
        **clocks(),
    }


def clocks() -> dict[str, str]:
    """As `nvidia-smi` has them for the first GPU, in MHz and W; nothing where it is missing."""
    if shutil.which("nvidia-smi") is None:
        return {}
    command = ["nvidia-smi", f"--query-gpu={','.join(CLOCKS)}", "--format=csv,noheader,nounits", "--id=0"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return {}
    values = done.stdout.strip().split(", ")
    return dict(zip(CLOCKS, values, strict=True)) if done.returncode == 0 and len(values) == len(CLOCKS) else {}
