"""Items of codes, searched through lists, against a scan of all."""

import pytest
import torch
import torch.nn.functional as F

from rails_ray.modules.quantizers.opq import fit_opq
from rails_ray.modules.quantizers.pq import fit_pq
from rails_ray.modules.quantizers.product import pack, residual_norms
from rails_ray.modules.quantizers.read_back import decoded
from rails_ray.modules.quantizers.similarity import QuantizedSimilarity
from rails_ray.modules.similarities.dot_product import DotProduct, DotProductConfig
from rails_ray.modules.similarities.states import ItemState, QuantizedItems, QueryState
from rails_ray.schema.search_params import SearchParams
from rails_ray.search.indexes import codes
from rails_ray.search.indexes.codes import fit_lists, in_lists, lists_of
from rails_ray.search.indexes.faiss_index import FaissIndex
from rails_ray.search.methods.on_gpu import GpuScan
from rails_ray.search.methods.quantized import ByQuantized
from rails_ray.search.spec import SearchSpec
from support.quantizers import a_quantizer, some_vectors

NUM_ITEMS, NUM_QUERIES, WIDTH, K = 1000, 50, 16, 10


def items_and_queries() -> tuple[torch.Tensor, QueryState]:
    """Vectors of length 1 in clusters, and queries near some of them."""
    centres = 3 * some_vectors(20, WIDTH, 1)
    items = F.normalize(centres.repeat(NUM_ITEMS // 20, 1) + some_vectors(NUM_ITEMS, WIDTH), dim=1)
    near = F.normalize(items[:NUM_QUERIES] + 0.2 * some_vectors(NUM_QUERIES, WIDTH, 2), dim=1)
    return items, QueryState(near[:, None], None, torch.ones(NUM_QUERIES))


def searched_by_codes(items: torch.Tensor, *, has_vectors: bool, num_codewords: int = 64) -> ByQuantized:
    """Items with codes by OPQ, which turns them, in 20 lists."""
    quantizer, centroids = fit_opq(items, 4, num_codewords, seed=0), fit_lists(items, 20, seed=0)
    codes = quantizer.encode(items)
    kept = (items[:, None], items) if has_vectors else (None, None)
    stored = QuantizedItems(codes, residual_norms(quantizer, items, codes), None, *kept, lists_of(items, centroids))
    return ByQuantized(QuantizedSimilarity(DotProduct(DotProductConfig()), quantizer, centroids), stored)


@pytest.mark.parametrize("has_vectors", [False, True])
def test_a_few_lists_hold_most_of_the_best(has_vectors: bool) -> None:
    items, query = items_and_queries()
    searcher = searched_by_codes(items, has_vectors=has_vectors)
    best = searcher.search(query, SearchSpec(K)).item_rows
    params = SearchParams(num_candidates=100, nprobe=2)
    found = searcher.search(query, SearchSpec(K), "ivf_lookup", params).item_rows
    shares = [len(set(a) & set(b)) / K for a, b in zip(found.tolist(), best.tolist(), strict=True)]
    assert sum(shares) / NUM_QUERIES > 0.6, "a tenth of the lists, by chance .1"


@pytest.mark.parametrize("has_vectors", [False, True])
def test_some_items_on_a_gpu_are_read_where_vectors_are(has_vectors: bool) -> None:
    """And decoded block by block where codes alone are; a list of rows is for what is in memory."""
    items, query = items_and_queries()
    searcher, rows = searched_by_codes(items, has_vectors=has_vectors), torch.arange(0, NUM_ITEMS, 3)
    expected = searcher.some(rows).search(query, SearchSpec(K))
    own, by_row = searcher.by_components, set[bool]()

    def fast(query: QueryState, items: ItemState, listed: torch.Tensor | None) -> torch.Tensor:
        by_row.add(listed is not None)
        return own.scorer.scores(query, items if listed is None else items.taken(listed))

    own.exact = GpuScan(own.brute_force, fast)
    found = searcher.some(rows).search(query, SearchSpec(K))
    assert torch.equal(found.item_rows, expected.item_rows)
    assert torch.allclose(found.scores, expected.scores, atol=1e-6)
    assert by_row == {has_vectors}
    assert own.gathers(NUM_ITEMS // 3, 1) == has_vectors


def test_the_scan_of_a_gpu_is_seen_as_that_of_vectors_is() -> None:
    """By a shard, which tells why it is not the fused kernel."""
    searcher = searched_by_codes(items_and_queries()[0], has_vectors=True)
    own = searcher.by_components
    own.exact = GpuScan(own.brute_force, None, kernel="triton 3.7.1 or later is not installed")
    assert searcher.exact is own.exact


def test_lists_on_a_gpu_are_offered_to_faiss_and_what_it_says_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    items, _ = items_and_queries()
    offered = list[FaissIndex]()

    def refuses(index: FaissIndex) -> FaissIndex:
        offered.append(index)
        index.on_cpu = "an index ivf is searched on the CPU"
        return index

    monkeypatch.setattr(codes, "on_gpu", refuses)
    for is_there in (False, True):
        monkeypatch.setattr(torch.Tensor, "is_cuda", is_there)
        quantizer, centroids = fit_opq(items, 4, 64, seed=0), fit_lists(items, 20, seed=0)
        index = in_lists(quantizer, quantizer.encode(items), lists_of(items, centroids), centroids)
        assert index.on_cpu == ("an index ivf is searched on the CPU" if is_there else None)
    assert len(offered) == 1


def test_a_gap_holds_for_every_item_that_is_missing() -> None:
    items, query = items_and_queries()
    searcher = searched_by_codes(items, has_vectors=True)
    exact = query.components[:, 0] @ items.T
    for num_candidates in (K, 50, 400):
        found = searcher.search(query, SearchSpec(K), "lookup", SearchParams(num_candidates=num_candidates))
        missing = exact.scatter(1, found.item_rows, -torch.inf).amax(dim=1)
        assert (missing <= found.bound.maximum(found.scores[:, -1]) + 1e-5).all()
    assert (found.bound <= found.scores[:, -1]).any(), "with most items as candidates, some lists are proved"


@pytest.mark.parametrize(("wrong", "told"), [(-1, "got -1"), (3, "got 3")])
def test_lists_that_are_none(wrong: int, told: str) -> None:
    quantizer = a_quantizer()
    codes = quantizer.encode(some_vectors(4, 6))
    with pytest.raises(ValueError, match=f"lists must be at least 0 and below the 3 centroids, {told}"):
        in_lists(quantizer, codes, torch.tensor([0, 1, wrong, 2]), some_vectors(3, 6))


def test_the_bound_of_a_mean_holds_however_many_vectors_an_item_has() -> None:
    """A query is divided among the vectors, and its length with it; the bound is of the query that was asked."""
    vectors, queries = some_vectors(60, 6), some_vectors(5, 2, 3)
    quantizer = a_quantizer(num_codewords=4)
    codes = quantizer.encode(vectors)
    means = vectors.view(60, 3, 2).mean(dim=1)
    error = float((means - quantizer.decode(codes).view(60, 3, 2).mean(dim=1)).norm(dim=1).max())
    index = in_lists(quantizer, codes, torch.zeros(60, dtype=torch.int32), torch.ones(1, 2), 3, error)
    found = index.search(queries, SearchSpec(4), SearchParams(nprobe=1))
    assert torch.allclose(found.bound, found.scores[:, -1] + queries.norm(dim=1) * error, atol=1e-4)
    missing = (queries @ means.T).scatter(1, found.item_rows, -torch.inf).amax(dim=1)
    assert (missing <= found.bound + 1e-5).all()


@pytest.mark.parametrize("method", ["brute_force", "ann", "lookup"])
def test_vectors_that_are_longer_than_1_keep_their_length(method: str) -> None:
    """As RBE's are: a score is the inner product with what the codes stand for."""
    generator = torch.Generator().manual_seed(0)
    vectors = 30 * torch.randn(300, 8, generator=generator)
    quantizer = fit_pq(vectors, 4, 16, seed=0)
    codes = quantizer.encode(vectors)
    items = QuantizedItems(pack(codes), residual_norms(quantizer, vectors, codes, 1))
    query = QueryState(torch.randn(5, 1, 8, generator=generator), None, torch.ones(5))
    similarity = QuantizedSimilarity(DotProduct(DotProductConfig(), has_bounded_vectors=False), quantizer)
    found = ByQuantized(similarity, items).search(query, SearchSpec(10), method, SearchParams(num_candidates=20))
    expected = (query.vectors() @ quantizer.decode(codes).T).topk(10, dim=1)
    assert torch.allclose(found.scores, expected.values, rtol=1e-5)
    assert found.scores.max() > 1
    assert torch.equal(decoded(quantizer, codes, 1, None, similarity.longest).components[:, 0], quantizer.decode(codes))
