"""Items of any kind, ready to be searched."""

from dataclasses import replace
from typing import Any

from jaxtyping import Float
from torch import Tensor

from rails_ray.modules.similarities.bm25 import TermWeights
from rails_ray.modules.similarities.states import AnyItems, Codes, ItemState, QuantizedItems, QueryState
from rails_ray.search.methods.bm25 import ByTerms
from rails_ray.search.methods.quantized import ByQuantized
from rails_ray.search.searcher import ByCodes, ByComponents, Searcher


def make_searchable(similarity: Any, items: AnyItems) -> Searcher[Any]:
    match items:
        case Codes():
            return ByCodes(similarity, items)
        case TermWeights():
            return ByTerms(similarity, items)
        case QuantizedItems():
            return ByQuantized(similarity, items)
        case ItemState(surrogate=Tensor()):
            return ByComponents(similarity, items, surrogate=first_numbers)
        case _:
            return ByComponents(similarity, items)


def with_surrogate(items: ItemState) -> ItemState:
    """Items that a search by `first_numbers` finds."""
    return replace(items, surrogate=items.components[:, 0, :2].clone())


def first_numbers(query: QueryState) -> Float[Tensor, "B 2"]:
    """A surrogate that reads two numbers of a query."""
    return query.components[:, 0, :2]
