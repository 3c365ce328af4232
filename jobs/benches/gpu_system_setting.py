"""The machine that `gpu_system` measures on, and what can be seen of its GPU from outside the processes that use it."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PRETENDED = '{"GPU": 1}'  # as RAY_OVERRIDE_RESOURCES: a GPU that no device stands behind, which counts as the CPU


@dataclass(frozen=True)
class System:
    """
    device: cuda, or cpu for a GPU that Ray only counts, so that all is placed as on a GPU and computed on the CPU.
    is_small: sizes for a test.
    folder: scratch storage of this execution, gone at its end.
    """

    device: str
    is_small: bool
    folder: str

    @property
    def has_gpu(self) -> bool:
        return self.device == "cuda"

    @property
    def cores(self) -> int:
        return os.cpu_count() or 1

    @property
    def num_cpus(self) -> int:
        """CPUs of the cluster: reservations, of which sections need more than a small machine has cores."""
        return max(2 * self.cores, 16)

    def storage(self, name: str) -> str:
        """A folder of a section's own."""
        return str(Path(self.folder) / name)

    def sized(self, full: int, small: int) -> int:
        return small if self.is_small else full

    def places(self) -> Iterator[tuple[str, bool]]:
        """Yield what a case is measured on, first the GPU, and whether that is the GPU."""
        yield "cuda" if self.has_gpu else "pretended GPU", True
        yield "cpu", False


def used_mb() -> float | None:
    """Memory in use on the first GPU by all processes, as nvidia-smi says; None where there is none."""
    if shutil.which("nvidia-smi") is None:
        return None
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
    with suppress(OSError, subprocess.SubprocessError, ValueError):
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        return float(done.stdout.strip()) * 1.048576
    return None


def num_on_gpu(processes: list[Any]) -> int:
    """How many of these processes have a GPU open."""
    return sum(any(target.startswith("/dev/nvidia") for target in _opened(process.pid)) for process in processes)


def _opened(pid: int) -> Iterator[str]:
    with suppress(OSError):  # a process that has ended
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                yield str(descriptor.readlink())
