"""Machines of replicas, and the time that a search takes on each. `rails_ray.cli.planning` has the formulas."""

import math
from dataclasses import astuple, dataclass, replace
from functools import cache
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np

from rails_ray.cli.planning import measured
from rails_ray.cli.planning.searches import SearchWork, work

SCORE_BYTES = 8  # a float32 score is written once and read once
FUNCTIONS_PER_CLOCK = (
    16  # of a multiprocessor: CUDA C++ Programming Guide, throughput of native arithmetic instructions
)
# Of brute_force on an H100, where d is at most 128: a row of other widths may take three times as long.
EFFICIENCY = 0.5
GPU_CALL_S = 0.0007  # to select the best, score them again and answer, whatever the corpus
CPU_MEMORY_BYTES = 16e9  # an assumption: 8 GB a core, as clouds sell machines with much memory

# The resource that each part of a search's time uses.
BANDWIDTH, ARITHMETIC, CALL = "memory bandwidth", "arithmetic", "the call itself"
RESOURCES = {
    "reading": BANDWIDTH,
    "gathering": BANDWIDTH,
    "reordering gates": BANDWIDTH,
    "products": ARITHMETIC,
    "special functions": ARITHMETIC,
    "selecting": ARITHMETIC,
    "the call itself": CALL,
}


