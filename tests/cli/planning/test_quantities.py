"""Numbers as people write them, the bytes of an item, and what a search does, against loops and examples."""

from dataclasses import replace
from itertools import product

import faiss
import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rails_ray.cli.planning import quantities, searches
from rails_ray.cli.planning.searches import Search, SearchWork, index_bytes, work
from rails_ray.cli.planning.shapes import Names, Shape
from rails_ray.families.indexing import SAMPLE_ITEMS
from rails_ray.modules.similarities.states import ItemState
from rails_ray.search.indexes import hnsw, ivf
from rails_ray.search.indexes.hnsw import HnswConfig
from rails_ray.storage import parquet
from support.planned import DOT, TINY

# numbers as people write them


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("4000", 4000),
        ("10k", 10_000),
        ("100M", 10**8),
        ("1.5B", 1_500_000_000),
        ("2_000", 2000),
        ("1.5K", 1500),
    ],
)
def test_a_count_is_read_as_people_write_it(text: str, value: int) -> None:
    assert quantities.count(text, "items") == value


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "1.0001k", "many", "1e6", "10T", "nan", "½", "M"])
def test_a_count_that_is_no_whole_number_is_told(text: str) -> None:
    message = rf"items must be a whole number of at least 1, such as 4000, 10k, 100M or 1.5B, got {text!r}"
    with pytest.raises(ValueError, match=message):
        quantities.count(text, "items")


@pytest.mark.parametrize(
    ("size_bytes", "shown"), [(0, "0 B"), (832, "832 B"), (83.2e9, "83.2 GB"), (1e15, "1 PB"), (2e18, "2,000 PB")]
)
def test_sizes_are_shown_with_three_digits(size_bytes: float, shown: str) -> None:
    assert quantities.shown_bytes(size_bytes) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (1e-5, "<0.1 ms"),
        (0.00898, "8.98 ms"),
        (0.3, "300 ms"),
        (29.2, "29.2 s"),
        (90, "1.5 min"),
        (3600 * 2000, "2,000 h"),
    ],
)
def test_times_are_shown_with_three_digits(seconds: float, shown: str) -> None:
    assert quantities.shown_seconds(seconds) == shown


# bytes of an item


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("p_q", "p_x", "width"), [(8, 4, 16), (8, 8, 32), (3, 1, 8), (1, 1, 64)])
def test_bytes_are_those_of_a_part_of_a_version(p_q: int, p_x: int, width: int, dtype: torch.dtype) -> None:
    num_items, generator = 2000, torch.Generator().manual_seed(0)
    components = torch.randn(num_items, p_x, width, generator=generator).to(dtype)
    gate = torch.randn(num_items, p_q * p_x, generator=generator) if p_q * p_x > 1 else None
    ids = torch.randint(2**62, (num_items,), generator=generator)  # as little to compress as vectors have
    items = pa.table({"item_id": ids.numpy()})
    part = parquet.item_part(items, ItemState(components, gate, components.mean(dim=1)))
    names = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
    shape = Shape(num_query_components=p_q, num_item_components=p_x, width=width, dtype=names[dtype])
    assert {name: part[name].nbytes for name in part.column_names if name != "item_id"} == {
        name: num_items * size_bytes for name, size_bytes in shape.columns.items()
    }
    read = parquet.item_state(part, ItemState)
    assert sum(column.nbytes for column in read.columns().values()) == num_items * shape.state_bytes
    stored = num_items * (shape.state_bytes + Names(id_bytes=8, title_bytes=0).stored_bytes)
    assert 0.8 * stored <= len(parquet.part_to_bytes(part)) <= 1.05 * stored


def test_an_item_of_the_readmes_example() -> None:
    shape = Shape(num_query_components=8, num_item_components=8, width=32, dtype="bf16")
    assert shape.columns == {"components": 512, "average": 64, "gate": 256}
    assert (shape.state_bytes, shape.scored_bytes) == (832, 768)
    assert Names(id_bytes=8, title_bytes=36).stored_bytes == 44
    assert Names(id_bytes=8, title_bytes=36).held_bytes == 60


