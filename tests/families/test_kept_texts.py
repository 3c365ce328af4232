"""A frozen model of texts reads each text once: for training, evaluation and encoding."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rails_ray.allowed_code import OURS_ALONE, AllowedCode
from rails_ray.families.config import DataConfig, from_json
from rails_ray.families.data import read_data
from rails_ray.families.items import ByModel
from rails_ray.families.kept_texts import with_kept_texts
from rails_ray.families.recipes import by_name
from rails_ray.families.running import begin
from rails_ray.families.training_family import training_family
from rails_ray.modules.encoders import frozen
from rails_ray.modules.encoders.config import InputFacts
from rails_ray.modules.encoders.frozen import FunctionConfig, SentenceTransformerConfig
from rails_ray.on_ray.evaluating import _evaluate
from rails_ray.on_ray.training import Assignment, work
from rails_ray.storage import runs
from rails_ray.storage.filesystem import Storage
from support.data_folders import write_text_data
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
    report = _evaluate(str(store), "r", None, "valid", None, OURS_ALONE, False)
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


def test_vectors_of_different_prompts_and_widths_are_kept_apart(tmp_path: Path) -> None:
    """A query and an item of one text too, unless they are read after the same prompt."""
    pytest.importorskip("sentence_transformers")
    words = ["red", "blue", "car", "query", "item"]
    model = save_sentence_transformer(tmp_path / "model", words, prompts={"query": "query ", "document": "item "})
    plain = SentenceTransformerConfig(pretrained=str(tmp_path / "model"))
    texts, store = ["red car", "blue", "car"], Storage(str(tmp_path / "s"))
    configs = [
        plain,
        replace(plain, query_prompt="item ", item_prompt="query "),
        replace(plain, query_prompt="", item_prompt=""),
        replace(plain, query_prompt="item ", truncate_dim=4),
        replace(plain, query_prompt=None, item_prompt=None),
    ]
    for again in range(2):
        for config in configs:
            known = config.for_inputs(InputFacts(), "my-texts", OURS_ALONE)
            made = training_family(by_name("text-dot").with_family(encoder=known)).model()
            encoder = with_kept_texts(made, store).encoder
            for prompt, features in (
                (known.query_prompt, encoder.query_features),
                (known.item_prompt, encoder.item_features),
            ):
                expected = model.encode(texts, prompt=prompt or "")[:, : known.width]
                assert np.allclose(features(texts).values, expected, atol=1e-6), (again, config)
    folders = store.list("vectors")
    assert len(folders) == 5, "query, item, none, item in 4 numbers, and as runs of before kept them"
    former = [1, known.sha256, 16, *map(version, ("sentence-transformers", "transformers", "tokenizers", "torch"))]
    assert hashlib.sha256(json.dumps(former).encode()).hexdigest() in folders


def test_functions_are_called_again(tmp_path: Path, read: list[str]) -> None:
    """The code behind a name may change."""
    data = write_text_data(tmp_path / "data")
    trained(tmp_path / "s", data, FunctionConfig(function="support.text_vectors:encode"))
    once = len(read)
    allowed = AllowedCode(("support.text_vectors",))
    _evaluate(str(tmp_path / "s"), "r", None, "valid", None, allowed, False)
    assert len(read) == 2 * once
    assert not (tmp_path / "s" / "vectors").exists()
