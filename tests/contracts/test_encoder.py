"""What every encoder must hold. A new one is one line in `MEMBERS`."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from rails_ray.allowed_code import AllowedCode
from rails_ray.data.queries import DenseRows, ItemLists, Visits
from rails_ray.modules.encoders import Encoder
from rails_ray.modules.encoders.frozen import FrozenText, FunctionConfig
from rails_ray.modules.encoders.hstu import Hstu, HstuConfig
from rails_ray.modules.encoders.named_vectors import NamedVectors, NamedVectorsConfig
from rails_ray.modules.encoders.sasrec import Sasrec, SasrecConfig
from rails_ray.modules.encoders.text import TextTransformer, TransformerConfig
from rails_ray.modules.encoders.two_tower import TwoTower, TwoTowerConfig
from rails_ray.modules.encoders.vectors import Vectors, VectorsConfig
from support.text_vectors import WIDTH

TEXTS = ["red car", "a blue hat, and another", "car", "Ünïcode 狗 ピザ", "red car"]
HISTORIES = ItemLists.of([[0, 3, 1], [2], [5, 5, 0, 1, 2, 3], [4, 1], [0, 3, 1]])


ROWS = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)[[0, 1, 2, 3, 0]]


class Member(NamedTuple):
    """
    queries: five, of which the first and the last are equal and the third is another.
    items: five, likewise.
    """

    make: Callable[[], Any]
    queries: Any
    items: Any


def transformer(pooling: str) -> TextTransformer:
    sizes = TransformerConfig(width=8, num_heads=2, hidden=8, max_length=8, vocabulary_size=300, pooling=pooling)
    made = TextTransformer(sizes, (2, 3))
    made.learn(TEXTS)
    return made


ALLOWED = AllowedCode(("support",))
MEMBERS = {
    "two towers": Member(lambda: TwoTower(TwoTowerConfig(width=8, hidden=8, num_buckets=99)), TEXTS, TEXTS),
    "transformer": Member(lambda: transformer("mean"), TEXTS, TEXTS),
    "transformer with aggregation tokens": Member(lambda: transformer("aggregation"), TEXTS, TEXTS),
    "SASRec": Member(
        lambda: Sasrec(SasrecConfig(width=8, num_heads=2, max_length=4, num_items=6)),
        HISTORIES,
        np.array([0, 5, 2, 1, 0]),
    ),
    "SASRec of LiGR": Member(
        lambda: Sasrec(SasrecConfig(width=8, num_heads=2, max_length=4, num_items=6, layers="ligr")),
        HISTORIES,
        np.array([0, 5, 2, 1, 0]),
    ),
    "HSTU": Member(
        lambda: Hstu(HstuConfig(width=8, num_heads=2, max_length=4, num_items=6, num_time_buckets=0)),
        HISTORIES,
        np.array([0, 5, 2, 1, 0]),
    ),
    "HSTU with times and users": Member(
        lambda: Hstu(HstuConfig(width=8, num_heads=2, max_length=4, num_items=6, num_users=5), own_width=3),
        Visits(HISTORIES.starts, HISTORIES.rows, HISTORIES.starts[-1] - np.arange(15)[::-1], np.array([1, 2, 3, 4, 1])),
        np.array([0, 5, 2, 1, 0]),
    ),
    "vectors": Member(
        lambda: Vectors(VectorsConfig(query_width=4, item_shape=(1, 4))), DenseRows(ROWS), DenseRows(ROWS)
    ),
    "several vectors": Member(
        lambda: Vectors(VectorsConfig(query_width=4, item_shape=(2, 4))),
        DenseRows(ROWS),
        DenseRows(np.stack([ROWS, ROWS[:, ::-1]], axis=1)),
    ),
    "named vectors": Member(
        lambda: NamedVectors(NamedVectorsConfig(query_widths=(3, 1), item_widths=(3, 1))),
        DenseRows(ROWS),
        DenseRows(ROWS),
    ),
    "a frozen text model": Member(
        lambda: FrozenText(FunctionConfig(function="support.text_vectors:encode", width=WIDTH), ALLOWED), TEXTS, TEXTS
    ),
}
members = pytest.mark.parametrize("member", MEMBERS.values(), ids=MEMBERS)
SIDES = ("queries", "items")
either_side = pytest.mark.parametrize("side", SIDES)


def made(member: Member) -> Any:
    torch.manual_seed(0)
    return member.make().eval()


def features(encoder: Any, member: Member, side: str) -> Any:
    return encoder.query_features(member.queries) if side == "queries" else encoder.item_features(member.items)


@members
def test_it_is_an_encoder(member: Member) -> None:
    assert isinstance(made(member), Encoder)


@members
@either_side
@torch.no_grad()
def test_a_representation_has_its_width_and_is_finite(member: Member, side: str) -> None:
    encoder = made(member)
    width = encoder.query_width if side == "queries" else encoder.item_width
    found = getattr(encoder, side)(features(encoder, member, side))
    assert found.shape == (5, width)
    assert found.isfinite().all()
    assert torch.allclose(found[0], found[4], atol=1e-6)
    assert not torch.allclose(found[0], found[2], atol=1e-3)


@members
@either_side
@torch.no_grad()
def test_company_and_order_change_nothing(member: Member, side: str) -> None:
    encoder = made(member)
    read, encode = features(encoder, member, side), getattr(encoder, side)
    whole = encode(read)
    for rows in ([2], [4, 1, 1], []):
        assert torch.allclose(encode(read.take(torch.tensor(rows, dtype=torch.int64))), whole[rows], atol=1e-6)


@members
@torch.no_grad()
def test_weights_come_back_as_they_were(member: Member) -> None:
    """Tokens included, which are of no use without them."""
    encoder = made(member)
    other = member.make().eval()
    other.load_state_dict(encoder.state_dict())
    for side in SIDES:
        expected = getattr(encoder, side)(features(encoder, member, side))
        assert torch.equal(getattr(other, side)(features(other, member, side)), expected)


@members
def test_every_parameter_is_reached_by_queries_or_items(member: Member) -> None:
    encoder = made(member).train()
    if not list(encoder.parameters()):  # it is frozen
        return
    torch.manual_seed(0)
    sums = [getattr(encoder, side)(features(encoder, member, side)) for side in SIDES]
    sum((found * torch.randn_like(found)).sum() for found in sums).backward()
    for name, parameter in encoder.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


@members
def test_what_says_something_is_not_blank(member: Member) -> None:
    encoder = made(member)
    assert not any(encoder.is_blank(query) for query in member.queries)
    assert encoder.is_blank("... !" if encoder.form == "text" else [])
