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
        ValueError, match=f"run 'r' must keep the config and data that it was begun with, got {message}"
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
    with pytest.raises(ValueError, match=r"run 'r' must keep .* got another name: 'big' instead of 'small'"):
        runs.begin(storage, "r", to_json(CONFIG | {"name": "big"}), DATA)
    with pytest.raises(ValueError, match=r"run 'r' must keep .* got another data_sha256: 'others' instead of"):
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
    assert (run.name, run.cutoff_mass, run.training["seconds"]) == ("r", 0.9, 2.5)
    assert list(runs.weights(storage, run)) == [("model.safetensors", b"w")]
    assert json.loads(run.config) == CONFIG


@pytest.mark.parametrize("name", ["begun", "../r", "none"])
def test_a_run_that_has_not_finished_is_none(storage: Storage, name: str) -> None:
    runs.begin(storage, "begun", to_json(CONFIG), DATA)
    with pytest.raises(
        NotFoundError, match=rf"run must be one of the finished runs of .*, which has none, got '{name}'"
    ):
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


@pytest.mark.parametrize("data", [b"v", None])
def test_weights_that_are_not_those_of_training(data: bytes | None, storage: Storage) -> None:
    finish(storage)
    path = "runs/r/model.safetensors"
    storage.delete(path) if data is None else storage.write(path, data)
    run = runs.read(storage, "r")  # which reads no weights
    message = r"the weights model\.safetensors of run 'r' in .* must be as training left them: train again"
    with pytest.raises(DamagedError, match=message):
        list(runs.weights(storage, run))


IN_PIECES = {"name": "small", "family": {"kind": "some"}}
PIECES = ["chunk-000", "chunk-001", "chunk-002"]


def begin_in_pieces(storage: Storage, pieces: list[str] = PIECES) -> None:
    runs.begin(storage, "r", to_json(IN_PIECES), DATA, pieces)


def finish_piece(storage: Storage, piece: str, run: str = "r") -> None:
    runs.write(
        storage,
        runs.piece_run(run, piece),
        weights=f"of {piece}".encode(),
        validation=to_json({"cutoff_mass": None, "loss": 0.5}),
        training={"losses": [1.0], "seconds": 2.0 + int(piece[-1])},
        config=to_json(IN_PIECES),
    )


@pytest.mark.parametrize("piece", ["chunk-000", "chunk-999", "encoder"])
def test_a_piece_is_a_run_of_its_own(piece: str, storage: Storage) -> None:
    name = runs.piece_run("r", piece)
    assert name == f"r/{piece}"
    runs.begin_piece(storage, "r", piece, to_json(IN_PIECES), DATA)
    assert not runs.is_begun(storage, "r")
    assert not runs.is_finished(storage, name)
    runs.write_checkpoint(storage, name, FIRST)
    assert runs.read_checkpoint(storage, name) == FIRST
    with pytest.raises(ValueError, match=f"run '{name}' must keep .* got another name: 'big' instead of 'small'"):
        runs.begin_piece(storage, "r", piece, to_json(IN_PIECES | {"name": "big"}), DATA)
    finish_piece(storage, "chunk-000")
    assert runs.read_checkpoint(storage, "r/chunk-000") is None
    assert runs.read_piece(storage, "r", "chunk-000").validation["loss"] == 0.5


def test_a_run_of_one_piece_has_it_in_its_own_folder(storage: Storage) -> None:
    assert runs.piece_run("r", "") == "r"
    runs.begin(storage, "r", to_json(CONFIG), DATA)
    runs.begin_piece(storage, "r", "", to_json(CONFIG), DATA)  # it was begun as this
    assert runs.pieces(storage, "r") == runs.finished_pieces(storage, "r") == []
    with pytest.raises(ValueError, match=r"run 'r' must keep .* got another data_sha256: 'others' instead of"):
        runs.begin_piece(storage, "r", "", to_json(CONFIG), "others")


@pytest.mark.parametrize("name", ["r/chunk-001", "r/chunk-01", "../chunk-001", "r/"])
def test_a_run_cannot_be_called_as_a_piece_is(storage: Storage, name: str) -> None:
    assert not runs.is_begun(storage, name)
    with pytest.raises(ValueError, match=f"run must be made of letters, digits, .*, got '{name}'"):
        runs.begin(storage, name, to_json(IN_PIECES), DATA)


