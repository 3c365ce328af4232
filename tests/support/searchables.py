"""Items of any kind, ready to be searched."""

from typing import Any

from rails_ray.retrieval.bm25 import ByTerms
from rails_ray.retrieval.quantized import ByQuantized
from rails_ray.retrieval.searchable import ByCodes, ByComponents, Searchable
from rails_ray.similarities.bm25 import TermWeights
from rails_ray.similarities.states import AnyItems, Codes, QuantizedItems


def make_searchable(similarity: Any, items: AnyItems) -> Searchable[Any]:
    match items:
        case Codes():
            return ByCodes(similarity, items)
        case TermWeights():
            return ByTerms(similarity, items)
        case QuantizedItems():
            return ByQuantized(similarity, items)
        case _:
            return ByComponents(similarity, items)
