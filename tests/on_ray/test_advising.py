"""`train` says what a dot product would have done, and a comparison that fails fails nothing."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rails_ray import on_ray
from rails_ray.cli.main import main
from rails_ray.errors import UnavailableError
from rails_ray.on_ray import advising
from rails_ray.storage import runs
from rails_ray.storage.filesystem import Storage
from support.data_folders import write_text_data
from support.examples import times_of

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("ray_cluster")]
SMALL = {
    "encoder.num-buckets": 500,
    "encoder.width": 8,
    "encoder.hidden": 8,
    "components.width": 6,
    "training.num-steps": 20,
    "training.batch-size": 8,
    "negatives.num-items": 8,
}
Train = Callable[..., str]


@pytest.fixture
def train(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Train:
    """Trains a run on one worker, and returns what the command prints."""
    folder = write_text_data(tmp_path / "data")

    def trained(recipe: str, run: str, *more: str) -> str:
        sizes = [word for name, size in SMALL.items() for word in (f"--{name}", str(size))]
        where = ["--data.folder", str(folder), "--storage", str(tmp_path / "s"), "--workers", "1"]
        assert main(["train", recipe, "--run", run, *where, *sizes, *more]) == 0
        return capfd.readouterr().out

    return trained


def test_training_ends_with_advice_on_a_mixture_once(train: Train, tmp_path: Path) -> None:
    text, storage = train("text-mol", "mixture"), str(tmp_path / "s")
    num_numbers = 3 * 6 + 4
    assert "mixture or dot product: after 2 of 20 steps each, HR@10 on " in text
    assert f" with {num_numbers} numbers an item; " in text
    before = times_of(tmp_path / "s")
    found = on_ray.compare(storage, "mixture")
    assert found is not None
    assert found.sentence in text
    assert times_of(tmp_path / "s") == before
    assert "mixture or dot product" not in train("text-mol", "mixture")  # it was finished


def test_training_ends_without_advice(train: Train, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "mixture or dot product" not in train("text-dot", "plain")
    assert "mixture or dot product" not in train("text-mol", "quiet", "--no-advise")

    def broken(*arguments: object, **how: object) -> None:
        raise UnavailableError("the cluster must complete the work, got: a node died: try again")

    monkeypatch.setattr(advising, "in_task", broken)
    assert "mixture or dot product: not compared, got: the cluster must complete the work, got: a node died" in train(
        "text-mol", "broken"
    )
    assert runs.is_finished(Storage(str(tmp_path / "s")), "broken")
