"""Python in a process of its own, from which some packages are hidden."""

import subprocess
import sys

from support.sources import ROOT


def run_without(hidden: set[str], code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own in which some packages cannot be imported."""
    prelude = f"import sys\nsys.modules.update(dict.fromkeys({sorted(hidden)!r}))\n"  # None stands for no such package
    return subprocess.run([sys.executable, "-c", prelude + code], capture_output=True, text=True, cwd=ROOT, check=False)
