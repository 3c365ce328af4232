"""Text models that were trained elsewhere: one of sentence-transformers, made here, and functions."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from rails_ray.allowed_code import OURS_ALONE, AllowedCode
from rails_ray.errors import DamagedError, UnsupportedError
from rails_ray.modules.encoders import pretrained
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
        pretrained=str(tmp_path / "model"), width=16, sha256=pretrained.digest_of(str(tmp_path / "model"))
    )
    assert config.width_of_vectors() == 16
    found = FrozenText(config).query_features(TEXTS).tensor
    assert np.allclose(found, model.encode(TEXTS), atol=1e-6)

    (tmp_path / "model" / "README.md").write_text("changed")
    with pytest.raises(DamagedError, match=r"must hold the model that the run was made with, got another: restore it"):
        FrozenText(config).query_features(TEXTS)


QUERY, PASSAGE = "query : ", "a passage about "
WORDS = ["red", "blue", "car", "hat", "query", "passage", "about", "a", "mine"]


def saved(folder: Path, prompts: dict[str, str] | None = None, **options: Any) -> tuple[Any, SentenceTransformerConfig]:
    """A model, and a config of it as a new run has it."""
    pytest.importorskip("sentence_transformers")
    model = save_sentence_transformer(folder / "model", WORDS, prompts=prompts, **options)
    return model, SentenceTransformerConfig(pretrained=str(folder / "model"))


def completed(config: SentenceTransformerConfig, *, is_compared: bool = True) -> SentenceTransformerConfig:
    return config.for_inputs(InputFacts(is_compared=is_compared), "my-texts", OURS_ALONE)


def both(config: SentenceTransformerConfig) -> list[np.ndarray]:
    made = FrozenText(config)
    return [made.query_features(TEXTS[:3]).values, made.item_features(TEXTS[:3]).values]


@pytest.mark.parametrize(
    ("prompts", "query", "item"),
    [
        (None, "", ""),
        ({"query": QUERY}, QUERY, ""),
        ({"query": QUERY, "document": PASSAGE}, QUERY, PASSAGE),
        ({"query": QUERY, "passage": PASSAGE}, QUERY, PASSAGE),
        ({"corpus": PASSAGE, "mine": "mine "}, "", PASSAGE),
    ],
)
def test_queries_and_items_are_read_after_the_prompts_of_the_model(
    tmp_path: Path, prompts: dict[str, str] | None, query: str, item: str
) -> None:
    model, config = saved(tmp_path, prompts, is_normalised=True, width=12)
    known = completed(config)
    assert (known.query_prompt, known.item_prompt, known.width) == (query, item, 12)
    expected = [model.encode([prompt + text for text in TEXTS[:3]]) for prompt in (query, item)]
    assert np.allclose(both(known), expected, atol=1e-6)
    assert np.allclose(both(replace(config, width=12)), expected, atol=1e-6), "before it is completed"
    assert np.allclose(model.encode_query(TEXTS[:3]), expected[0], atol=1e-6)
    assert completed(known) == known
    assert query == item or not np.allclose(*expected, atol=1e-2)


@pytest.mark.parametrize(
    ("given", "prompt"), [("mine", "mine "), ("", ""), ("a blue ", "a blue "), ("query", QUERY), ("auto", QUERY)]
)
def test_prompts_that_are_given(tmp_path: Path, given: str, prompt: str) -> None:
    prompts = {"query": QUERY, "passage": PASSAGE, "mine": "mine "}
    model, config = saved(tmp_path, prompts, default_prompt_name="passage")
    known = completed(replace(config, query_prompt=given, item_prompt="mine"))
    assert (known.query_prompt, known.item_prompt) == (prompt, "mine ")
    expected = [model.encode(TEXTS[:3], prompt=prompt), model.encode(TEXTS[:3], prompt="mine ")]
    assert np.allclose(both(known), expected, atol=1e-6)


def test_runs_of_before_read_both_sides_as_they_did(tmp_path: Path) -> None:
    """By `encode`, after the prompt that it takes by default."""
    model, config = saved(tmp_path, {"query": QUERY, "mine": "mine "}, default_prompt_name="mine")
    sha256 = pretrained.digest_of(config.pretrained)
    former = replace(config, query_prompt=None, item_prompt=None, width=16, sha256=sha256)
    assert np.allclose(both(former), [model.encode(TEXTS[:3])] * 2, atol=1e-6)
    assert np.allclose(both(former)[0], model.encode(TEXTS[:3], prompt="mine "), atol=1e-6)
    assert completed(former) == former


def test_vectors_are_truncated(tmp_path: Path) -> None:
    model, config = saved(tmp_path, {"query": QUERY})
    known = completed(replace(config, truncate_dim=5))
    assert known.width == 5
    expected = model.encode_query(TEXTS[:3])[:, :5]
    assert np.allclose(both(known)[0], expected, atol=1e-6)
    made = FrozenText(known)
    found = made.queries(made.query_features(TEXTS[:3]))
    assert torch.allclose(F.normalize(found, dim=1), F.normalize(torch.from_numpy(expected), dim=1), atol=1e-6)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"query_prompt": "qurey"},
            r"encoder\.query_prompt must be auto, a name of the model's prompts \(document, query\) or a text of more "
            r"than a word, got 'qurey'",
        ),
        ({"item_prompt": "passage"}, r"encoder\.item_prompt must be auto, a name .* \(document, query\) .*'passage'"),
        ({"truncate_dim": 17}, r"encoder\.truncate_dim must be at most the 16 numbers of a vector of .*model, got 17"),
        ({"truncate_dim": 8, "width": 9}, "the text encoder must return 1 x 9 numbers for 1 texts, got 1 x 8"),
    ],
)
def test_prompts_and_widths_that_a_model_has_not(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    _, config = saved(tmp_path, {"query": QUERY})
    with pytest.raises(ValueError, match=message):
        completed(replace(config, **fields))


def test_a_width_below_0() -> None:
    with pytest.raises(ValueError, match="truncate_dim must be at least 0, got -1"):
        SentenceTransformerConfig(truncate_dim=-1)


@pytest.mark.parametrize(
    ("similarity", "is_normalised", "truncate_dim", "is_ours"),
    [
        ("cosine", False, 0, True),
        ("cosine", True, 4, True),
        ("dot", True, 0, True),
        ("euclidean", True, 0, True),
        ("dot", False, 0, False),
        ("dot", True, 4, False),
        ("euclidean", False, 0, False),
        ("manhattan", True, 0, False),
    ],
)
def test_a_model_that_compares_otherwise_is_refused(
    tmp_path: Path, similarity: Any, is_normalised: bool, truncate_dim: int, is_ours: bool
) -> None:
    """Where its vectors are compared as they are; the order of what we accept is the model's own."""
    model, config = saved(tmp_path, similarity_fn_name=similarity, is_normalised=is_normalised)
    config = replace(config, truncate_dim=truncate_dim)
    assert completed(config, is_compared=False).width == (truncate_dim or 16)
    if not is_ours:
        message = rf"encoder\.pretrained .*model must compare vectors by their directions .*, got {similarity}: train"
        with pytest.raises(ValueError, match=message):
            completed(config)
        return
    made = FrozenText(completed(config))
    texts = ["red car", "blue hat", "car a", "hat about blue", "red red"]
    found = F.normalize(made.items(made.item_features(texts)), dim=1)
    vectors = torch.from_numpy(model.encode(texts, truncate_dim=truncate_dim or None))
    expected = model.similarity(vectors, vectors)
    assert torch.equal((found @ found.T).argsort(dim=1), expected.argsort(dim=1))


