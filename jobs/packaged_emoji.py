"""Make the emoji version that the package carries, which `rails_ray.local.open("emoji")` opens.

    python -m jobs.packaged_emoji

Half as wide as `emoji-mol`, with a quarter of its buckets, so that the wheel stays small, and trained for four times as
many steps. It takes some minutes of two cores, and writes over `rails_ray/packaged/emoji`.
"""

import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from rails_ray.cli.main import main
from rails_ray.serving.local import PACKAGED

NAME = "emoji"
ARGUMENTS = [
    *("pipeline", "emoji-mol", "--run", NAME, "--workers", "1", "--shards", "1", "--items.dtype", "float16"),
    *("--encoder.width", "32", "--encoder.hidden", "64", "--encoder.num-buckets", "16384", "--components.width", "32"),
    *("--training.num-steps", "1600"),
]
READ = ("CURRENT", "objects", "versions")  # what a reader reads; the run and the data stay behind


def make() -> int:
    """Train, measure and publish in a folder that goes, and keep what a reader reads. Returns an exit code."""
    with TemporaryDirectory() as folder:
        code = main([*ARGUMENTS, "--storage", folder])
        if not code:
            keep(Path(folder))
    return code


def keep(storage: Path) -> None:
    """Put what a reader reads of a storage in the place of what the package carries."""
    target = PACKAGED / NAME
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(
        storage, target, ignore=lambda folder, names: set(names) - set(READ) if folder == str(storage) else ()
    )


if __name__ == "__main__":
    sys.exit(make())
