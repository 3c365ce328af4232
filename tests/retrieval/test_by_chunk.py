import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rails_ray.collectives.processes import in_processes
from rails_ray.indexes.inverted import InvertedIndex
from rails_ray.retrieval import by_chunk
from rails_ray.retrieval.look_up import Inverted
from rails_ray.similarities.states import Codes, Tables
from rails_ray.top_k import Exclusions
from support.by_chunk_worker import CASE, NUM_BUCKETS, NUM_CANDIDATES, NUM_PROBES, K, parts_of, random_case, work
from support.of_codes import full_search

a_case = st.tuples(st.integers(0, 3), st.integers(1, 40), st.integers(1, 5), st.integers(0, 99))


def drawn(
    data: st.DataObject, query: Tables, items: Codes
) -> tuple[list[tuple[Tables, Codes]], int, Exclusions | None]:
    """Parts, k and exclusions."""
    cuts = sorted(data.draw(st.lists(st.integers(0, items.codes.shape[1]), max_size=3)))
    k = data.draw(st.integers(1, len(items)))
    excluded = [data.draw(st.lists(st.integers(0, len(items) - 1), max_size=len(items) - k)) for _ in range(len(query))]
    return parts_of(query, items, cuts), k, Exclusions.of(excluded) if any(excluded) else None


@settings(deadline=None, max_examples=40)
@given(a_case, st.booleans(), st.data())
def test_every_item(case: tuple[int, int, int, int], is_exact: bool, data: st.DataObject) -> None:
    query, items = random_case(*case, is_exact=is_exact)
    parts, k, exclude = drawn(data, query, items)
    whole = full_search(items).search(query, k, exclude)
    size = data.draw(st.integers(1, 41))
    merged = by_chunk.merge_scores([by_chunk.partial_scores(*part, size) for part in parts], k, exclude)
    assert torch.equal(merged.top_k.item_rows, whole.top_k.item_rows)
    assert torch.allclose(merged.top_k.scores, whole.top_k.scores, rtol=2**-23, atol=1e-7)
    assert torch.equal(merged.num_scored, whole.num_scored)
    assert (merged.certificate.bound == -torch.inf).all()


@settings(deadline=None, max_examples=40)
@given(a_case, st.booleans(), st.data())
def test_inverted(case: tuple[int, int, int, int], is_exact: bool, data: st.DataObject) -> None:
    """Bounds as well; which item is the last candidate may differ where sums are rounded."""
    query, items = random_case(*case, is_exact=is_exact)
    parts, k, exclude = drawn(data, query, items)
    num_probes = data.draw(st.integers(1, NUM_BUCKETS))
    num_candidates = data.draw(st.integers(k, len(items) + 2)) if is_exact else len(items)
    whole = Inverted(items, InvertedIndex(items.codes, NUM_BUCKETS), num_probes, num_candidates).search(
        query, k, exclude
    )
    touched = [
        by_chunk.partial_sums(part, InvertedIndex(own.codes, NUM_BUCKETS), num_probes, exclude) for part, own in parts
    ]
    candidates = by_chunk.merge_sums(touched, query, len(items), num_candidates, exclude)
    scores = [by_chunk.partial_candidate_scores(*part, candidates) for part in parts]
    merged = by_chunk.merge_candidate_scores(scores, candidates, k)
    assert torch.equal(merged.top_k.item_rows, whole.top_k.item_rows)
    assert torch.allclose(merged.top_k.scores, whole.top_k.scores, rtol=2**-23, atol=1e-7)
    assert torch.equal(merged.num_scored, whole.num_scored)
    assert torch.allclose(merged.certificate.bound, whole.certificate.bound, atol=1e-5)
    full = full_search(items).search(query, k, exclude).top_k
    is_proved = merged.certificate.gap(merged.top_k.scores[:, -1]) == 0
    assert torch.equal(merged.top_k.item_rows[is_proved], full.item_rows[is_proved])


def test_equal_scores_by_the_lower_row() -> None:
    """Of items whose parts differ and whose sums do not."""
    items = Codes(torch.tensor([[0, 1], [1, 0]] * 20))
    query = Tables(torch.tensor([[[0.1, 0.7], [0.1, 0.7]]]), torch.ones(1))
    parts = parts_of(query, items, [1])
    merged = by_chunk.merge_scores([by_chunk.partial_scores(*part, 7) for part in parts], 40)
    assert merged.top_k.item_rows.tolist() == [list(range(40))]


def test_more_than_exclusion_leaves() -> None:
    query, items = random_case(1, 5, 2, 0)
    with pytest.raises(ValueError, match="k must be at most the 4 items left after exclusion, got 5"):
        by_chunk.merge_scores([by_chunk.partial_scores(query, items, 2)], 5, Exclusions.of([[3]]))


def test_what_one_machine_refuses_parts_do_too() -> None:
    query, items = random_case(2, 5, 3, 0)
    index = InvertedIndex(items.codes, NUM_BUCKETS)
    of_two = Tables(query.tables[:, :2], query.temperature)
    narrow = Tables(query.tables[:, :, : int(items.codes.max())], query.temperature)
    broken = Tables(query.tables.clone(), query.temperature)
    broken.tables[1, 2, 0] = torch.nan
    candidates = by_chunk.merge_sums([by_chunk.partial_sums(query, index, NUM_BUCKETS)], query, 5, 3)
    for asked, message in (
        (of_two, "tables must have the 3 parts of the codes, got 2"),
        (narrow, f"codes must be below the {items.codes.max()} entries of a table, got {items.codes.max()}"),
        (broken, "query tables must be finite, got NaN or infinity in query 1"),
    ):
        with pytest.raises(ValueError, match=message):
            list(by_chunk.partial_scores(asked, items, 5))
        with pytest.raises(ValueError, match=message):
            by_chunk.partial_candidate_scores(asked, items, candidates)
    for asked, message in ((of_two, "must have the 3 parts"), (broken, "must be finite")):
        with pytest.raises(ValueError, match=message):
            by_chunk.partial_sums(asked, index, 2)
    with pytest.raises(ValueError, match=f"num_probes must be .*, got {NUM_BUCKETS + 1}"):
        by_chunk.partial_sums(query, index, NUM_BUCKETS + 1)
    with pytest.raises(ValueError, match="k must be at most the 5 indexed items, got 6"):
        by_chunk.merge_scores([by_chunk.partial_scores(query, items, 2)], 6)
    scores = [by_chunk.partial_candidate_scores(query, items, candidates)]
    with pytest.raises(ValueError, match="num_candidates must be at least 4, the k of the search, got 3"):
        by_chunk.merge_candidate_scores(scores, candidates, 4)


def test_in_two_processes() -> None:
    """Each of which sees its own chunks alone, and answers for all."""
    query, items = random_case(*CASE)
    full = full_search(items).search(query, K)
    inverted = Inverted(items, InvertedIndex(items.codes, NUM_BUCKETS), NUM_PROBES, NUM_CANDIDATES).search(query, K)
    assert (inverted.num_scored < len(items)).any()
    for of_rank in in_processes(work, 2):
        for name, whole in (("full", full), ("inverted", inverted)):
            merged = of_rank[name]
            assert torch.equal(merged.top_k.item_rows, whole.top_k.item_rows)
            assert torch.allclose(merged.top_k.scores, whole.top_k.scores, rtol=2**-23, atol=0)
            assert torch.equal(merged.num_scored, whole.num_scored)