def test_a_name_is_looked_up_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    kept = tmp_path / "models--sentence-transformers--tiny"
    (kept / "snapshots" / "abc").mkdir(parents=True)
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text("abc")
    for name in ("sentence-transformers/tiny", "tiny"):
        assert pretrained.folder_of(name) == str(kept / "snapshots" / "abc")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    assert pretrained.folder_of("tiny") == str(tmp_path / "tiny")  # a folder comes first


@pytest.mark.long
def test_a_folder_without_a_model(tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers")
    with pytest.raises(ValueError, match=r"encoder\.pretrained must be the folder of a model, got '/nowhere'"):
        SentenceTransformerConfig(pretrained="/nowhere").load()
    for name in ("", "no-such/model", "a/b/c"):  # an empty one is not the folder it runs in
        with pytest.raises(
            ValueError,
            match=r"^encoder\.pretrained must be the folder of a model, or the name of one in the local cache of "
            rf"Hugging Face, got '{name}'$",
        ):
            SentenceTransformerConfig(pretrained=name).for_inputs(InputFacts(), "my-texts", OURS_ALONE)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"must hold a model of sentence-transformers, got: "):
        SentenceTransformerConfig(pretrained=str(tmp_path)).load()


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(UnsupportedError, match=r"needs the package sentence-transformers, got none: pip install"):
        SentenceTransformerConfig(pretrained=str(tmp_path)).load()
