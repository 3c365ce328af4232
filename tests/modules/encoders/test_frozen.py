"""Text models that were trained elsewhere: one of sentence-transformers, made here, and functions."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from rails_ray.allowed_code import OURS_ALONE, AllowedCode
from rails_ray.errors import DamagedError, UnsupportedError
from rails_ray.modules.encoders import frozen
from rails_ray.modules.encoders.config import InputFacts
from rails_ray.modules.encoders.frozen import FrozenText, FunctionConfig, SentenceTransformerConfig
from support.text_vectors import WIDTH, encode, save_sentence_transformer

TEXTS = ["red car", "blue hat", "car"] * 200


def function(name: str, width: int = WIDTH) -> FunctionConfig:
    return FunctionConfig(function=f"support.text_vectors:{name}", width=width)


def test_a_function_gives_the_directions() -> None:
    made = FrozenText(function("encode"), AllowedCode(("support",)))
    found = made.queries(made.query_features(TEXTS))
    expected = F.normalize(torch.from_numpy(encode(TEXTS)).float(), dim=1)
    assert torch.allclose(F.normalize(found, dim=1), expected, atol=1e-6)
    assert torch.allclose(found.square().mean(dim=1), torch.ones(len(TEXTS)))
    assert not list(made.parameters())


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (function("absent"), r"encoder\.function must be the import path of a function, MODULE:NAME, got .*absent"),
        (FunctionConfig(function="no.such:name"), r"MODULE:NAME, got 'no\.such:name': No module named 'no'"),
        (FunctionConfig(), r"MODULE:NAME, got ''"),
        (function("NO_FUNCTION"), r"must be the import path of a function, got .*NO_FUNCTION', which is none"),
        (function("nothing"), r"the text encoder must return finite numbers, got NaN or infinity for 'red car'"),
        (function("too_few"), r"the text encoder must return 256 x 12 numbers for 256 texts, got 255 x 12"),
        (function("encode", 5), r"the text encoder must return 256 x 5 numbers for 256 texts, got 256 x 12"),
    ],
)
def test_functions_that_are_none(config: FunctionConfig, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FrozenText(config, AllowedCode().also(config.function)).query_features(TEXTS)


@pytest.mark.long
def test_a_model_of_sentence_transformers(tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers")
    model = save_sentence_transformer(tmp_path / "model", ["red", "blue", "car", "hat"])
    config = SentenceTransformerConfig(
        pretrained=str(tmp_path / "model"), width=16, sha256=frozen.digest_of(str(tmp_path / "model"))
    )
    assert config.width_of_vectors() == 16
    found = FrozenText(config).query_features(TEXTS).tensor
    assert np.allclose(found, model.encode(TEXTS), atol=1e-6)

    (tmp_path / "model" / "README.md").write_text("changed")
    with pytest.raises(DamagedError, match=r"must hold the model that the run was made with, got another: restore it"):
        FrozenText(config).query_features(TEXTS)


@pytest.mark.long
def test_a_folder_without_a_model(tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers")
    with pytest.raises(ValueError, match=r"encoder\.pretrained must be the folder of a model, got '/nowhere'"):
        SentenceTransformerConfig(pretrained="/nowhere").load()
    with pytest.raises(ValueError, match=r"encoder\.pretrained must be the folder of a model, got ''"):
        SentenceTransformerConfig().for_inputs(InputFacts(), "my-texts", OURS_ALONE)  # not the folder it runs in
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"must hold a model of sentence-transformers, got: "):
        SentenceTransformerConfig(pretrained=str(tmp_path)).load()


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(UnsupportedError, match=r"needs the package sentence-transformers, got none: pip install"):
        SentenceTransformerConfig(pretrained=str(tmp_path)).load()
