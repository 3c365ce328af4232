from itertools import combinations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

import oracles.losses
from rails_ray.data.buckets import positives_of
from rails_ray.data.queries import ItemLists
from rails_ray.modules.losses.bucket_cross_entropy import (
    BucketPositives,
    bucket_cross_entropy,
    sampled_bucket_cross_entropy,
)

BUCKETS = [3, 0, 3, 1, 4, 2]  # of six items
RELEVANT = [[0, 2, 1], [3], [5, 4, 3, 0, 1]]  # two items of one bucket; a single one; all buckets
POSITIVES = positives_of(ItemLists.of(RELEVANT), np.array(BUCKETS))
TARGETS = torch.tensor(oracles.losses.bucket_targets(RELEVANT, BUCKETS, 5), dtype=torch.float64)


def logits_of(num_queries: int = 3, num_buckets: int = 5, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 4 * torch.randn(num_queries, num_buckets, generator=generator, dtype=torch.float64)


@given(st.integers(1, 5), st.data())
def test_equals_the_equation(num_buckets: int, data: st.DataObject) -> None:
    buckets = data.draw(st.lists(st.integers(0, num_buckets - 1), min_size=1, max_size=6))
    items = st.lists(st.integers(0, len(buckets) - 1), min_size=1, max_size=4)
    relevant = data.draw(st.lists(items, min_size=1, max_size=4))
    line = st.lists(st.floats(-20, 20), min_size=num_buckets, max_size=num_buckets)
    logits = [data.draw(line) for _ in relevant]
    positives = positives_of(ItemLists.of(relevant), np.array(buckets))
    targets = oracles.losses.bucket_targets(relevant, buckets, num_buckets)
    losses = bucket_cross_entropy(torch.tensor(logits, dtype=torch.float64), positives)
    expected = [oracles.losses.binary_cross_entropy(*pair) for pair in zip(logits, targets, strict=True)]
    assert losses.tolist() == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_equals_that_of_torch_with_its_gradient() -> None:
    ours, theirs = (logits_of().requires_grad_() for _ in range(2))
    losses = bucket_cross_entropy(ours, POSITIVES)
    expected = F.binary_cross_entropy_with_logits(theirs, TARGETS, reduction="none").sum(dim=1)
    assert torch.allclose(losses, expected)
    losses.sum().backward()
    expected.sum().backward()
    assert torch.allclose(ours.grad, theirs.grad)
    assert torch.autograd.gradcheck(lambda logits: bucket_cross_entropy(logits, POSITIVES), ours)


def test_huge_logits() -> None:
    logits = torch.tensor([[1e4, -1e4], [-1e4, 1e4]], requires_grad=True)
    losses = bucket_cross_entropy(logits, BucketPositives(torch.tensor([0, 1]), torch.tensor([0, 0])))
    losses.sum().backward()
    assert losses.tolist() == pytest.approx([0, 2e4])
    assert logits.grad.tolist() == [[0, 0], [-1, 1]]


def sampled(logits: torch.Tensor, drawn: list[int]) -> torch.Tensor:
    """The estimate by these buckets, as `BucketStep` asks for it."""
    columns = torch.cat([torch.tensor(drawn, dtype=torch.int64), POSITIVES.bucket]).unique()
    positives = BucketPositives(POSITIVES.query, torch.searchsorted(columns, POSITIVES.bucket))
    is_sampled = torch.isin(columns, torch.tensor(drawn))
    return sampled_bucket_cross_entropy(logits[:, columns], positives, is_sampled, logits.shape[1])


def estimate(logits: list[float], targets: list[int], drawn: list[int]) -> float:
    """All positive buckets, and the mean of the drawn negative ones times the number of negative ones."""
    among = [bucket for bucket in drawn if not targets[bucket]]
    own = oracles.losses.binary_cross_entropy(
        [z for z, y in zip(logits, targets, strict=True) if y], [1] * sum(targets)
    )
    others = oracles.losses.binary_cross_entropy([logits[bucket] for bucket in among], [0] * len(among))
    return own + others * (len(targets) - sum(targets)) / max(len(among), 1)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_the_estimate_of_each_sample_equals_its_equation(size: int) -> None:
    logits = logits_of()
    for drawn in combinations(range(5), size):
        expected = [estimate(z, y, list(drawn)) for z, y in zip(logits.tolist(), TARGETS.int().tolist(), strict=True)]
        assert sampled(logits, list(drawn)).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("size", [3, 4, 5])
def test_the_mean_over_all_samples_is_the_loss(size: int) -> None:
    """With its gradient; a sample of three has a bucket that is not positive to the first query, which has two."""
    logits = logits_of().requires_grad_()
    estimates = torch.stack([sampled(logits, list(drawn)) for drawn in combinations(range(5), size)]).mean(dim=0)
    losses = bucket_cross_entropy(logits, POSITIVES)
    assert torch.allclose(estimates, losses)
    gradients = [torch.autograd.grad(made.sum(), logits)[0] for made in (estimates, losses)]
    assert torch.allclose(*gradients)


def test_a_sample_may_hold_positive_buckets_alone() -> None:
    """Then nothing stands for the others: only a sample of more buckets than are positive is without bias."""
    logits = logits_of()
    own = [oracles.losses.binary_cross_entropy([logits[0, 0].item(), logits[0, 3].item()], [1, 1])]
    assert sampled(logits, [0, 3])[:1].tolist() == pytest.approx(own)


def test_all_buckets_sampled_give_the_loss() -> None:
    logits = logits_of()
    assert torch.allclose(sampled(logits, [4, 2, 0, 1, 3]), bucket_cross_entropy(logits, POSITIVES))


@pytest.mark.parametrize("drawn", [[0], [1, 4], [0, 1, 2, 3, 4]])
def test_a_query_with_all_buckets_positive_needs_no_sample(drawn: list[int]) -> None:
    logits = logits_of()
    expected = F.softplus(-logits[2]).sum()
    assert torch.allclose(sampled(logits, drawn)[2], expected)
    assert torch.allclose(bucket_cross_entropy(logits, POSITIVES)[2], expected)


def test_the_gradient_of_a_sample() -> None:
    """Nothing to the positive buckets of other queries that were not drawn."""
    logits = logits_of().requires_grad_()
    assert torch.autograd.gradcheck(lambda of_all: sampled(of_all, [1, 2]), logits)
    sampled(logits, [1, 2])[0].backward()
    assert (logits.grad != 0).tolist() == [[True, True, True, True, False], [False] * 5, [False] * 5]


def test_no_query_has_no_loss() -> None:
    none = BucketPositives(*(torch.empty(0, dtype=torch.int64) for _ in range(2)))
    assert bucket_cross_entropy(torch.empty(0, 5), none).shape == (0,)
    is_sampled = torch.ones(5, dtype=torch.bool)
    assert sampled_bucket_cross_entropy(torch.empty(0, 5), none, is_sampled, 5).shape == (0,)
