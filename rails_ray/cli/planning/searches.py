"""Operations, bytes and selections of a search of X items. `rails_ray.cli.planning` has the formulas.

The numbers of `rails_ray.search.indexes` are copied, as importing it takes torch; a test compares them.
"""

import math
from dataclasses import astuple, dataclass, fields

from rails_ray.cli.planning.shapes import Shape
from rails_ray.schema.search_params import NUM_CANDIDATES

METHODS = ("brute_force", "average", "per_embedding", "combined", "ann")
INDEXES = ("flat", "ivf", "hnsw")
FAISS_BYTES = 4  # FAISS keeps vectors in float32
LISTS_PER_ROOT = 4  # nlist = 4 sqrt(X), the least that FAISS's guidelines name
POINTS_PER_LIST = 39  # items of the sample for each list
SAMPLE_ITEMS = 200_000  # to which an index is fitted
M = 32  # links of HNSW
EF_SEARCH = 64


@dataclass(frozen=True, kw_only=True)
class Search:
    """How a request searches.

    Args:
        method: one of METHODS.
        index: of the first stage, one of INDEXES.
        num_candidates: items that `average`, `ann` and `combined` take by the average; by default k of `ann`, and 1,000
            of the others.
        num_per_embedding: items that `per_embedding` and `combined` take by each pair of components.
        k: results of a query.
        batch: queries B that are searched together.
    """

    method: str = "brute_force"
    index: str = "flat"
    num_candidates: int | None = None
    num_per_embedding: int = 50
    k: int = 10
    batch: int = 1

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}, got {self.method!r}")
        if self.index not in INDEXES:
            raise ValueError(f"index must be one of {', '.join(INDEXES)}, got {self.index!r}")
        for name in ("num_candidates", "num_per_embedding", "k", "batch"):
            if (number := getattr(self, name)) is not None and number < 1:
                raise ValueError(f"{name} must be at least 1, got {number}")
        if self.method == "brute_force" and self.index != "flat":
            raise ValueError(
                f"index must be flat for method brute_force, which has no first stage, got {self.index!r}: "
                "take method average, per_embedding or combined"
            )

    def lists(self, shape: Shape) -> list["PlannedLists"]:
        """The lists of the first stage; none for an exact scan."""
        per_embedding = PlannedLists(shape.num_item_components, shape.num_query_components, self.num_per_embedding)
        usual = self.k if self.method == "ann" else NUM_CANDIDATES
        average = PlannedLists(1, 1, usual if self.num_candidates is None else self.num_candidates)
        found = {
            "per_embedding": [per_embedding],
            "average": [average],
            "ann": [average],
            "combined": [per_embedding, average],
        }
        return found.get(self.method, [])


@dataclass(frozen=True)
class PlannedLists:
    """Lists of one width: each of some indexes is searched by some vectors of a query."""

    num_indexes: int
    num_vectors: int
    width: int

    @property
    def num_lists(self) -> int:
        return self.num_indexes * self.num_vectors


@dataclass(frozen=True, kw_only=True)
class SearchWork:
    """Work of one search.

    Args:
        product_flops: floating-point operations of matrix products.
        special_functions: exp and tanh.
        read_bytes: bytes that are read one after the other.
        gathered_bytes: bytes of candidates, each read from a place of its own.
        reordered_numbers: gates v(x) that a CPU puts in the order of the cosines.
        selected_scores: scores from which the best are selected.
        num_searches: calls.
    """

    product_flops: float = 0
    special_functions: float = 0
    read_bytes: float = 0
    gathered_bytes: float = 0
    reordered_numbers: float = 0
    selected_scores: float = 0
    num_searches: float = 0

    def __add__(self, other: "SearchWork") -> "SearchWork":
        sums = (own + others for own, others in zip(astuple(self), astuple(other), strict=True))
        return SearchWork(**dict(zip((field.name for field in fields(self)), sums, strict=True)))


def work(shape: Shape, search: Search, num_items: int) -> SearchWork:
    """The work of one search of X items by B queries."""
    lists = search.lists(shape)
    if not lists:
        scan = _gated(shape, search.batch * num_items, num_items)
        return scan + SearchWork(
            read_bytes=num_items * shape.scored_bytes, selected_scores=search.batch * num_items, num_searches=1
        )
    num_candidates = search.batch * min(sum(one.num_lists * one.width for one in lists), num_items)
    rescoring = _gated(shape, num_candidates, num_candidates)
    total = rescoring + SearchWork(gathered_bytes=num_candidates * shape.scored_bytes, num_searches=1)
    for one in lists:
        total += _first_stage(shape, search, one, num_items)
    return total


def _gated(shape: Shape, num_pairs: int, num_gates: int) -> SearchWork:
    """The scores of pairs of query and item.

    Args:
        num_gates: how many v(x) are read for them.
    """
    return SearchWork(
        product_flops=num_pairs * shape.pair_flops,
        special_functions=num_pairs * shape.pair_functions,
        reordered_numbers=num_gates * shape.num_pairs if shape.num_pairs > 1 else 0,
    )


def _first_stage(shape: Shape, search: Search, lists: PlannedLists, num_items: int) -> SearchWork:
    num_searches = search.batch * lists.num_lists
    faiss_bytes = FAISS_BYTES * shape.width
    if search.index == "flat":
        num_compared = num_searches * float(num_items)
        moved = SearchWork(read_bytes=lists.num_indexes * num_items * shape.vector_bytes)
    elif search.index == "ivf":
        nlist = _nlist(num_items)
        probed = num_searches * num_items / math.sqrt(nlist)  # nprobe / nlist of the items
        num_compared = num_searches * nlist + probed
        moved = SearchWork(read_bytes=(lists.num_indexes * nlist + probed) * faiss_bytes)
    else:
        num_compared = num_searches * float(min(M / 2 * max(EF_SEARCH, lists.width), num_items))
        # As if one lay after the other: the unit of gathering is torch's, and FAISS fetches ahead.
        moved = SearchWork(read_bytes=num_compared * faiss_bytes)
    return moved + SearchWork(product_flops=2 * shape.width * num_compared, selected_scores=num_compared)


def _nlist(num_items: int) -> float:
    """Lists of an ivf index; not rounded, so that more items never take less time."""
    most = min(num_items, SAMPLE_ITEMS) / POINTS_PER_LIST
    return max(min(LISTS_PER_ROOT * math.sqrt(num_items), most), 1)


def index_bytes(shape: Shape, search: Search, num_items: int) -> float:
    """Bytes of the first stage's indexes beside the item state; a flat index shares its memory."""
    vector = FAISS_BYTES * shape.width
    if search.index == "ivf":
        each = num_items * (vector + 8) + vector * _nlist(num_items)
    elif search.index == "hnsw":
        each = num_items * (vector + 8 * M + 4 * M / (M - 1) + 12)
    else:
        each = 0
    return each * sum(lists.num_indexes for lists in search.lists(shape))
