"""The bench of free vectors: what counts as reached, and how the largest is found."""

import itertools
from functools import partial

import pytest
import torch

from jobs.benches import limit
from jobs.benches.limit import Arguments, Free, Kind


@pytest.mark.parametrize("wanted", [2, 3, 4, 5, 7, 29, 30])
def test_the_largest_number_is_found(wanted: int) -> None:
    assert limit.largest(partial(lambda most, tried: tried <= most, wanted), 30) == wanted


def test_a_pair_is_best_if_nothing_else_scores_as_high() -> None:
    is_wanted = limit.pairs_of(4)
    assert [line.nonzero()[:, 0].tolist() for line in is_wanted] == [
        [*pair] for pair in itertools.combinations(range(4), 2)
    ]
    logits = is_wanted.float()
    assert limit.are_pairs_best(logits, is_wanted)
    logits[2, 1] = 1.0  # as high as what the third query wants
    assert not limit.are_pairs_best(logits, is_wanted)


def test_the_loss_of_a_wanted_item_ignores_the_other() -> None:
    logits, is_wanted = torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([[True, True, False]])
    first, second = (torch.tensor([own, 0.0]).log_softmax(dim=0)[0] for own in (2.0, 1.0))
    assert limit.loss_of(logits, is_wanted) == pytest.approx(float(-(first + second) / 2))


@pytest.mark.parametrize("kind", limit.KINDS, ids=lambda kind: kind.name)
def test_every_item_has_as_many_numbers_whatever_the_similarity(kind: Kind) -> None:
    model = Free(kind, num_queries=3, num_items=2, num_numbers=24)
    parts = (model.items, model.item_gate) if kind.has_gate else (model.items,)
    assert sum(part[0].numel() for part in parts) == 24
    assert model().shape == (3, 2)


def test_four_numbers_are_enough_for_any_number_of_items() -> None:
    """On the trigonometric moment curve: 1 - cos is 0 at one angle and above 0 elsewhere, so the query of a pair is
    minus the product of two of them, whose terms of degree 1 and 2 are four numbers. Training finds less."""
    num_items = 30
    angles = 2 * torch.pi * torch.arange(num_items, dtype=torch.float64) / num_items
    items = torch.stack([angles.cos(), angles.sin(), (2 * angles).cos(), (2 * angles).sin()], dim=1)
    is_wanted = limit.pairs_of(num_items)
    a, b = angles[is_wanted.nonzero()[:, 1].view(-1, 2)].T
    queries = torch.stack([a.cos() + b.cos(), a.sin() + b.sin(), -(a + b).cos() / 2, -(a + b).sin() / 2], dim=1)
    assert items.norm(dim=1).allclose(torch.tensor(2.0, dtype=torch.float64).sqrt())
    assert limit.are_pairs_best(queries @ items.T, is_wanted)


def test_a_cell_that_is_recorded_is_not_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = Arguments(widths=(4, 8))
    every = [(4, "dot"), (4, "mol 2x2"), (8, "dot"), (8, "mol 2x2"), (8, "mol 2x2 gated"), (8, "mol 4x4")]
    rows = [{"execution": "1", "kind": "environment"}]
    monkeypatch.setattr(limit, "recorded", lambda name: rows)
    assert [(place, kind.name) for place, kind in limit.left(arguments)] == every
    rows += [{"kind": "dot", "num_numbers": 8, "largest": 9, "num_steps": 3000, "num_seeds": 2, "most": 200}]
    rows += [{"kind": "dot", "num_numbers": 4, "largest": 9, "num_steps": 300, "num_seeds": 2, "most": 200}]
    assert [(place, kind.name) for place, kind in limit.left(arguments)] == [
        cell for cell in every if cell != (8, "dot")
    ]


def test_of_three_items_in_a_plane_any_two_can_be_best_and_of_four_not() -> None:
    """Two numbers are an angle: only neighbours on the circle are best together."""
    quick = Arguments(num_steps=300, num_seeds=1)
    assert limit.is_reached(Kind(1), 2, 3, arguments=quick)
    assert not limit.is_reached(Kind(1), 2, 4, arguments=quick)
