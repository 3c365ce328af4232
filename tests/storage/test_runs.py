import json
from pathlib import Path

import pytest
import safetensors.torch
import torch

from rails_ray.errors import DamagedError, NotFoundError
from rails_ray.storage import runs
from rails_ray.storage.filesystem import Storage

CONFIG = {"name": "small", "training": {"num_steps": 5, "rates": {"peak": 0.1}}, "folder": None}


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path))


DATA = "sha256 of the data"
FIRST, SECOND = (safetensors.torch.save({"a": torch.tensor([value])}) for value in (1.0, 2.0))  # checkpoints


def to_json(config: object) -> bytes:
    return json.dumps(config).encode()


def finish(storage: Storage, run: str = "r") -> None:
    runs.write(
        storage,
        run,
        weights=b"w",
        validation=to_json({"cutoff_mass": 0.9}),
        training={"losses": [1.0], "validations": [], "seconds": 2.5},
        config=to_json(CONFIG),
    )


def test_a_run_of_the_same_config_goes_on(storage: Storage) -> None:
    runs.begin(storage, "r", to_json(CONFIG), DATA)
    assert runs.read_checkpoint(storage, "r") is None
    runs.write_checkpoint(storage, "r", FIRST)
    runs.write_checkpoint(storage, "r", SECOND)
    runs.begin(storage, "r", to_json(dict(reversed(CONFIG.items()))), DATA)  # the same, whatever the order
    assert runs.read_checkpoint(storage, "r") == SECOND


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "big"}, "another name: 'big' instead of 'small': choose another --run"),
        ({"training": {"num_steps": 9, "rates": {"peak": 0.1}}}, "another training.num_steps: 9 instead of 5"),
        ({"training": {"num_steps": 5, "rates": {"peak": 0.2}}}, "another training.rates.peak: 0.2 instead of 0.1"),
        ({"folder": {"a": 1}}, "another folder: {'a': 1} instead of None"),
        ({"seed": 3}, "another seed: 3 instead of None"),
        ({"training": {"num_steps": 5}}, "another training.rates: None instead of {'peak': 0.1}"),
    ],
)
def test_a_run_of_another_config_does_not_go_on(storage: Storage, change: dict[str, object], message: str) -> None:
    runs.begin(storage, "r", to_json(CONFIG), DATA)
    with pytest.raises(
        ValueError, match=f"run 'r' must go on with the config and data that it was begun with, got {message}"
    ):
        runs.begin(storage, "r", to_json(CONFIG | change), DATA)


def test_a_finished_run_may_be_begun_again_as_it_was_and_stays_as_it_is(storage: Storage) -> None:
    runs.begin(storage, "r", to_json(CONFIG), DATA)
    assert not runs.is_finished(storage, "r")
    finish(storage)
    before = runs.read(storage, "r")
    runs.begin(storage, "r", to_json(dict(reversed(CONFIG.items()))), DATA)
    assert runs.is_finished(storage, "r")
    assert runs.read(storage, "r") == before


def test_a_finished_run_is_not_begun_again_with_another_config_or_data(storage: Storage) -> None:
    runs.begin(storage, "r", to_json(CONFIG), DATA)
    finish(storage)
    with pytest.raises(ValueError, match=r"run 'r' must go on with .* got another name: 'big' instead of 'small'"):
        runs.begin(storage, "r", to_json(CONFIG | {"name": "big"}), DATA)
    with pytest.raises(ValueError, match=r"run 'r' must go on with .* got another data_sha256: 'others' instead of"):
        runs.begin(storage, "r", to_json(CONFIG), "others")


@pytest.mark.parametrize("name", ["a/b", "../r", ".r", ""])
def test_names_that_cannot_be(storage: Storage, name: str) -> None:
    with pytest.raises(ValueError, match=f"run must be made of letters, digits, .*, got '{name}'"):
        runs.begin(storage, name, to_json(CONFIG), DATA)


def test_a_finished_run_comes_back_and_its_checkpoint_is_gone(storage: Storage) -> None:
    runs.begin(storage, "r", to_json(CONFIG), DATA)
    runs.write_checkpoint(storage, "r", FIRST)
    finish(storage)
    assert runs.read_checkpoint(storage, "r") is None
    run = runs.read(storage, "r")
    assert (run.name, run.weights, run.cutoff_mass, run.training["seconds"]) == ("r", b"w", 0.9, 2.5)
    assert json.loads(run.config) == CONFIG


@pytest.mark.parametrize("name", ["begun", "../r", "none"])
def test_a_run_that_has_not_finished_is_none(storage: Storage, name: str) -> None:
    runs.begin(storage, "begun", to_json(CONFIG), DATA)
    with pytest.raises(NotFoundError, match=f"run must be one of none trained yet, got '{name}'"):
        runs.read(storage, name)
    finish(storage)
    with pytest.raises(NotFoundError, match=f"run must be one of r, got '{name}'"):
        runs.read(storage, name)


@pytest.mark.parametrize("file", ["validation.json", "training.json"])
@pytest.mark.parametrize("data", [b"{", b"{}", b"[]"])
def test_reports_that_are_none(storage: Storage, file: str, data: bytes) -> None:
    finish(storage)
    storage.write(f"runs/r/{file}", data)
    with pytest.raises(DamagedError, match=r"run 'r' in .* must hold its reports as JSON, got others: train again"):
        runs.read(storage, "r")


def test_a_run_of_other_data_does_not_go_on(storage: Storage) -> None:
    runs.begin(storage, "r", to_json(CONFIG), DATA)
    with pytest.raises(ValueError, match="another data_sha256: 'others' instead of 'sha256 of the data'"):
        runs.begin(storage, "r", to_json(CONFIG), "others")


def test_a_damaged_checkpoint(storage: Storage) -> None:
    runs.write_checkpoint(storage, "r", FIRST[:-3])
    with pytest.raises(DamagedError, match=r"runs/r/checkpoint\.safetensors must be a checkpoint, got: .* delete it"):
        runs.read_checkpoint(storage, "r")


def test_weights_that_are_not_those_of_training(storage: Storage) -> None:
    finish(storage)
    storage.write("runs/r/model.safetensors", b"v")
    with pytest.raises(DamagedError, match=r"the weights of run 'r' in .* must be as training left them: train again"):
        runs.read(storage, "r")
