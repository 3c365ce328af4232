"""Method -> the retriever that searches items by it; a part of `build`."""

from dataclasses import dataclass
from typing import Any

import torch

from rails_ray.indexes.inverted import NUM_PROBES, InvertedIndex
from rails_ray.indexes.lookup import LookupIndex
from rails_ray.retrieval import Retriever
from rails_ray.retrieval.approximate import Approximate, Widths
from rails_ray.retrieval.brute_force import BruteForce
from rails_ray.retrieval.look_up import FullLookUp, Inverted
from rails_ray.retrieval.two_pass import TwoPass
from rails_ray.similarities import Similarity
from rails_ray.similarities.look_up import LookUp
from rails_ray.similarities.states import AnyItems, Codes, Tables

AnySimilarity = Similarity | LookUp
METHODS = ("brute_force", "two_pass", "per_embedding", "average", "combined")
METHODS_OF_CODES = ("brute_force", "inverted")


@dataclass(frozen=True)
class CodeIndexes:
    """What searches of codes read."""

    full: LookupIndex
    inverted: InvertedIndex


def code_indexes(compared_by: AnySimilarity, items: AnyItems) -> CodeIndexes | None:
    """The indexes of items, made once and ready; None for items that have no codes.

    Raises:
        ValueError: if a code is no bucket.
    """
    if not isinstance(items, Codes):
        return None
    assert isinstance(compared_by, LookUp)
    made = CodeIndexes(LookupIndex(items.codes), InvertedIndex(items.codes, compared_by.num_buckets))
    nothing = torch.zeros(1, items.codes.shape[1], compared_by.num_buckets, device=items.codes.device)
    query = Tables(nothing, torch.ones(1, device=nothing.device))
    for search in (FullLookUp(items, made.full), Inverted(items, made.inverted, 1, 1)):
        search.search(query, 1)  # or the first query would wait for loops to be compiled
    return made


def retriever(
    method: str,
    compared_by: AnySimilarity,
    items: AnyItems,
    num_candidates: int,
    num_per_embedding: int,
    num_probes: int | None = None,
    indexes: CodeIndexes | None = None,
) -> Retriever[Any]:
    """
    Args:
        num_candidates: items by the average component, of `average` and `combined`; by posted buckets, of `inverted`.
        num_per_embedding: items by each pair of components, of `per_embedding`, `combined` and `two_pass`.
        num_probes: buckets of each chunk, of `inverted`; by default NUM_PROBES, or all if that is fewer.
        indexes: of the items' codes; else they are made anew.

    Raises:
        ValueError: if the method is not one of `METHODS`, or of `METHODS_OF_CODES` for items that are found by codes,
            a width is below 1 or above what there is, or the items lack what it needs.
    """
    if isinstance(items, Codes):
        assert isinstance(compared_by, LookUp)
        match method:
            case "brute_force":
                return FullLookUp(items, indexes.full if indexes else LookupIndex(items.codes))
            case "inverted":
                index = indexes.inverted if indexes else InvertedIndex(items.codes, compared_by.num_buckets)
                probes = min(NUM_PROBES, compared_by.num_buckets) if num_probes is None else num_probes
                return Inverted(items, index, probes, num_candidates)
            case _:
                known = ", ".join(METHODS_OF_CODES)
                raise ValueError(
                    f"method must be one of {known} for items that are found by their codes, got {method!r}"
                )
    assert not isinstance(compared_by, LookUp)
    match method:
        case "brute_force":
            return BruteForce(compared_by, items)
        case "two_pass":
            return TwoPass(compared_by, items, num_per_embedding)
        case "per_embedding":
            return Approximate(compared_by, items, Widths(num_per_embedding=num_per_embedding))
        case "average":
            return Approximate(compared_by, items, Widths(num_by_average=num_candidates))
        case "combined":
            widths = Widths(num_per_embedding=num_per_embedding, num_by_average=num_candidates)
            return Approximate(compared_by, items, widths)
        case _:
            raise ValueError(
                f"method must be one of {', '.join(METHODS)} for items that have components, got {method!r}"
            )