@runtime_checkable
class Machine(Protocol):
    """Hardware of a shard's replica: a GPU, or some CPU cores."""

    @property
    def name(self) -> str: ...

    @property
    def is_gpu(self) -> bool: ...

    @property
    def unit(self) -> str:
        """Name what a replica takes some of."""
        ...

    @property
    def num_units(self) -> int: ...

    @property
    def memory_bytes(self) -> float: ...

    @property
    def efficiency(self) -> float:
        """Share of the speed of its parts that a search reaches; 1 where the parts were measured."""
        ...

    def parts(self, done: SearchWork, dtype: str) -> dict[str, float]:
        """Seconds of each part of a search's time."""
        ...

    def seconds(self, done: SearchWork, dtype: str) -> float:
        """Seconds of a search."""
        ...


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU by its public peaks.

    Args:
        memory_bytes: of the GPU.
        bytes_per_s: bandwidth of its memory.
        half_flops: dense products of bf16 or fp16 on tensor cores; int8 components are widened to them.
        float_flops: products of fp32, which torch does not round to TF32 by default.
        num_multiprocessors, clock_hz: what special functions depend on; the clock is the highest.
        efficiency: share of the roofline that a search reaches, in (0, 1].
    """

    is_gpu: ClassVar[bool] = True
    unit: ClassVar[str] = "GPUs"
    num_units: ClassVar[int] = 1

    name: str
    memory_bytes: float
    bytes_per_s: float
    half_flops: float
    float_flops: float
    num_multiprocessors: int
    clock_hz: float
    efficiency: float = EFFICIENCY

    def parts(self, done: SearchWork, dtype: str) -> dict[str, float]:
        """Seconds of each part at its peak, all at once."""
        moved = done.read_bytes + done.gathered_bytes + SCORE_BYTES * done.selected_scores
        is_fused = done.special_functions > 0  # a mixture's kernel multiplies in 16 bits, whatever is stored
        peak = self.float_flops if dtype == "fp32" and not is_fused else self.half_flops
        functions = FUNCTIONS_PER_CLOCK * self.num_multiprocessors * self.clock_hz
        return {
            "reading": moved / self.bytes_per_s,
            "products": done.product_flops / peak,
            "special functions": done.special_functions / functions,
        }

    def seconds(self, done: SearchWork, dtype: str) -> float:
        """The longest part, as far as the search reaches the roofline, and the call itself."""
        return GPU_CALL_S + max(self.parts(done, dtype).values()) / self.efficiency


@dataclass(frozen=True, kw_only=True)
class Cpu:
    """Two cores, as measured. Components of another dtype take as long, but for reading them."""

    name: ClassVar[str] = f"{measured.CORES} CPU cores"
    is_gpu: ClassVar[bool] = False
    unit: ClassVar[str] = "CPU cores"
    num_units: ClassVar[int] = measured.CORES
    efficiency: ClassVar[float] = 1.0

    memory_bytes: float = CPU_MEMORY_BYTES

    def parts(self, done: SearchWork, dtype: str) -> dict[str, float]:
        """Seconds of each part, one after the other."""
        names = (
            "products",
            "special functions",
            "reading",
            "gathering",
            "reordering gates",
            "selecting",
            "the call itself",
        )
        each = zip(names, astuple(done), cpu_units(), strict=True)
        return {name: amount * seconds for name, amount, seconds in each}

    def seconds(self, done: SearchWork, dtype: str) -> float:
        """The sum of all parts."""
        return sum(self.parts(done, dtype).values())


@cache
def cpu_units() -> tuple[float, ...]:
    """Seconds on two cores for a unit of each field of `SearchWork`, with which the measured rows come out exactly."""
    amounts = np.array([astuple(work(row.shape, row.search, row.num_items)) for row in measured.TIMED])
    largest = amounts.max(axis=0)  # floating-point operations and calls differ by a factor of 10^11
    seconds = np.array([row.figure.value / 1000 for row in measured.TIMED])
    return tuple((np.linalg.solve(amounts / largest, seconds) / largest).tolist())


# NVIDIA's data sheets of H200, H100, A100 (80 GB), all SXM, L40S and L4: memory, bandwidth, dense tensor-core products
# (half of the figure with sparsity), fp32. fp32 is also 2 * lanes * multiprocessors * clock, which gives the clocks.
GPUS = {
    "h200": Gpu(
        name="h200",
        memory_bytes=141e9,
        bytes_per_s=4.8e12,
        half_flops=989e12,
        float_flops=67e12,
        num_multiprocessors=132,
        clock_hz=1.98e9,
    ),
    "h100": Gpu(
        name="h100",
        memory_bytes=80e9,
        bytes_per_s=3.35e12,
        half_flops=989e12,
        float_flops=67e12,
        num_multiprocessors=132,
        clock_hz=1.98e9,
    ),
    "a100-80": Gpu(
        name="a100-80",
        memory_bytes=80e9,
        bytes_per_s=2.039e12,
        half_flops=312e12,
        float_flops=19.5e12,
        num_multiprocessors=108,
        clock_hz=1.41e9,
    ),
    "l40s": Gpu(
        name="l40s",
        memory_bytes=48e9,
        bytes_per_s=0.864e12,
        half_flops=362e12,
        float_flops=91.6e12,
        num_multiprocessors=142,
        clock_hz=2.52e9,
    ),
    "l4": Gpu(
        name="l4",
        memory_bytes=24e9,
        bytes_per_s=0.3e12,
        half_flops=121e12,
        float_flops=30.3e12,
        num_multiprocessors=58,
        clock_hz=2.04e9,
    ),
}
NO_GPU = "none"


def machine(gpu: str, *, memory_gb: float | None = None, efficiency: float = EFFICIENCY) -> Machine:
    """Find the hardware that replicas run on.

    Args:
        gpu: one of GPUS, or NO_GPU.
        memory_gb: of a replica; by default the GPU's own, or that of two CPU cores.

    Raises:
        ValueError: if the GPU is not in the table, or a number is out of range.
    """
    if memory_gb is not None and not 0 < memory_gb < math.inf:
        raise ValueError(f"memory_gb must be above 0 and finite, got {memory_gb:g}")
    if not 0 < efficiency <= 1:
        raise ValueError(f"efficiency must be above 0 and at most 1, got {efficiency:g}")
    if gpu == NO_GPU:
        return Cpu(memory_bytes=CPU_MEMORY_BYTES if memory_gb is None else 1e9 * memory_gb)
    if gpu not in GPUS:
        raise ValueError(f"gpu must be one of {', '.join(GPUS)}, or {NO_GPU} for CPUs alone, got {gpu!r}")
    found = GPUS[gpu]
    memory_bytes = found.memory_bytes if memory_gb is None else 1e9 * memory_gb
    return replace(found, memory_bytes=memory_bytes, efficiency=efficiency)