def test_pieces_that_have_finished(storage: Storage) -> None:
    assert runs.finished_pieces(storage, "r") == []
    begin_in_pieces(storage, ["chunk-010", *PIECES])
    runs.begin_piece(storage, "r", "chunk-001", to_json(IN_PIECES), DATA)
    for piece in ("chunk-002", "chunk-000", "chunk-010"):
        finish_piece(storage, piece)
    finish_piece(storage, "chunk-001", run="other")
    storage.write("runs/r/chunk-3/config.json", b"{}")
    assert runs.pieces(storage, "r") == ["chunk-010", *PIECES]
    assert runs.finished_pieces(storage, "r") == ["chunk-010", "chunk-000", "chunk-002"], "in the order of the run"


def test_a_run_of_other_pieces_does_not_go_on(storage: Storage) -> None:
    begin_in_pieces(storage)
    begin_in_pieces(storage)
    with pytest.raises(ValueError, match=r"run 'r' must keep .* got another pieces: "):
        begin_in_pieces(storage, PIECES[:2])


def test_a_run_all_of_whose_pieces_have_finished(storage: Storage) -> None:
    """It can be read before the run itself has finished, which needs it to validate."""
    begin_in_pieces(storage)
    for piece in reversed(PIECES):
        finish_piece(storage, piece)
    run = runs.read(storage, "r")
    assert run.name == "r"
    assert json.loads(run.config) == IN_PIECES
    assert (run.cutoff_mass, run.training) == (None, {"seconds": 9.0})
    expected = [(f"{piece}/model.safetensors", f"of {piece}".encode()) for piece in PIECES]
    assert list(runs.weights(storage, run)) == expected


def test_a_run_of_which_some_pieces_have_finished(storage: Storage) -> None:
    begin_in_pieces(storage)
    for piece in ("chunk-002", "chunk-001"):
        finish_piece(storage, piece)
    for enough in (0, 1, 2):
        run = runs.read(storage, "r", min_pieces=enough)
        assert [path for path, _ in runs.weights(storage, run)] == [f"{one}/model.safetensors" for one in PIECES[1:]]
        assert run.training == {"seconds": 7.0}
    message = (
        "run 'r' must have {} trained pieces, got 2: "
        "train it again under the same name, or encode without the rest with"
    )
    with pytest.raises(ValueError, match=message.format("all 3") + " --min-chunks 2"):
        runs.read(storage, "r")
    with pytest.raises(ValueError, match=message.format("all 3")):
        runs.read(storage, "r", min_pieces=99)


def test_a_run_with_fewer_pieces_than_are_asked_for(storage: Storage) -> None:
    begin_in_pieces(storage)
    finish_piece(storage, "chunk-001")
    with pytest.raises(ValueError, match="run 'r' must have 2 trained pieces, got 1: train it again"):
        runs.read(storage, "r", min_pieces=2)


def test_a_run_of_which_no_piece_has_finished_is_none(storage: Storage) -> None:
    begin_in_pieces(storage)
    runs.begin_piece(storage, "r", "chunk-001", to_json(IN_PIECES), DATA)
    for name in ("r", "r/chunk-001"):
        with pytest.raises(
            NotFoundError, match=rf"run must be one of the finished runs of .*, which has none, got '{name}'"
        ):
            runs.read(storage, name, min_pieces=1)


def test_a_finished_run_in_pieces_has_those_that_it_was_finished_with(storage: Storage) -> None:
    begin_in_pieces(storage)
    for piece in PIECES:
        finish_piece(storage, piece)
    found = runs.read(storage, "r")
    runs.write_checkpoint(storage, "r", FIRST)
    runs.finish(
        storage,
        "r",
        weights_sha256=found.weights_sha256,
        validation=to_json({"cutoff_mass": None, "mrr": 0.5}),
        training={"seconds": 9.0, "pieces": []},
        config=found.config,
    )
    assert runs.read_checkpoint(storage, "r") is None
    back = runs.read(storage, "r", min_pieces=99)
    assert back.weights_sha256 == found.weights_sha256
    assert back.validation["mrr"] == 0.5
    assert [data for _, data in runs.weights(storage, back)] == [f"of {piece}".encode() for piece in PIECES]


def test_weights_of_a_piece_that_are_not_those_of_training(storage: Storage) -> None:
    begin_in_pieces(storage)
    for piece in PIECES:
        finish_piece(storage, piece)
    run = runs.read(storage, "r")
    storage.write("runs/r/chunk-001/model.safetensors", b"w0")
    weights = runs.weights(storage, run)
    assert next(weights)[1] == b"of chunk-000"
    message = r"the weights chunk-001/model\.safetensors of run 'r' in .* must be as training left them: train again"
    with pytest.raises(DamagedError, match=message):
        next(weights)
