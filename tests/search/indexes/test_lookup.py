"""What an index of look-ups has beside the contract of `tests/contracts/test_index.py`."""

import pytest
import torch

from rails_ray.search.indexes.lookup import LookupIndex
from rails_ray.search.spec import SearchSpec


def random_case(b: int, x: int, m: int = 3, num_entries: int = 5, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Tables of halves, so that sums are exact and often equal, and codes."""
    generator = torch.Generator().manual_seed(seed)
    tables = torch.randint(-4, 5, (b, m, num_entries), generator=generator) / 2
    return tables, torch.randint(num_entries, (x, m), generator=generator)


def test_permuting_items_permutes_scores() -> None:
    tables, codes = random_case(2, 50)
    order = torch.randperm(50)
    scores = LookupIndex(codes).scores(tables)
    assert torch.equal(LookupIndex(codes[order]).scores(tables), scores[:, order])


def test_what_cannot_be_looked_up() -> None:
    tables, codes = random_case(2, 9)
    with pytest.raises(ValueError, match="codes must be at least 0, got -2"):
        LookupIndex(torch.tensor([[0, -2]]))
    index = LookupIndex(codes.clamp(min=4))
    for search in (
        index.scores,
        lambda few: index.search(few, SearchSpec(1)),
        lambda few: index.search(few, SearchSpec(1, few[:, 0, 0])),
    ):
        with pytest.raises(ValueError, match="codes must be below the 4 entries of a table, got 4"):
            search(tables[:, :, :4])
        with pytest.raises(ValueError, match="tables must have the 3 parts of the codes, got 2"):
            search(tables[:, :2])
    with pytest.raises(ValueError, match="threshold must be one number for each of 2 queries, got 3"):
        index.search(tables, SearchSpec(1, torch.zeros(3)))
    assert index.search(tables, SearchSpec(10)).num_found().tolist() == [9, 9]
