from typing import Any, Literal

import numpy as np
import pytest
import torch

import oracles.encoders
from rails_ray.modules.encoders.histories import Histories
from rails_ray.modules.encoders.sasrec import Sasrec, SasrecConfig

LENGTH = 5
Layers = Literal["transformer", "ligr"]
PositionsFrom = Literal["oldest", "newest"]


def encoder(num_blocks: int = 2, num_heads: int = 2, dropout: float = 0.0, **options: Any) -> Sasrec:
    """In float64, so that equations are compared and not rounding; weights large enough for every part to matter."""
    torch.manual_seed(0)
    sizes = {"width": 4, "num_blocks": num_blocks, "num_heads": num_heads, "max_length": LENGTH, "num_items": 7}
    made = Sasrec(SasrecConfig(dropout=dropout, **sizes, **options))
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return made.double().eval()


def everywhere(rows: list[list[int]]) -> Histories:
    """Histories of one length, all of whose positions are asked."""
    return Histories(torch.tensor(rows), torch.arange(len(rows) * len(rows[0])))


@pytest.mark.parametrize("rows", [[[3]], [[1, 2, 2], [0, 6, 5]], [[6, 5, 4, 3, 2]]], ids=["one", "some", "longest"])
@pytest.mark.parametrize(("num_blocks", "num_heads"), [(1, 1), (1, 2), (2, 1), (2, 4)])
@pytest.mark.parametrize("layers", ["transformer", "ligr"])
def test_it_equals_the_loops(rows: list[list[int]], num_blocks: int, num_heads: int, layers: Layers) -> None:
    made = encoder(num_blocks, num_heads, layers=layers)
    weights = {name: tensor.tolist() for name, tensor in made.state_dict().items()}
    expected = [line for history in rows for line in oracles.encoders.sasrec(history, weights, num_blocks, num_heads)]
    found = made.queries(everywhere(rows))
    assert torch.allclose(found, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-9)


@pytest.mark.parametrize("swiglu_factor", [1, 2])
def test_the_hidden_layer_of_a_swiglu_is_a_multiple_of_the_width(swiglu_factor: int) -> None:
    made = encoder(layers="ligr", swiglu_factor=swiglu_factor)
    weights = {name: tensor.tolist() for name, tensor in made.state_dict().items()}
    assert len(weights["blocks.0.network.into.weight"]) == 2 * swiglu_factor * 4
    found = made.queries(everywhere([[1, 2, 2]]))
    expected = oracles.encoders.sasrec([1, 2, 2], weights, 2, 2)
    assert torch.allclose(found, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-9)


@pytest.mark.parametrize("history", [[4], [4, 1, 1], [0, 1, 2, 3, 4], [6, 6, 0, 1, 2, 3, 4]])
@pytest.mark.parametrize("as_array", [False, True])
@pytest.mark.parametrize("positions_from", ["oldest", "newest"])
def test_a_query_is_the_last_position_of_the_last_items(
    history: list[int], as_array: bool, positions_from: PositionsFrom
) -> None:
    made = encoder(positions_from=positions_from)
    weights = {name: tensor.tolist() for name, tensor in made.state_dict().items()}
    array = np.array(history)
    array.flags.writeable = False  # as those are that come from a Parquet file
    features = made.query_features([[5, 3], array if as_array else history, [2]])
    assert features.rows.shape == (3, LENGTH)
    expected = oracles.encoders.sasrec(history[-LENGTH:], weights, 2, 2, positions_from == "newest")[-1]
    assert made.queries(features)[1].tolist() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("changed", range(LENGTH))
def test_a_later_item_changes_nothing_before_it(changed: int) -> None:
    made = encoder()
    rows = [1, 2, 3, 4, 5]
    other = [*rows[:changed], 0, *rows[changed + 1 :]]
    before, after = made.queries(everywhere([rows])), made.queries(everywhere([other]))
    is_same = (before == after).all(dim=1).tolist()
    assert is_same[:changed] == [True] * changed
    assert not any(is_same[changed:])


def test_neither_padding_nor_company_changes_anything() -> None:
    made = encoder()
    alone = made.queries(everywhere([[1, 2]]))
    padded = made.queries(Histories(torch.tensor([[5, 5, 5, 5, 5], [1, 2, 6, 0, 3]]), torch.tensor([5, 6])))
    assert torch.allclose(alone, padded, atol=1e-12)


def test_take_repeats_and_reorders() -> None:
    made = encoder()
    features = made.query_features([[1], [2, 3], [4, 5, 6]])
    assert len(features) == 3
    rows = torch.tensor([2, 0, 0, 1])
    assert torch.allclose(made.queries(features.take(rows)), made.queries(features)[rows], atol=1e-12)


def test_no_query() -> None:
    made = encoder()
    assert made.queries(made.query_features([])).shape == (0, 4)


def test_an_item_is_its_embedding() -> None:
    made = encoder()
    rows = np.array([3, 0, 3])
    rows.flags.writeable = False
    assert torch.equal(made.items(made.item_features(rows)), made.embeddings.weight[rows.tolist()])


def test_an_empty_history_is_blank() -> None:
    assert encoder().is_blank([])
    assert not encoder().is_blank([0])


def test_dropout_is_for_training_only() -> None:
    made, features = encoder(dropout=0.5), everywhere([[1, 2, 3]])
    assert torch.equal(made.queries(features), made.queries(features))
    assert torch.equal(made.queries(features), encoder(dropout=0.0).queries(features))
    made.train()
    assert not torch.equal(made.queries(features), made.queries(features))
    without = encoder(dropout=0.0).train()
    assert torch.equal(without.queries(features), without.queries(features))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": 0}, "width must be at least 1, got 0"),
        ({"num_blocks": 0}, "num_blocks must be at least 1, got 0"),
        ({"max_length": 0}, "max_length must be at least 1, got 0"),
        ({"num_items": -1}, "num_items must be at least 0, got -1"),
        ({"width": 6, "num_heads": 4}, "width must be a multiple of the 4 heads, got 6"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\), got 1.0"),
        ({"swiglu_factor": 0}, "swiglu_factor must be at least 1, got 0"),
    ],
)
def test_config_out_of_range(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SasrecConfig(**change)


def test_a_model_needs_to_know_how_many_items_there_are() -> None:
    with pytest.raises(ValueError, match="num_items must be at least 1 for a model, got 0"):
        Sasrec(SasrecConfig())
