"""Surrogates against the equations, with scores of a mixture and with scores that an inner product gives."""

from functools import cache
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

from rails_ray.errors import DamagedError
from rails_ray.families.vector_items import surrogate_file
from rails_ray.modules.similarities.dot_product import DotProduct, DotProductConfig
from rails_ray.modules.similarities.states import ItemState, QueryState, take
from rails_ray.reranking.surrogate import Surrogate, SurrogateConfig, fit_surrogate, scores_of_all
from support.examples import random_states, small_mixture
from support.quantizers import some_vectors

KINDS = [("ridge", "query"), ("ridge", "supports"), ("mlp", "query"), ("mlp", "supports")]
each_kind = pytest.mark.parametrize(("kind", "reads"), KINDS, ids=[" of ".join(kind) for kind in KINDS])


def config_of(kind: Any = "ridge", reads: Any = "query", **fields: Any) -> SurrogateConfig:
    return SurrogateConfig(kind=kind, reads=reads, **{"width": 6, "num_supports": 30, **fields})


@cache
def fitted(kind: Any, reads: Any, num_queries: int = 300) -> tuple[Surrogate, QueryState, ItemState]:
    query, items = random_states(num_queries + 20, 90, seed=3)
    made = fit_surrogate(config_of(kind, reads), small_mixture(), take(query, slice(0, num_queries)), items, seed=1)
    return made, take(query, slice(num_queries, None)), items


@each_kind
def test_an_item_is_the_ridge_regression_of_its_scores(kind: str, reads: str) -> None:
    made, _, items = fitted(kind, reads)
    psi = made.queries(small_mixture(), made.sample).double().numpy()
    found = made.items(small_mixture(), items)
    assert found.shape == (90, 7)
    penalty = 0.001 * np.square(psi).mean()
    for row in range(0, 90, 17):
        scores = small_mixture()(made.sample, take(items, slice(row, row + 1))).scores[:, 0].detach().double().numpy()
        gram = psi.T @ psi / len(psi) + penalty * np.eye(7)
        expected = np.linalg.solve(gram, psi.T @ scores / len(psi))
        assert found[row].tolist() == pytest.approx(expected, abs=1e-4)


@each_kind
def test_new_queries_are_scored_almost_as_by_the_mixture(kind: str, reads: str) -> None:
    made, new, items = fitted(kind, reads)
    scores = scores_of_all(small_mixture(), new, items)
    estimated = made.queries(small_mixture(), new) @ made.items(small_mixture(), items).T
    error = (estimated - scores).square().mean()
    assert error < 0.5 * (scores - scores.mean(dim=0)).square().mean()  # less than half of what an item's mean leaves


def test_scores_of_an_inner_product_are_found_again() -> None:
    """Seven numbers suffice for vectors of six, whatever the sample."""
    query = QueryState(some_vectors(40, 6, 1)[:, None], None, torch.ones(40))
    items = ItemState(some_vectors(50, 6, 2)[:, None], None, None)
    similarity = DotProduct(DotProductConfig())
    made = fit_surrogate(config_of(ridge=1e-8), similarity, query, take(items, slice(0, 20)), seed=0)
    other = QueryState(some_vectors(9, 6, 5)[:, None], None, torch.ones(9))
    estimated = made.queries(similarity, other) @ made.items(similarity, items).T
    assert torch.allclose(estimated, similarity.scores(other, items), atol=1e-3)


def test_a_linear_map_of_few_numbers_is_the_best_of_its_rank() -> None:
    """The fit's error is that of the singular values that it leaves out."""
    query, items = random_states(80, 60, seed=5)
    made = fit_surrogate(config_of(width=2, ridge=1e-8), small_mixture(), query, items, seed=0)
    scores = scores_of_all(small_mixture(), query, items).double()
    phi = torch.cat([query.components.flatten(start_dim=1), query.gate], dim=1).double()
    phi = torch.cat([phi, torch.ones(80, 1)], dim=1)
    of_all = phi @ torch.linalg.lstsq(phi, scores).solution
    left = torch.linalg.svdvals(of_all - of_all.mean(dim=0))[2:].square().sum() + (scores - of_all).square().sum()
    estimated = made.queries(small_mixture(), query) @ made.items(small_mixture(), items).T
    assert float((estimated - scores).square().sum()) == pytest.approx(float(left), rel=1e-2)


