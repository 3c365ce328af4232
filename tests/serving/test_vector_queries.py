"""Queries in one array: the answers and the refusals of the same queries one by one."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rails_ray.schema.queries import QueryInput
from rails_ray.serving import local
from rails_ray.serving.local import LocalVersion
from rails_ray.serving.vector_queries import VectorQueries
from support.examples import publish_here

VECTORS = np.random.default_rng(0).standard_normal((50, 6)).astype(np.float32)


@pytest.fixture(scope="module")
def cosines() -> LocalVersion:
    return local.build(VECTORS)


@pytest.mark.parametrize("of", [np.asarray, torch.from_numpy, lambda array: array.astype(np.float64)])
def test_an_array_has_the_answer_of_its_lists(cosines: LocalVersion, of: Any) -> None:
    some = VECTORS[:4] * 3
    for options in ({"k": 5}, {"cutoff": {"score": 0.3}}, {"k": 60, "method": "ann"}, {"k": 2, "ids": "string"}):
        assert cosines.search(of(some), **options) == cosines.search(some.tolist(), **options)


def test_representations_of_texts_come_in_an_array_too(tmp_path: Path) -> None:
    publish_here(tmp_path)
    version = local.open(str(tmp_path))
    texts = ["red", "blue hat", "tree"]
    vectors = np.array(version.embed(texts), np.float32)
    assert version.search(vectors, k=4) == version.search(list(vectors), k=4)
    assert [own.items for own in version.search(vectors, k=4).results] == [
        own.items for own in version.search(texts, k=4).results
    ]
    for wrong in (vectors[:, :3], vectors * np.float32(1e9)):
        with pytest.raises(ValueError, match=r"queries\[0\].embedding must") as refused:
            version.search(wrong, k=4)
        with pytest.raises(ValueError, match=r"queries\[0\].embedding must") as alone:
            version.search(wrong.tolist(), k=4)
        assert str(refused.value) == str(alone.value)


@pytest.mark.parametrize(
    "wrong",
    [
        np.full((2, 6), np.nan, np.float32),
        np.array([[1.0] * 6, [np.inf] * 6]),
        np.zeros((1, 6)),
        np.array([[1.0] * 6, [0.0] * 6]),
        np.ones((2, 5)),
        np.ones((2, 0)),
        np.ones((0, 6)),
        np.ones((2, 3, 6)),
        np.full((1, 6), 1e300),
        np.full((1, 6), True),
        np.full((1, 6), "a"),
    ],
)
def test_it_is_refused_as_its_lists_are(cosines: LocalVersion, wrong: Any) -> None:
    with pytest.raises(ValueError, match="queries") as refused:
        cosines.search(wrong, k=3)
    with pytest.raises(ValueError, match="queries") as alone:
        cosines.search(wrong.tolist(), k=3)
    assert str(refused.value) == str(alone.value)


def test_it_is_a_sequence_of_queries() -> None:
    queries = VectorQueries(VECTORS[:3])
    assert len(queries) == 3
    assert queries[1] == QueryInput(embedding=VECTORS[1].tolist())
    assert [own.embedding for own in queries[1:]] == VECTORS[1:3].tolist()
    assert VectorQueries.of([QueryInput(embedding=[1.0, 2.0]), QueryInput(embedding=[3.0])]) is None
    assert VectorQueries.of([QueryInput(embedding=[1.0]), QueryInput(text="a")]) is None
    assert VectorQueries.of([]) is None
