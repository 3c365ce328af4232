"""Items of either kind, ready to be searched."""

from typing import Any

from rails_ray.retrieval.searchable import ByCodes, ByComponents, Searchable
from rails_ray.similarities.states import AnyItems, Codes


def make_searchable(similarity: Any, items: AnyItems) -> Searchable[Any]:
    return ByCodes(similarity, items) if isinstance(items, Codes) else ByComponents(similarity, items)
