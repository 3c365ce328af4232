"""A frozen model of texts reads each text once: for training, evaluation and encoding."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rails_ray.allowed_code import OURS_ALONE, AllowedCode
from rails_ray.families.config import DataConfig, from_json
from rails_ray.families.data import read_data
from rails_ray.families.items import ByModel
from rails_ray.families.recipes import by_name
from rails_ray.families.training_family import training_family
from rails_ray.modules.encoders import frozen
from rails_ray.modules.encoders.frozen import FunctionConfig, SentenceTransformerConfig
from rails_ray.on_ray.evaluating import _evaluate
from rails_ray.on_ray.training import Assignment, begin, work
from rails_ray.storage import runs
from rails_ray.storage.filesystem import Storage
from support.examples import write_text_data
from support.text_vectors import save_sentence_transformer


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that the frozen model reads, as they come."""
    texts, vectors_of = list[str](), frozen.vectors_of

    def noted(encode: Any, some: Sequence[str], width: int = 0) -> np.ndarray:
        if width:
            texts.extend(some)
        return vectors_of(encode, some, width)

    monkeypatch.setattr(frozen, "vectors_of", noted)
    return texts


def trained(root: Path, data: Path, encoder: SentenceTransformerConfig | FunctionConfig) -> runs.Run:
    config = replace(by_name("vector-cosine"), data=DataConfig(folder=str(data))).with_family(encoder=encoder)
    begun = begin(config, Storage(str(root)), "r")
    [piece] = begun.pieces
    work(Assignment(storage=str(root), run="r", config=begun.config, piece=piece, checkpoint_s=60.0))
    return runs.read(Storage(str(root)), "r")


@pytest.mark.long
def test_train_evaluate_and_encode_read_each_text_once(tmp_path: Path, read: list[str]) -> None:
    pytest.importorskip("sentence_transformers")
    data, store = write_text_data(tmp_path / "data"), Storage(str(tmp_path / "s"))
    save_sentence_transformer(tmp_path / "model", ["red", "blue", "car", "hat"])
    run = trained(tmp_path / "s", data, SentenceTransformerConfig(pretrained=str(tmp_path / "model")))
    own = training_family(from_json(run.config))
    items = list(read_data(own.config, store).item_inputs)
    assert sorted(set(items)) == sorted(set(items) & set(read))
    report = _evaluate(str(store), "r", None, "valid", None, OURS_ALONE)
    assert report.to_dict() == run.validation | {"hit_rate": report.hit_rate, "coverage": None}
    after_training = len(read)
    assert after_training == len(set(read)), "no text twice"

    def encode(texts: list[str]) -> torch.Tensor:
        encoded = own.item_encoder(store, "versions/v", runs.weights(store, run), "cpu")(range(len(texts)), texts)
        return encoded.components

    components = encode(items[7:23])
    assert len(read) == after_training
    model = own.trained_model(runs.weights(store, run))
    assert torch.equal(components, ByModel(model)(range(16), items[7:23]).components), "as without what is kept"
    del read[after_training:]
    encode(["a new text", *items])
    assert read[after_training:] == ["a new text"]


def test_functions_are_called_again(tmp_path: Path, read: list[str]) -> None:
    """The code behind a name may change."""
    data = write_text_data(tmp_path / "data")
    trained(tmp_path / "s", data, FunctionConfig(function="support.text_vectors:encode"))
    once = len(read)
    allowed = AllowedCode(("support.text_vectors",))
    _evaluate(str(tmp_path / "s"), "r", None, "valid", None, allowed)
    assert len(read) == 2 * once
    assert not (tmp_path / "s" / "vectors").exists()