# what a search does


class Counter:
    """A score of one pair of query and item as loops, which count what they do."""

    def __init__(self) -> None:
        self.flops = 0
        self.functions = 0

    def product(self, num_rows: int, num_columns: int) -> None:
        """A matrix times a vector: a multiplication and an addition for each entry."""
        for _ in product(range(num_rows), range(num_columns)):
            self.flops += 2

    def score(self, shape: Shape) -> None:
        num_pairs = 0
        for _ in product(range(shape.num_query_components), range(shape.num_item_components)):
            self.product(1, shape.width)
            num_pairs += 1
        if num_pairs == 1:
            return
        self.product(shape.gate_hidden, num_pairs)
        self.functions += sum(1 for _ in range(shape.gate_hidden))  # SiLU
        self.product(num_pairs, shape.gate_hidden)
        self.functions += sum(2 for _ in range(num_pairs))  # SiLU, then exp


@given(
    shape=st.builds(
        Shape,
        num_query_components=st.integers(1, 4),
        num_item_components=st.integers(1, 4),
        width=st.integers(1, 6),
        gate_hidden=st.integers(1, 5),
    ),
    num_items=st.integers(0, 4),
    batch=st.integers(1, 3),
)
def test_an_exact_scan_does_what_loops_count(shape: Shape, num_items: int, batch: int) -> None:
    counter, read = Counter(), set()
    for item, _ in product(range(num_items), range(batch)):
        counter.score(shape)
        read.add(item)
    done = work(shape, Search(batch=batch), num_items)
    assert done.product_flops == counter.flops
    assert done.special_functions == counter.functions
    assert done.read_bytes == len(read) * shape.scored_bytes
    assert done.selected_scores == num_items * batch
    assert done.gathered_bytes == 0


def test_two_stages_by_hand() -> None:
    """P_Q x P_X x d = 2 x 3 x 5, H = 7: a pair takes 60 + 168 operations and 19 functions, and reads 60 + 24 bytes."""
    per_embedding = SearchWork(  # 100 items, 4 queries: 3 indexes of 2 vectors a query; 6 lists of 10
        product_flops=4 * 100 * 60 + 4 * 60 * 228,
        special_functions=4 * 60 * 19,
        read_bytes=100 * 60,
        gathered_bytes=4 * 60 * 84,
        reordered_numbers=4 * 60 * 6,
        selected_scores=4 * 100 * 6,
        num_searches=1,
    )
    assert work(TINY, Search(method="per_embedding", num_per_embedding=10, batch=4), 100) == per_embedding
    average = SearchWork(
        product_flops=4 * 100 * 10 + 4 * 20 * 228,
        special_functions=4 * 20 * 19,
        read_bytes=100 * 20,
        gathered_bytes=4 * 20 * 84,
        reordered_numbers=4 * 20 * 6,
        selected_scores=4 * 100,
        num_searches=1,
    )
    assert work(TINY, Search(method="average", num_candidates=20, batch=4), 100) == average
    combined = work(TINY, Search(method="combined", num_per_embedding=10, num_candidates=20, batch=4), 100)
    assert combined + SearchWork(num_searches=1) == per_embedding + average
    everything = work(TINY, Search(method="average", num_candidates=1000, k=1), 100)
    assert everything.gathered_bytes == 100 * 84, "candidates are at most all items"


@pytest.mark.parametrize("index", searches.INDEXES)
def test_a_dot_product_through_an_index_does_what_by_average_does(index: str) -> None:
    search = Search(method="ann", index=index, num_candidates=20, batch=4)
    done = work(DOT, search, 40_000)
    assert done == work(DOT, replace(search, method="average"), 40_000)
    assert done.special_functions == done.reordered_numbers == 0
    assert done.product_flops == 2 * 64 * (done.selected_scores + 4 * 20)
    assert index_bytes(DOT, search, 1000) == index_bytes(DOT, replace(search, method="average"), 1000)


