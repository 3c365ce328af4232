"""What every search asks of its arguments before it starts."""

from jaxtyping import Float
from torch import Tensor

from rails_ray.above import check_above
from rails_ray.similarities import Similarity
from rails_ray.similarities.states import ItemState, QueryState
from rails_ray.top_k import check_k


def check_search(query: QueryState, similarity: Similarity, items: ItemState, k: int) -> None:
    """Raises:
    ValueError: if k is outside the corpus, or `check_query` refuses the query.
    """
    check_k(k, len(items))
    check_query(query, similarity, items)


def check_search_above(
    query: QueryState,
    similarity: Similarity,
    items: ItemState,
    threshold: Float[Tensor, " _"],
    cap: int,
    at_least: int,
) -> None:
    """Raises:
    ValueError: if `check_above` refuses what is asked for, or `check_query` the query.
    """
    check_above(len(query), threshold, cap, at_least)
    check_query(query, similarity, items)


def check_query(query: QueryState, similarity: Similarity, items: ItemState) -> None:
    """Raises:
    ValueError: if the query is not finite or not of the components that the items match.
    """
    num_query_components = similarity.num_components[0]
    if query.components.shape[1] != num_query_components:
        raise ValueError(f"query must have {num_query_components} components, got {query.components.shape[1]}")
    if query.components.shape[-1] != items.components.shape[-1]:
        raise ValueError(
            f"query components must have the width of the index, {items.components.shape[-1]}, "
            f"got {query.components.shape[-1]}"
        )
    for name, tensor in (("components", query.components), ("gate", query.gate)):
        if tensor is not None and not tensor.isfinite().all():
            line = int((~tensor.isfinite().flatten(start_dim=1).all(dim=1)).nonzero()[0])
            raise ValueError(f"query {name} must be finite, got NaN or infinity in query {line}")


def check_items(similarity: Similarity, items: ItemState) -> None:
    """Raises:
    ValueError: if the similarity cannot score such items.
    """
    num_item_components = similarity.num_components[1]
    if items.components.shape[1] != num_item_components:
        raise ValueError(
            f"items must have the {num_item_components} components that the similarity compares, "
            f"got {items.components.shape[1]}"
        )
    if similarity.num_components != (1, 1) and items.gate is None:
        raise ValueError("a mixture of logits must have the column 'gate' of its items, got an index without it")


def check_width(name: str, width: int, least: int, why: str) -> None:
    """Raises:
    ValueError: if a first stage would find too little.
    """
    if width < least:
        raise ValueError(f"{name} must be at least {least}{why}, got {width}")
