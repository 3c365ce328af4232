from typing import Any

import pytest
import torch

import oracles.encoders
from rails_ray.data.queries import Visits
from rails_ray.modules.encoders.histories import Histories
from rails_ray.modules.encoders.hstu import Hstu, HstuConfig
from rails_ray.schema.times import UNKNOWN_TIME

LENGTH = 5


def encoder(num_blocks: int = 2, num_heads: int = 2, **sizes: Any) -> Hstu:
    """In float64; weights large enough for every part to matter."""
    torch.manual_seed(0)
    config = HstuConfig(
        width=4, num_blocks=num_blocks, num_heads=num_heads, max_length=LENGTH, dropout=0.0, num_items=7, **sizes
    )
    made = Hstu(config)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return made.double().eval()


def weights_of(made: Hstu) -> dict[str, list[float]]:
    return {name: tensor.tolist() for name, tensor in made.state_dict().items()}


def everywhere(rows: list[list[int]], times: list[list[int]] | None = None) -> Histories:
    known = None if times is None else torch.tensor(times)
    return Histories(torch.tensor(rows), torch.arange(len(rows) * len(rows[0])), known)


@pytest.mark.parametrize("rows", [[[3]], [[1, 2, 2], [0, 6, 5]], [[6, 5, 4, 3, 2]]], ids=["one", "some", "longest"])
@pytest.mark.parametrize(("num_blocks", "num_heads"), [(1, 1), (1, 2), (2, 1), (2, 4)])
def test_it_equals_the_loops(rows: list[list[int]], num_blocks: int, num_heads: int) -> None:
    made = encoder(num_blocks, num_heads)
    expected = [line for row in rows for line in oracles.encoders.hstu(row, weights_of(made), num_heads, LENGTH)]
    found = made.queries(everywhere(rows))
    assert torch.allclose(found, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-9)


def test_positions_may_count_from_the_newest_item() -> None:
    made, row = encoder(positions_from="newest"), [6, 5, 4]
    expected = oracles.encoders.hstu(row, weights_of(made), 2, LENGTH, newest=True)
    found = made.queries(everywhere([row]))
    assert torch.allclose(found, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    "times",
    [[0, 0, 1, 2, 3], [5, 90, 4000, 4001, 2**40], [UNKNOWN_TIME, UNKNOWN_TIME, -3, 700, 2**20]],
    ids=["near", "far", "unknown"],
)
def test_with_times_it_equals_the_loops(times: list[int]) -> None:
    made, rows = encoder(num_time_buckets=9), [6, 5, 4, 3, 2]
    expected = oracles.encoders.hstu(rows, weights_of(made), 2, LENGTH, times)
    found = made.queries(everywhere([rows], [times]))
    assert torch.allclose(found, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-9)
    assert not torch.allclose(found[-1], made.queries(everywhere([rows]))[-1], atol=1e-3)


def test_times_that_nobody_knows_are_no_times() -> None:
    made, rows = encoder(), [[6, 5, 4, 3, 2]]
    assert torch.equal(made.queries(everywhere(rows, [[UNKNOWN_TIME] * 5])), made.queries(everywhere(rows)))
    blind = encoder(num_time_buckets=0)
    assert torch.equal(blind.queries(everywhere(rows, [[1, 2, 3, 4, 50]])), blind.queries(everywhere(rows)))


@pytest.mark.parametrize("changed", range(LENGTH))
def test_a_later_item_changes_nothing_before_it(changed: int) -> None:
    made = encoder()
    rows = [1, 2, 3, 4, 5]
    other = [*rows[:changed], 0, *rows[changed + 1 :]]
    is_same = (made.queries(everywhere([rows])) == made.queries(everywhere([other]))).all(dim=1).tolist()
    assert is_same[:changed] == [True] * changed
    assert not any(is_same[changed:])


def test_inputs_bring_their_times() -> None:
    """The newest are kept, each with its own time."""
    inputs = Visits.joined([Visits.one([5, 3], [7, 9]), Visits.one([6, 6, 0, 1, 2, 3, 4], [1, 2, 3, 4, 5, 6, 7])])
    features = encoder().query_features(inputs)
    assert features.times.tolist() == [[7, 9, 0, 0, 0], [3, 4, 5, 6, 7]]
    assert features.rows.tolist() == [[5, 3, 0, 0, 0], [0, 1, 2, 3, 4]]
    assert features.users.tolist() == [-1, -1]


def test_config_out_of_range() -> None:
    with pytest.raises(ValueError, match="num_time_buckets must be at least 0, got -1"):
        HstuConfig(num_time_buckets=-1)
