"""Checks of the arguments of a search, before it starts."""

import math

from rails_ray.modules.similarities import Scorer
from rails_ray.modules.similarities.states import QueryState, Searched

OF_K = ", the k of the search"


def check_query(query: QueryState, similarity: Scorer, items: Searched) -> None:
    """Raises:
    ValueError: if the query is not finite or not of the components that the items match.
    """
    check_shapes(query, similarity, items)
    check_finite(query)


def check_shapes(query: QueryState, similarity: Scorer, items: Searched) -> None:
    """Raises:
    ValueError: if the query is not of the components that the items match.
    """
    num_query_components = similarity.num_components[0]
    if query.components.shape[1] != num_query_components:
        raise ValueError(f"query must have {num_query_components} components, got {query.components.shape[1]}")
    if query.components.shape[-1] != items.width:
        raise ValueError(
            f"query components must have the width of the index, {items.width}, got {query.components.shape[-1]}"
        )


def check_finite(query: QueryState) -> None:
    """Raises:
    ValueError: if a number of the query is not finite.
    """
    for name, tensor in (("components", query.components), ("gate", query.gate)):
        if tensor is None or math.isfinite(tensor.sum().item()):  # a sum is not finite if a number is not
            continue
        if not tensor.isfinite().all():
            line = int((~tensor.isfinite().flatten(start_dim=1).all(dim=1)).nonzero()[0])
            raise ValueError(f"query {name} must be finite, got NaN or infinity in query {line}")


def check_items(similarity: Scorer, items: Searched) -> None:
    """Raises:
    ValueError: if the similarity cannot score such items.
    """
    num_item_components = similarity.num_components[1]
    if items.num_components != num_item_components:
        raise ValueError(
            f"items must have the {num_item_components} components that the similarity compares, "
            f"got {items.num_components}"
        )
    if similarity.num_components != (1, 1) and not items.has_gate:
        raise ValueError("a mixture of logits must have the column 'gate' of its items, got an index without it")


def check_width(name: str, width: int, least: int, why: str) -> None:
    """Raises:
    ValueError: if a first stage would find too little.
    """
    if width < least:
        raise ValueError(f"{name} must be at least {least}{why}, got {width}")
