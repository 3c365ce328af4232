"""Texts asked of an index of vectors, by the model that made them: here, over HTTP, and what is refused."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from rails_ray.errors import DamagedError
from rails_ray.serving import local
from rails_ray.serving.http.api import api_of
from rails_ray.serving.http.single import SingleProcessServer
from rails_ray.serving.local import LocalVersion
from support.text_vectors import save_sentence_transformer

pytestmark = pytest.mark.long  # sentence-transformers takes long to import

WORDS = ["red", "blue", "car", "hat", "tree", "find"]
TEXTS = ["red car", "blue hat", "tree", "blue car", "hat tree"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("sentence_transformers")
    return tmp_path_factory.mktemp("model")


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return save_sentence_transformer(folder, WORDS, prompts={"query": "find "})


@pytest.fixture(scope="module")
def vectors(model: Any) -> np.ndarray:
    found: np.ndarray = 3 * model.encode_document(TEXTS)  # of any length, as they are compared by direction
    return found


@pytest.fixture(scope="module")
def version(folder: Path, vectors: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> LocalVersion:
    root = str(tmp_path_factory.mktemp("storage"))
    local.build(vectors, folder=root, query_encoder=str(folder), ids=TEXTS)
    return local.open(root)  # as any later process does


def test_a_text_finds_what_its_vector_finds(version: LocalVersion, model: Any, vectors: np.ndarray) -> None:
    asked = ["red car", "tree", "car hat"]
    of_model = model.encode_query(asked)  # after the model's own prompt
    cosines = of_model @ vectors.T / np.linalg.norm(of_model, axis=1)[:, None] / np.linalg.norm(vectors, axis=1)
    found = version.search(asked, k=5)
    for own, expected in zip(found.results, cosines, strict=True):
        assert own.items == [TEXTS[row] for row in np.argsort(-expected)]
        assert own.scores == pytest.approx(sorted(expected, reverse=True), abs=1e-5)
    assert found == version.search(of_model, k=5)
    assert version.facts["query"] == {"embedding": "list<float>", "text": "string"}
    assert version.embed(asked) == pytest.approx(of_model, abs=1e-6)
    assert version.embed(asked, "document") == pytest.approx(model.encode_document(asked), abs=1e-6)
    explained = version.explain("tree", ["tree"]).items[0]
    assert explained.score == pytest.approx(found.results[1].scores[found.results[1].items.index("tree")], abs=1e-6)


def test_texts_and_vectors_of_one_request_keep_their_places(version: LocalVersion, vectors: np.ndarray) -> None:
    mixed = version.search([vectors[1], {"text": "red car", "exclude": ["tree"]}, vectors[3]], k=5).results
    assert [len(own.items) for own in mixed] == [5, 4, 5]
    assert [own.items[0] for own in mixed[::2]] == [TEXTS[1], TEXTS[3]]
    with pytest.raises(ValueError, match=r"^queries\[1\].text must hold a letter or a digit, got '\?!'$"):
        version.search([vectors[1], "?!"], k=5)
    with pytest.raises(ValueError, match=r"^input\[0\].text must hold a letter or a digit, got '\?!'$"):
        version.embed(["?!"])


def test_a_server_takes_texts_too(version: LocalVersion) -> None:
    async def exchange() -> httpx.Response:
        transport = httpx.ASGITransport(api_of(lambda: SingleProcessServer(version)))
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            return await client.post("/v1/search", json={"queries": [{"text": "red car"}], "k": 3})

    assert asyncio.run(exchange()).json() == version.search(["red car"], k=3).model_dump()


def test_a_model_that_cannot_be_the_encoder(folder: Path, model: Any, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError,
        match=r"^query_encoder must make vectors of 3 numbers, as the items' are compared with, got 16 from .*: name "
        r"the model that made the items' vectors$",
    ):
        local.build(np.eye(3), query_encoder=str(folder))
    with pytest.raises(ValueError, match=r"^query_encoder must be the folder of a model, or .*, got '.*nowhere'$"):
        local.build(np.eye(16), query_encoder=str(tmp_path / "nowhere"))


def test_a_model_that_has_changed_is_refused(vectors: np.ndarray, tmp_path: Path) -> None:
    save_sentence_transformer(tmp_path / "model", WORDS)
    version = local.build(vectors, query_encoder=str(tmp_path / "model"))
    (tmp_path / "model" / "README.md").write_text("another")
    with pytest.raises(DamagedError, match="must hold the model that the run was made with, got another"):
        version.search(["red car"])
