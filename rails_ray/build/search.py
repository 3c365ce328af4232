"""Loaded items -> what searches them; a part of `build`."""

from typing import Any

from rails_ray.retrieval.searchable import ByCodes, ByComponents, Searchable
from rails_ray.similarities import Similarity
from rails_ray.similarities.look_up import LookUp
from rails_ray.similarities.states import AnyItems, Codes


def make_searchable(compared_by: Similarity | LookUp, items: AnyItems) -> Searchable[Any]:
    """The items, ready to be searched.

    Raises:
        ValueError: if the similarity cannot compare such items.
    """
    if isinstance(items, Codes):
        assert isinstance(compared_by, LookUp)
        return ByCodes(compared_by, items)
    assert not isinstance(compared_by, LookUp)
    return ByComponents(compared_by, items)
