"""Room in memory for a version that is loaded while another one answers."""

from math import inf
from pathlib import Path

import psutil

from rails_ray.errors import UnavailableError

PEAK = 3.0  # bytes that loading takes for each byte of a file; measured were 2.0 to 2.8
CGROUP = Path("/sys/fs/cgroup")  # of a container, by the second version of cgroups


def free_bytes() -> float:
    """Memory that this process may still take: what the machine has left, or its container if that is less."""
    return min(psutil.virtual_memory().available, _left_in_container())


def check_room(file_bytes: int, version: str) -> None:
    """Check that files of a version fit into memory beside what is there.

    Args:
        file_bytes: size of the files that are to be loaded.

    Raises:
        UnavailableError: if they do not.
    """
    needed, free = PEAK * file_bytes, free_bytes()
    if needed > free:
        raise UnavailableError(
            f"memory must have {needed / 1e6:,.0f} MB free to load version {version}, got {free / 1e6:,.0f} MB: free "
            "some, or start the server anew"
        )


def _left_in_container() -> float:
    try:
        most = (CGROUP / "memory.max").read_text().strip()
        if most == "max":
            return inf
        used = int((CGROUP / "memory.current").read_text())
        lines = (CGROUP / "memory.stat").read_text().splitlines()
    except (OSError, ValueError):  # another system, or an older one
        return inf
    cached = next((int(line.split()[1]) for line in lines if line.startswith("inactive_file ")), 0)
    return int(most) - used + cached