def test_a_dot_product_takes_as_many_candidates_as_are_wanted_unless_they_are_named() -> None:
    for index in searches.INDEXES:
        search = Search(method="ann", index=index, k=7)
        assert work(DOT, search, 40_000) == work(DOT, replace(search, num_candidates=7), 40_000)
    by_graph = Search(method="ann", index="hnsw", k=7)
    assert work(DOT, by_graph, 40_000).selected_scores == searches.M / 2 * searches.EF_SEARCH, "the beam stays"
    average = Search(method="average", k=7)
    assert work(DOT, average, 40_000) == work(DOT, replace(average, num_candidates=1000), 40_000)


def test_a_first_stage_by_ivf_and_hnsw_by_hand() -> None:
    by_lists = work(TINY, Search(method="average", index="ivf", num_candidates=10, batch=4), 65_536)
    compared = 4 * (1024 + 65_536 * 32 / 1024)  # nlist = 4 sqrt(65,536), nprobe = sqrt(1,024)
    assert by_lists.selected_scores == compared
    assert by_lists.product_flops == 10 * compared + 40 * 228
    assert by_lists.read_bytes == 20 * (1024 + 4 * 65_536 * 32 / 1024)
    by_graph = work(TINY, Search(method="average", index="hnsw", num_candidates=100), 10_000)
    assert by_graph.selected_scores == 16 * 100, "ef_search is at least as long as the list"
    assert (by_graph.read_bytes, by_graph.gathered_bytes) == (20 * 1600, 100 * 84)


@pytest.mark.parametrize("num_items", [1, 20, 4096, 24_336, 10**5, 2 * 10**6, 10**8])
def test_an_ivf_index_is_planned_as_it_is_built_and_asked(num_items: int) -> None:
    """The lists of a built index, and as many of them as a query scans, by default."""
    nlist = ivf.num_lists(0, num_items, min(num_items, SAMPLE_ITEMS))
    nprobe = max(round(nlist**0.5), 1)
    search = Search(method="average", index="ivf", num_candidates=1, k=1)
    compared = work(DOT, search, num_items).selected_scores
    assert compared == pytest.approx(nlist + num_items * nprobe / nlist, rel=0.05)
    per_list = (index_bytes(DOT, search, num_items) - num_items * (4 * 64 + 8)) / (4 * 64)
    assert per_list == pytest.approx(nlist, rel=0.05)


def test_the_numbers_of_indexes_are_those_of_the_indexes() -> None:
    """The planner copies them, as it does without torch."""
    assert (searches.LISTS_PER_ROOT, searches.POINTS_PER_LIST) == (ivf.LISTS_PER_ROOT, ivf.POINTS_PER_LIST)
    assert searches.SAMPLE_ITEMS == SAMPLE_ITEMS
    assert (searches.M, searches.EF_SEARCH) == (HnswConfig().M, hnsw.EF_SEARCH)


@pytest.mark.parametrize("index", ["ivf", "hnsw"])
def test_the_memory_of_an_index_is_that_of_faiss(index: str) -> None:
    num_items, width = 4096, 24
    vectors = np.random.default_rng(0).standard_normal((num_items, width), dtype=np.float32)
    built: faiss.Index
    if index == "ivf":
        nlist = ivf.num_lists(0, num_items, num_items)
        built = faiss.IndexIVFFlat(faiss.IndexFlatIP(width), width, nlist, faiss.METRIC_INNER_PRODUCT)
        built.cp.niter, built.cp.min_points_per_centroid = 1, 1
        built.train(vectors)
    else:
        built = faiss.IndexHNSWFlat(width, searches.M, faiss.METRIC_INNER_PRODUCT)
        built.hnsw.efConstruction = 8
    built.add(vectors)
    shape = Shape(num_query_components=2, num_item_components=3, width=width)
    planned = index_bytes(shape, Search(method="average", index=index), num_items)
    assert planned == pytest.approx(faiss.serialize_index(built).nbytes, rel=0.02)
    assert index_bytes(shape, Search(method="per_embedding", index=index), num_items) == 3 * planned
    assert index_bytes(shape, Search(method="combined", index=index), num_items) == 4 * planned
    assert index_bytes(shape, Search(method="combined"), num_items) == 0
