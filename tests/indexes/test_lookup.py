import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracles
from rails_ray.indexes import lookup
from rails_ray.indexes.lookup import LookupIndex
from rails_ray.masks import Exclusions
from rails_ray.wanted import Wanted


def random_case(b: int, x: int, m: int = 3, num_entries: int = 5, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Tables of halves, so that sums are exact and often equal, and codes."""
    generator = torch.Generator().manual_seed(seed)
    tables = torch.randint(-4, 5, (b, m, num_entries), generator=generator) / 2
    return tables, torch.randint(num_entries, (x, m), generator=generator)


@given(st.integers(0, 3), st.integers(1, 30), st.integers(1, 4), st.integers(1, 5), st.integers(0, 99), st.data())
def test_searches_equal_the_oracle(b: int, x: int, m: int, num_entries: int, seed: int, data: st.DataObject) -> None:
    """Ties, exclusions and k = corpus included, however the corpus is cut into blocks."""
    tables, codes = random_case(b, x, m, num_entries, seed)
    scores = [[oracles.look_up(own, code) for code in codes.tolist()] for own in tables.tolist()]
    excluded = [data.draw(st.lists(st.integers(0, x - 1), max_size=4, unique=True)) for _ in scores]
    k, cap = data.draw(st.integers(1, x)), data.draw(st.integers(1, x + 2))
    at_least = data.draw(st.integers(0, cap))
    threshold = [data.draw(st.sampled_from(own)) for own in scores]
    index = LookupIndex(codes)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(lookup, "BLOCK_SCORES", data.draw(st.sampled_from([1, 3 * 7, 2**21])))
        found = index.search(tables, Wanted(k, mask=Exclusions.of(excluded)))
        above = index.search(tables, Wanted(cap, torch.tensor(threshold), at_least, Exclusions.of(excluded)))
    assert index.scores(tables).tolist() == scores
    for line, (own, out) in enumerate(zip(scores, excluded, strict=True)):
        expected = oracles.top_k(own, k, out)
        assert found.item_rows[line, : len(expected)].tolist() == expected
        assert found.num_found()[line] == len(expected)
        rows, is_truncated = oracles.items_above(own, threshold[line], cap, at_least, out)
        assert above.item_rows[line, : above.num_found()[line]].tolist() == rows
        assert above.is_truncated[line] == is_truncated


def test_permuting_items_permutes_scores() -> None:
    tables, codes = random_case(2, 50)
    order = torch.randperm(50)
    scores = LookupIndex(codes).scores(tables)
    assert torch.equal(LookupIndex(codes[order]).scores(tables), scores[:, order])


def test_an_empty_index() -> None:
    tables, codes = random_case(2, 0)
    index = LookupIndex(codes)
    assert index.scores(tables).shape == (2, 0)
    for wanted in (Wanted(1), Wanted(1, torch.zeros(2), at_least=1)):
        assert index.search(tables, wanted).item_rows.shape == (2, 0)


def test_what_cannot_be_looked_up() -> None:
    tables, codes = random_case(2, 9)
    with pytest.raises(ValueError, match="codes must be at least 0, got -2"):
        LookupIndex(torch.tensor([[0, -2]]))
    index = LookupIndex(codes.clamp(min=4))
    for search in (
        index.scores,
        lambda few: index.search(few, Wanted(1)),
        lambda few: index.search(few, Wanted(1, few[:, 0, 0])),
    ):
        with pytest.raises(ValueError, match="codes must be below the 4 entries of a table, got 4"):
            search(tables[:, :, :4])
        with pytest.raises(ValueError, match="tables must have the 3 parts of the codes, got 2"):
            search(tables[:, :2])
    with pytest.raises(ValueError, match="threshold must be one number for each of 2 queries, got 3"):
        index.search(tables, Wanted(1, torch.zeros(3)))
    assert index.search(tables, Wanted(10)).num_found().tolist() == [9, 9]