@each_kind
def test_equal_arguments_give_an_equal_file_and_it_is_read_again(kind: str, reads: str) -> None:
    made, new, items = fitted(kind, reads)
    data = surrogate_file.to_bytes(made)
    assert data == surrogate_file.to_bytes(fitted.__wrapped__(kind, reads)[0])
    read = surrogate_file.from_bytes(data).to("cpu")
    assert read.width == 7
    assert torch.equal(read.queries(small_mixture(), new), made.queries(small_mixture(), new))
    assert torch.equal(read.items(small_mixture(), items), made.items(small_mixture(), items))


def test_an_item_does_not_depend_on_the_items_beside_it() -> None:
    made, _, items = fitted("ridge", "query")
    assert torch.allclose(
        made.items(small_mixture(), items)[7:9], made.items(small_mixture(), take(items, slice(7, 9))), atol=1e-6
    )


@pytest.mark.parametrize("data", [b"", b"none", surrogate_file.to_bytes(fitted("ridge", "query")[0])[:-9]])
def test_a_damaged_file(data: bytes) -> None:
    with pytest.raises(
        DamagedError, match=r"surrogate\.safetensors must hold a surrogate, got: .*: encode a new version"
    ):
        surrogate_file.from_bytes(data)


def test_fewer_items_than_supports() -> None:
    query, items = random_states(9, 5)
    with pytest.raises(ValueError, match="num_supports must be at most the 5 items, got 30"):
        fit_surrogate(config_of(reads="supports"), small_mixture(), query, items, seed=0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"width": 0}, "width must be at least 1, got 0"),
        ({"num_queries": 0}, "num_queries must be at least 1, got 0"),
        (
            {"reads": "supports", "num_items": 99},
            "num_supports must be at most num_items, 99, which they are chosen from",
        ),
        ({"ridge": 0.0}, r"ridge must be a finite number above 0, got 0\.0"),
        ({"ridge": float("nan")}, "ridge must be a finite number above 0, got nan"),
    ],
)
def test_numbers_that_cannot_be(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SurrogateConfig(**fields)


@each_kind
@pytest.mark.parametrize(("num_queries", "num_items"), [(2, 90), (8, 90), (30, 5)])
def test_few_queries_or_items(kind: str, reads: str, num_queries: int, num_items: int) -> None:
    query, items = random_states(num_queries, num_items, seed=4)
    with patch("rails_ray.reranking.surrogate.NUM_STEPS", 100):
        made = fit_surrogate(config_of(kind, reads, width=9, num_supports=3), small_mixture(), query, items, seed=0)
    assert made.items(small_mixture(), items).shape == (num_items, made.width)
    assert made.items(small_mixture(), take(items, slice(0, 0))).shape == (0, made.width)
    assert made.queries(small_mixture(), take(query, slice(0, 0))).shape == (0, made.width)
    assert made.queries(small_mixture(), query).isfinite().all()


def test_a_network_of_few_queries_is_trained() -> None:
    query, items = random_states(9, 90, seed=4)
    with patch("rails_ray.reranking.surrogate.NUM_STEPS", 0):
        before = fit_surrogate(config_of("mlp"), small_mixture(), query, items, seed=0)
    after = fit_surrogate(config_of("mlp"), small_mixture(), query, items, seed=0)
    assert not torch.equal(before.weights[0], after.weights[0])


def test_one_query_is_too_few() -> None:
    query, items = random_states(1, 9)
    with pytest.raises(ValueError, match="a surrogate must be fitted to at least 2 training queries, got 1"):
        fit_surrogate(config_of(), small_mixture(), query, items, seed=0)
