"""Queries in one array: the answers and the refusals of the same queries one by one."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from rails_ray.schema.queries import QueryInput
from rails_ray.schema.requests import SearchRequest
from rails_ray.serving import local
from rails_ray.serving.local import LocalVersion
from rails_ray.serving.vector_queries import VectorQueries, VectorSearch, search_of
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


ONE: list[Any] = [0.1, -2, 3e-5]


@pytest.mark.parametrize("vectors", [[ONE], [ONE, [1, 2, 3]], [[2**70, 0.1, 1e38]], [[0, 0, 0]]])
def test_vectors_of_a_body_are_one_array(vectors: list[list[Any]]) -> None:
    found = search_of({"queries": [{"embedding": vector} for vector in vectors], "k": 3})
    assert isinstance(found.queries, VectorQueries)
    assert found.k == 3
    assert found.queries.array.dtype == np.float32
    assert found.queries.array.tolist() == np.array(vectors, np.float64).astype(np.float32).tolist()


@pytest.mark.parametrize(
    "queries",
    [
        [{"embedding": ONE}, {"embedding": ONE, "exclude": ["a"]}],
        [{"embedding": ONE}, {"text": "a"}],
        [{"embedding": ONE}, {"embedding": [1.0]}],
        [{"embedding": [1e300]}],  # infinite in float32
        [{"text": "a"}],
        [{"embeddings": {"a": ONE}}],
        [],
        [{"embedding": []}],
        [{"embedding": [True, 1.0]}],
        [{"embedding": ["1", 1.0]}],
        [{"embedding": [None]}],
        [{"embedding": [[1.0]]}],
        [{"embedding": [float("nan")]}],
        [{"embedding": [10**400]}],
        [{"embedding": 1.0}],
        [{"embedding": None}],
        [{"embedding": {"0": 1.0}}],
        [{"embeding": ONE}],
        ["a"],
        [ONE],
        {"embedding": ONE},
        None,
        [{"embedding": ONE}] * 3 + [3],
    ],
)
def test_any_other_body_is_read_or_refused_as_a_request(queries: Any) -> None:
    def outcome(read: Any) -> Any:
        try:
            return read({"queries": queries, "k": 3})
        except ValidationError as error:
            return error.errors(include_url=False, include_context=False)

    assert outcome(search_of) == outcome(SearchRequest.model_validate)


@pytest.mark.parametrize("fields", [{"k": 0}, {"wrong": 1}, {"cutoff": {}}, {"nprobe": -1}, {"queries": None}])
def test_the_other_fields_of_vectors_are_refused_alike(fields: dict[str, Any]) -> None:
    body = {"queries": [{"embedding": ONE}], **fields}
    with pytest.raises(ValidationError) as here:
        search_of(body)
    with pytest.raises(ValidationError) as there:
        SearchRequest.model_validate(body)
    found, expected = (error.value.errors(include_url=False, include_context=False)[0] for error in (here, there))
    assert {**found, "input": None} == {**expected, "input": None}


@pytest.mark.parametrize("body", [None, [], "a"])
def test_a_body_that_is_no_object_is_refused(body: Any) -> None:
    with pytest.raises(ValidationError):
        search_of(body)


def test_requests_are_joined_into_one_array_if_all_are_arrays_of_one_width() -> None:
    arrays = [VectorQueries(VECTORS[:2]), VectorQueries(VECTORS[2:3])]
    together = VectorQueries.joined(arrays)
    assert isinstance(together, VectorQueries)
    assert together.array.tolist() == VECTORS[:3].tolist()
    narrow, text = VectorQueries(VECTORS[:1, :4]), [QueryInput(text="a")]
    for others in ([arrays[0], narrow], [arrays[1], text]):
        joined = VectorQueries.joined(others)
        assert joined == [query for part in others for query in part]
        assert all(isinstance(query, QueryInput) for query in joined)


def test_it_is_written_as_its_queries() -> None:
    search = VectorSearch(queries=VectorQueries(VECTORS[:2]), k=3)
    written = SearchRequest.model_validate_json(search.model_dump_json(exclude_defaults=True))
    assert written == SearchRequest(queries=[*VectorQueries(VECTORS[:2])], k=3)


def test_an_array_that_is_masked_is_refused_and_bfloat16_is_read(cosines: LocalVersion) -> None:
    masked = np.ma.masked_array(VECTORS[:2], mask=[[True] * 6, [False] * 6])
    with pytest.raises(ValueError, match="vectors must be arrays or lists of numbers, got some that are masked"):
        cosines.search(masked, k=2)
    half = torch.from_numpy(VECTORS[:3]).bfloat16()
    assert cosines.search(half, k=2) == cosines.search(half.float(), k=2)
