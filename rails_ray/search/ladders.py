"""Ladders: the search parameters that are tried of each method, a few of each, from little work to much.

Widths are multiples of k. A step that a version cannot take, such as more lists than there are, is for the caller to
leave out.
"""

from collections.abc import Mapping, Sequence
from itertools import product

Step = Mapping[str, int]

WIDTHS = (1, 2, 4, 10, 40, 100)  # num_candidates, times k
PER_EMBEDDING = (1, 2, 5, 10)  # num_per_embedding, times k
COMBINED = (1, 4)  # both, times k
NUM_PROBES = (10, 30, 100, 300, 1000)
NPROBE = (1, 2, 4, 8, 16, 32, 64, 128, 256)
EF_SEARCH = (16, 32, 64, 128, 256, 512)
LOOKED_AT: dict[str, Sequence[Step]] = {  # of an index that gives candidates, beside its default
    "ivf": ({}, {"nprobe": 16}, {"nprobe": 64}),
    "hnsw": ({}, {"ef_search": 256}),
}


def ladder(method: str, k: int, num_items: int, index: str = "flat", *, is_rounded: bool = False) -> list[Step]:
    """Search parameters to try.

    Args:
        k: items that are wanted.
        num_items: items of the largest shard; no more than one width reaches them all.
        index: kind of the version's index, `flat` for none.
        is_rounded: whether the index stores fewer than 32 bits a number, so that `ann` scores its candidates again.
    """
    looked_at = LOOKED_AT.get(index, ({},))
    by_list = _of("nprobe", NPROBE)
    match method:
        case "per_embedding":
            steps = _joined(_widths("num_per_embedding", PER_EMBEDDING, k, num_items), looked_at)
        case "average" | "surrogate" | "gated":
            steps = _joined(_widths("num_candidates", WIDTHS, k, num_items), looked_at)
        case "combined":
            pairs = [_widths(name, COMBINED, k, num_items) for name in ("num_per_embedding", "num_candidates")]
            steps = _joined(_joined(*pairs), looked_at)
        case "lookup":
            steps = _widths("num_candidates", WIDTHS, k, num_items)
        case "ivf_lookup":
            steps = _joined(_widths("num_candidates", WIDTHS[2:5], k, num_items), by_list)
        case "inverted":
            steps = _of("num_probes", NUM_PROBES)
        case "ann":
            own = {"ivf": by_list, "hnsw": _of("ef_search", EF_SEARCH)}.get(index, [{}])
            steps = _joined(_widths("num_candidates", WIDTHS[:4], k, num_items) if is_rounded else [{}], own)
        case _:
            steps = [{}]
    return steps


def _of(name: str, values: Sequence[int]) -> list[Step]:
    return [{name: value} for value in values]


def _widths(name: str, times: Sequence[int], k: int, num_items: int) -> list[Step]:
    return _of(name, sorted({min(one * k, num_items) for one in times}))


def _joined(first: Sequence[Step], second: Sequence[Step]) -> list[Step]:
    return [{**one, **other} for one, other in product(first, second)]
