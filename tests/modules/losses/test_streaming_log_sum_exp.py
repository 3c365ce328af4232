"""The losses in blocks of any sizes, against all items at once; what an item is that several workers have encoded."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import oracles.losses
from rails_ray.modules.losses.negatives import BatchRelevance, Roles, are_copies, roles_among_copies
from rails_ray.modules.losses.pointwise import pointwise
from rails_ray.modules.losses.sampled_softmax import sampled_softmax
from rails_ray.modules.losses.streaming_log_sum_exp import Sums, merged, pointwise_loss, slopes, softmax_loss, sums_of

OFFSET = torch.tensor(0.5, dtype=torch.float64)


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[list[float]], Roles, list[int]]:
    """Logits, roles (an item may be neither relevant nor negative) and the sizes of blocks, 0 among them."""
    sizes = draw(st.lists(st.integers(0, 3), min_size=1, max_size=4).filter(any))
    num_items, num_queries = sum(sizes), draw(st.integers(1, 3))
    logits = [[draw(st.floats(-30, 30)) for _ in range(num_items)] for _ in range(num_queries)]
    positive = [draw(st.integers(0, num_items - 1)) for _ in range(num_queries)]
    kind = st.sampled_from(["relevant", "negative", "neither"])
    kinds = [["relevant" if item == own else draw(kind) for item in range(num_items)] for own in positive]
    is_of = [torch.tensor([[kind == wanted for kind in line] for line in kinds]) for wanted in ("relevant", "negative")]
    return logits, Roles(torch.tensor(positive), *is_of), sizes


def by_blocks(logits: Tensor, roles: Roles, sizes: list[int]) -> tuple[Sums, list[Sums]]:
    parts, first = [], 0
    for size in sizes:
        columns = slice(first, first + size)
        of_block = Roles(roles.positive - first, roles.is_relevant[:, columns], roles.is_negative[:, columns])
        parts.append(sums_of(logits[:, columns], of_block, OFFSET))
        first += size
    whole = parts[0]
    for part in parts[1:]:
        whole = merged(whole, part)
    return whole, parts


@settings(deadline=None)
@given(batches())
def test_sums_of_blocks_give_the_losses_of_all_items(batch: tuple[list[list[float]], Roles, list[int]]) -> None:
    values, roles, sizes = batch
    logits = torch.tensor(values, dtype=torch.float64)
    whole, _ = by_blocks(logits, roles, sizes)
    assert torch.allclose(softmax_loss(whole), sampled_softmax(logits, roles.positive, roles.is_hidden), atol=1e-8)
    expected = pointwise(logits, roles.is_relevant, roles.is_negative, OFFSET)
    assert torch.allclose(pointwise_loss(whole), expected, atol=1e-9)
    softmax = oracles.losses.sampled_softmax(values, roles.positive.tolist(), roles.is_hidden.tolist())
    assert softmax_loss(whole).mean().item() == pytest.approx(softmax, abs=1e-8)


@settings(deadline=None)
@given(batches())
def test_slopes_lead_from_the_whole_to_every_block(batch: tuple[list[list[float]], Roles, list[int]]) -> None:
    values, roles, sizes = batch
    logits = torch.tensor(values, dtype=torch.float64, requires_grad=True)
    with torch.no_grad():
        whole, _ = by_blocks(logits, roles, sizes)
    leaves = Sums(*(part.requires_grad_() for part in whole))
    slope = Sums(*torch.autograd.grad((softmax_loss(leaves) + pointwise_loss(leaves)).sum(), leaves))
    _, parts = by_blocks(logits, roles, sizes)
    for part in parts:
        torch.autograd.backward(tuple(part), tuple(slopes(part, whole, slope)))
    directly = logits.detach().requires_grad_()
    loss = sampled_softmax(directly, roles.positive, roles.is_hidden)
    (loss + pointwise(directly, roles.is_relevant, roles.is_negative, OFFSET)).sum().backward()
    assert torch.allclose(logits.grad, directly.grad, atol=1e-8)


def test_a_query_without_negatives_has_no_loss_and_no_gradient() -> None:
    logits = torch.tensor([[2.0, 9.0]], requires_grad=True)
    roles = Roles(torch.tensor([0]), torch.tensor([[True, False]]), torch.tensor([[False, False]]))
    sums = sums_of(logits, roles, torch.tensor(0.0))
    softmax_loss(sums).sum().backward()
    assert softmax_loss(sums).item() == 0
    assert logits.grad.tolist() == [[0, 0]]


@given(st.data())
def test_roles_among_copies_equal_the_definition(data: st.DataObject) -> None:
    item_rows = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=8))
    positive = data.draw(st.lists(st.integers(0, len(item_rows) - 1), min_size=1, max_size=3))
    relevant = [sorted({item_rows[own], *data.draw(st.lists(st.integers(0, 4), max_size=3))}) for own in positive]
    pairs = [(query, row) for query, rows in enumerate(relevant) for row in rows]
    rows = torch.tensor(item_rows)
    is_copy = are_copies(rows)
    assert is_copy.tolist() == [row in item_rows[:column] for column, row in enumerate(item_rows)]
    relevance = BatchRelevance(*map(torch.tensor, zip(*pairs, strict=True)))
    # In two parts, as they come by on a ring.
    cut = data.draw(st.integers(0, len(item_rows)))
    parts = [
        roles_among_copies(rows[part], is_copy[part], torch.tensor(positive) - part.start, rows[positive], relevance)
        for part in (slice(0, cut), slice(cut, len(item_rows)))
    ]
    expected_relevant, expected_negative = oracles.losses.roles_among_copies(item_rows, positive, relevant)
    assert torch.cat([part.is_relevant for part in parts], dim=1).tolist() == expected_relevant
    assert torch.cat([part.is_negative for part in parts], dim=1).tolist() == expected_negative
    for query, own in enumerate(positive):  # each item is met once
        met = [
            row
            for column, row in enumerate(item_rows)
            if expected_relevant[query][column] or expected_negative[query][column]
        ]
        assert sorted(met) == sorted(set(item_rows))
        assert expected_relevant[query][own]
