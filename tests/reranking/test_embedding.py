"""Relevance-based embeddings: they begin as AnnCUR, learn its error, and take new items."""

import pytest
import torch

from rails_ray.modules.losses.top_share import top_share
from rails_ray.reranking.anncur import AnnCur
from rails_ray.reranking.embedding import RelevanceEmbedding, RelevanceEmbeddingConfig, Standardise, on_sphere
from support.quantizers import some_vectors

S = 6


def of_distances(num_items: int = 80, num_queries: int = 120) -> torch.Tensor:
    """Relevances that no few supports rebuild: closeness in the plane."""
    return torch.exp(-torch.cdist(some_vectors(num_items, 2), some_vectors(num_queries, 2, 1)).square())


def begun(
    relevance: torch.Tensor, config: RelevanceEmbeddingConfig, features: torch.Tensor | None = None
) -> tuple[RelevanceEmbedding, torch.Tensor]:
    """An untrained embedding of the first hundred queries, and the combinations of its items."""
    supports, train = torch.arange(S), slice(0, 100)
    combinations = AnnCur(relevance[supports, train]).combinations(relevance[:, train]).float()
    torch.manual_seed(0)
    made = RelevanceEmbedding(
        config, relevance[supports, train].T, combinations, float(relevance[:, train].std()), features
    )
    return made, combinations


@pytest.mark.parametrize("items", ["mlp", "table"])
def test_it_begins_as_anncur(items: str) -> None:
    relevance = of_distances()
    made, combinations = begun(relevance, RelevanceEmbeddingConfig(items=items, width=4))
    asked = relevance[:S, 100:].T
    queries, vectors = made.queries(asked), made.items(combinations)
    assert queries.shape == (20, S + 4 + 1)
    assert vectors.shape == (80, S + 4 + 1)
    assert torch.allclose(queries @ vectors.T * made.sigma, asked @ combinations.T, atol=1e-4)


@pytest.mark.parametrize("items", ["mlp", "table"])
def test_it_learns_what_anncur_misses(items: str) -> None:
    relevance = of_distances()
    made, combinations = begun(relevance, RelevanceEmbeddingConfig(items=items))
    optimizer = torch.optim.Adam(made.parameters(), 3e-3)

    def loss() -> torch.Tensor:
        scores = made.queries(relevance[:S, :100].T) @ made.items(combinations).T
        return top_share(scores, relevance[:, :100].T, 10).mean()

    before = float(loss().detach())
    for _ in range(150):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    assert float(loss().detach()) < before - 0.2
    held_out = made.queries(relevance[:S, 100:].T) @ made.items(combinations).T
    plain = relevance[:S, 100:].T @ combinations.T
    best = relevance[:, 100:].T.topk(10).indices

    def hits(scores: torch.Tensor) -> float:
        found = scores.topk(10).indices
        return sum(len(set(a) & set(b)) for a, b in zip(found.tolist(), best.tolist(), strict=True)) / best.numel()

    if items == "mlp":  # a table learns the training queries alone, in so few steps
        assert hits(held_out) > hits(plain)


def test_a_new_item_has_the_mean_bias() -> None:
    relevance = of_distances()
    for items in ("mlp", "table"):
        made, combinations = begun(relevance, RelevanceEmbeddingConfig(items=items, width=4))
        with torch.no_grad():
            made.bias.copy_(torch.arange(80.0))
        new, own = made.new_items(combinations[:3]), made.items(combinations)[:3]
        assert torch.equal(new[:, :S], own[:, :S])
        assert new[:, -1].tolist() == [39.5] * 3
        assert torch.allclose(new[:, S:-1], own[:, S:-1], atol=1e-5) == (items == "mlp")


def test_query_features_are_seen_by_the_network_alone() -> None:
    relevance, features = of_distances(), some_vectors(120, 3, 5)
    made, _ = begun(relevance, RelevanceEmbeddingConfig(width=4), features=features[:100])
    with torch.no_grad():
        made.query_network[-1].weight.normal_()
    one, other = (made.queries(relevance[:S, 100:].T, own) for own in (features[100:], -features[100:]))
    assert torch.equal(one[:, :S], other[:, :S])
    assert not torch.equal(one, other)


def test_numbers_that_do_not_vary_are_left_as_they_are() -> None:
    relevance = of_distances()
    relevance[0] = 1.0
    made, combinations = begun(relevance, RelevanceEmbeddingConfig())
    assert made.queries(relevance[:S].T).isfinite().all()
    assert made.items(combinations).isfinite().all()


def test_numbers_that_vary_by_rounding_are_left_as_they_are() -> None:
    rows = some_vectors(50, 3)
    rows[:, 1] = 0.7 + 6e-8 * rows[:, 1].sign()
    made = Standardise(rows)
    assert made.deviation[1] == 1
    assert made(torch.full((1, 3), 0.71))[0, 1].item() == pytest.approx(0.01, rel=1e-3)
    assert made(rows)[:, 0].std(correction=0).item() == pytest.approx(1, rel=1e-4)


def test_on_a_sphere_inner_products_stay() -> None:
    queries, items = some_vectors(4, 5), some_vectors(30, 5, 1)
    radius = items.norm(dim=1).max()
    on_items = on_sphere(items, radius)
    assert torch.allclose(on_items.norm(dim=1), torch.ones(30), atol=1e-5)
    on_queries = torch.nn.functional.pad(radius * queries, (0, 1))
    assert torch.allclose(on_queries @ on_items.T, queries @ items.T, atol=1e-4)


def test_an_item_longer_than_the_sphere_keeps_its_inner_products() -> None:
    queries, items = some_vectors(4, 5), some_vectors(3, 5, 1)
    radius = float(items.norm(dim=1).max()) / 2
    on_items = on_sphere(items, radius)
    assert on_items.norm(dim=1).max() == pytest.approx(2)
    assert torch.allclose(torch.nn.functional.pad(radius * queries, (0, 1)) @ on_items.T, queries @ items.T, atol=1e-4)
