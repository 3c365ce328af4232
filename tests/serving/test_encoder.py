"""Queries of SOLAR as a request gives them, without a server."""

from typing import Any

import numpy as np
import pytest
import torch

from rails_ray.data.dataset import Texts
from rails_ray.data.forms import FORMS
from rails_ray.data.queries import DenseRows, SparseRows
from rails_ray.families.solar.model import Solar
from rails_ray.modules.encoders.solar import Chunk, ChunksConfig
from rails_ray.modules.similarities.look_up import LookUpConfig
from rails_ray.serving.encoder import EncodedQueries, encode

SPARSE = SparseRows(np.array([0, 2, 3]), np.array([0, 4, 2]), np.array([1.0, 0.5, 2.0], dtype=np.float32), 6)
LEARNT = {"text": Texts(["red car", "hat"]), "features": SPARSE, "vector": DenseRows(np.eye(3, dtype=np.float32))}


def solar_of(kind: Any, width: int) -> Solar:
    config = ChunksConfig(num_chunks=2, num_buckets=5, hidden=4, input=kind, num_inputs=50, width=width)
    torch.manual_seed(0)
    chunks = {number: Chunk(config, number) for number in range(2)}
    for chunk in chunks.values():
        chunk.learn(LEARNT[kind])
    return Solar(config, LookUpConfig(), chunks)


def encoded_by(model: Solar, queries: list[dict[str, Any]]) -> EncodedQueries:
    def no_file(name: str) -> bytes:
        raise AssertionError(name)

    reader = FORMS[model.form].reader(model, no_file)
    encode(model, reader, [reader.example()])
    return encode(model, reader, queries)


def test_features() -> None:
    model = solar_of("features", 6)
    queries = [
        {"features": {0: 1.0, 4: 0.5}},
        {"features": {5: 1.0, 900: 2.0}},
        {"features": {}},
        {"features": {2: 7.0}},
    ]
    encoded = encoded_by(model, queries)
    expected = model.encode_queries(model.query_features(SPARSE)).tables
    assert torch.allclose(encoded.state.tables[[0, 3]], expected)
    assert encoded.is_known == [True, False, False, True]
    assert torch.equal(encoded.state.tables[1], encoded.state.tables[2]), "what training did not see says nothing"


def test_vectors() -> None:
    model = solar_of("vector", 3)
    vectors = [[1.0, 0.0, -2.0], [0.0, 0.0, 0.0]]
    encoded = encoded_by(model, [{"embedding": vector} for vector in vectors])
    assert torch.allclose(encoded.state.tables, model.encode_queries(model.query_features(np.array(vectors))).tables)
    assert encoded.is_known == [True, False]


def test_texts() -> None:
    encoded = encoded_by(solar_of("text", 0), [{"text": "a RED boat"}, {"text": "boat"}])
    assert encoded.is_known == [True, False]
    assert encoded.seen == [[], []]


@pytest.mark.parametrize(
    ("kind", "query", "message"),
    [
        ("text", {"embedding": [1.0]}, r"queries\[0\] must be given by text for this index, got embedding"),
        ("text", {"user_id": 0}, r"queries\[0\] must be given by text for this index, got user_id"),
        ("features", {"text": "x"}, r"queries\[0\] must be given by features for this index, got text"),
        ("features", {"features": {-1: 1.0}}, r"queries\[0\].features must be numbered from 0 to 2147483647, got -1"),
        ("vector", {"embedding": [1.0, 2.0]}, r"queries\[0\].embedding must have 3 numbers, got 2"),
        (
            "vector",
            {"embedding": [1e30, 2.0, 0.0]},
            r"queries\[0\].embedding must hold numbers up to 1e\+06, got 1e\+30",
        ),
    ],
)
def test_what_the_index_does_not_read(kind: str, query: dict[str, Any], message: str) -> None:
    model = solar_of(kind, {"text": 0, "features": 6, "vector": 3}[kind])
    with pytest.raises(ValueError, match=message):
        encoded_by(model, [query])
