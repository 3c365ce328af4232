"""Requests that change the items of an index."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from rails_ray.schema.fields import IdField
from rails_ray.schema.queries import NamedVectors, Strict, Vector, exactly_one, one_of

MOST_ITEMS = 10_000  # of a request
MOST_CHANGES = 8  # requests that a server holds, of which it carries out one at a time
GIVEN_BY = ("text", "embedding", "embeddings")


class ItemInput(Strict):
    """An item, by exactly one of text, embedding and embeddings, as its model reads it."""

    model_config = one_of(GIVEN_BY)

    id: IdField
    text: Annotated[str, Field(min_length=1, max_length=100_000)] | None = Field(
        None, description="What the model reads; where items have titles, it reads the title before it."
    )
    embedding: Vector | None = Field(
        None, description="The item's vector, of the width of the others, where items are vectors."
    )
    embeddings: NamedVectors | None = Field(
        None,
        description="Vectors by their names, where items are several vectors; an item may lack some, but not all.",
    )
    title: Annotated[str, Field(max_length=10_000)] | None = Field(None, description="Shown with answers.")
    attributes: dict[str, Any] | None = Field(
        None, description="Values of the columns that filters may name, by their names; one that is left out is null."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        exactly_one(self, GIVEN_BY)
        return self


class ItemsRequest(Strict):
    """
    mode: upsert replaces items that are there already; add refuses them.
    """

    items: Annotated[list[ItemInput], Field(min_length=1, max_length=MOST_ITEMS, fail_fast=True)]
    mode: Literal["upsert", "add"] = "upsert"


class DeleteItemsRequest(Strict):
    """
    ids: of items to delete; integers may be given in decimal digits. Those that no item has are counted.
    """

    ids: Annotated[list[IdField], Field(min_length=1, max_length=MOST_ITEMS, fail_fast=True)]
