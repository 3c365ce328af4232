"""Several vectors by name: their directions as components, and what a gate begins with."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from oracles.scores import mixture_of_logits
from rails_ray.data.queries import DenseRows
from rails_ray.families.dual_encoder.train import DualEncoderTraining
from rails_ray.modules.encoders.named_vectors import NamedVectorsConfig
from support.examples import small_named_config

QUERIES, ITEMS = {"title": 2, "body": 3}, {"body": 3, "image": 2, "title": 2}


def named(queries: dict[str, int], items: dict[str, int]) -> NamedVectorsConfig:
    return NamedVectorsConfig(
        query_columns=tuple(queries),
        item_columns=tuple(items),
        query_widths=tuple(queries.values()),
        item_widths=tuple(items.values()),
    )


def rows(num: int, widths: dict[str, int], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((num, sum(widths.values()))).astype(np.float32)


@torch.no_grad()
def test_scores_are_those_of_the_mixture_over_named_cosines() -> None:
    """A vector of zeros has a cosine of 0 with all."""
    small = small_named_config().with_family(encoder=named(QUERIES, ITEMS))
    components = small.family.components
    made = small.with_family(components=type(components)(queries="given", items="given", width=3, gate_hidden=5))
    model = DualEncoderTraining.of(made).model().eval()
    queries, items = rows(4, QUERIES, 1), rows(5, ITEMS, 2)
    items[3, 3:5] = 0  # no image
    query = model.encode_queries(model.query_features(DenseRows(queries)))
    item = model.encode_items(model.item_features(DenseRows(items)))
    _, first, _, second = model.similarity.logit_gate
    weights = [layer.double() for layer in (first, second)]

    def w(logits: list[float]) -> list[float]:
        hidden = torch.nn.functional.silu(weights[0](torch.tensor(logits, dtype=torch.float64)))
        return weights[1](hidden).tolist()

    def parts(row: np.ndarray, widths: dict[str, int]) -> list[list[float]]:
        found, first = [], 0
        for width in widths.values():
            own = row[first : first + width].tolist()
            length = math.sqrt(sum(number * number for number in own)) or 1.0
            found.append([number / length for number in own] + [0.0] * (3 - width))
            first += width
        return found

    expected = [
        [
            mixture_of_logits(parts(q, QUERIES), parts(x, ITEMS), u.tolist(), v.tolist(), w, 0.05)[0]
            for x, v in zip(items, item.gate, strict=True)
        ]
        for q, u in zip(queries, query.gate, strict=True)
    ]
    model.similarity.float()
    assert torch.allclose(model.similarity.scores(query, item), torch.tensor(expected), atol=1e-5)


@torch.no_grad()
def test_a_gate_begins_at_vectors_of_one_name() -> None:
    """Alike; where a query's vector has no namesake, at all of its width."""
    assert named(QUERIES, ITEMS).begins_open.tolist() == [[False, False, True], [True, False, False]]
    assert named({"vector": 3}, {"a": 3, "b": 3}).begins_open.tolist() == [[True, True]]
    assert named({"vector": 3, "image": 2}, {"a": 3, "b": 3, "image": 2}).begins_open.tolist() == [
        [True, True, False],
        [False, False, True],
    ]
    made = small_named_config().with_family(encoder=named(QUERIES, ITEMS))
    model = DualEncoderTraining.of(
        made.with_family(components=type(made.family.components)(queries="given", items="given", width=3))
    ).model()
    query = model.encode_queries(model.query_features(DenseRows(rows(4, QUERIES, 1))))
    item = model.encode_items(model.item_features(DenseRows(rows(5, ITEMS, 2))))
    gates = model.eval().score(query, item).gates.unflatten(2, (2, 3))
    is_open = model.encoder.config.begins_open
    assert (gates[:, :, ~is_open] < 0.02).all()
    assert torch.allclose(gates[:, :, is_open], torch.tensor(0.5), atol=0.2)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"query_columns": ()}, "query_columns must name at least 1 column, each once, got none"),
        ({"item_columns": ("a", "a")}, "item_columns must name at least 1 column, each once, got a, a"),
        ({"query_widths": (3,)}, r"query_widths must be a number above 0 for each of title, body, got \(3,\)"),
        ({"item_widths": (3, 0)}, r"item_widths must be a number above 0 for each of title, body, got \(3, 0\)"),
        (
            {"query_widths": (3, 4), "item_widths": (3, 5)},
            "vectors 'body' of queries and items must have one width, as they are compared, got 4 and 5",
        ),
        (
            {"query_columns": ("title",), "query_widths": (3,), "item_widths": (3, 5)},
            "vectors 'body' of items must be as wide as a vector of queries, got 5 numbers and 3 of 'title': leave",
        ),
        (
            {"item_columns": ("title", "a"), "query_widths": (3, 4), "item_widths": (3, 3)},
            "vectors 'body' of queries must be as wide as a vector of items, got 4 numbers and 3 of 'title', 3 of 'a'",
        ),
    ],
)
def test_columns_and_widths_that_do_not_go_together(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NamedVectorsConfig(**fields)
