"""A user without an entry in passwd and without HOME, as `docker run --user 12345` makes."""

import subprocess
import sys
from pathlib import Path

import pytest

from rails_ray.cli.main import EXIT_BAD_ARGUMENT, main
from rails_ray.paths import expanded

NOBODY = """
import os, pwd
def none(*_):
    raise KeyError("no such user")
pwd.getpwuid = pwd.getpwnam = none
for name in ("HOME", "USER", "LOGNAME", "LNAME", "USERNAME"):
    os.environ.pop(name, None)
"""
WORK = """
import sys
import numpy as np, torch
from rails_ray import local
from rails_ray.cli.main import main
vectors = np.eye(4, dtype=np.float32)
assert local.build(vectors, folder=sys.argv[1]).search(vectors[2:3], k=1).results[0].items == [2]
torch.optim.AdamW(torch.nn.Linear(2, 2).parameters())
sys.exit(main(["index", "list", "--storage", "~/x"]))
"""


@pytest.mark.long
def test_all_but_a_home_folder_is_there_for_a_user_without_a_name(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", NOBODY + WORK, tmp_path], capture_output=True, text=True, check=False)
    sentence = "rails-ray: the home folder of '~/x' must be known, got none: set HOME or name a folder\n"
    assert (done.returncode, done.stderr) == (EXIT_BAD_ARGUMENT, sentence)


def test_a_home_folder_of_nobody(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    place = "~no-such-user/x.npy"
    commands = [
        ["index", "list", "--storage", place],
        ["inspect", place],
        ["serve", "--single", "--keys-file", place, "--storage", str(tmp_path)],
        ["serve", "--single", "--allow-anonymous", "--ranker.path", "a:B", "--ranker.folder", place],
        ["index", "import", place, "--folder", str(tmp_path / "to")],
    ]
    for words in commands:
        assert main(words) == EXIT_BAD_ARGUMENT
        said = f"rails-ray: the home folder of '{place}' must be known, got none: set HOME or name a folder\n"
        assert capsys.readouterr().err == said
    assert expanded("~") == Path.home()
