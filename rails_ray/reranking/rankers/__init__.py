"""Heavy rankers: what scores a query and some items better than vectors do, at a price that forbids all items.

| member                | what a score is                                                          |
|-----------------------|--------------------------------------------------------------------------|
| `molecules`           | overlap of two molecules in space, in shape and colour, by rdkit         |
| `syntax_trees`        | edit distance of the syntax trees of two Python programs, by apted       |
| `boosted`             | boosted trees over features of the query, the item and both, by LightGBM |
| `cross_encoder`       | a small transformer over the tokens of both texts                        |
| `transformers_ranker` | a cross-encoder of Hugging Face, from a folder                           |
| `calling`             | any callable, found by its import path, its answers checked              |

A ranker of your own is a callable that takes one query and some items: see `HeavyRanker`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, SupportsIndex, overload, runtime_checkable

TEXT = "text"  # field of queries and items that the rankers here read
RANKERS = "'rails-ray[rankers]'"  # what pip installs for those that need more packages


class Candidate(NamedTuple):
    """An item to be scored.

    fields: the columns of its row in the items' table, such as `title`.
    """

    item_id: Any
    fields: Mapping[str, Any]


@runtime_checkable
class HeavyRanker(Protocol):
    """Scores some items for one query. The score of an item does not depend on the others that it is sent with."""

    def __call__(self, query: Mapping[str, Any], candidates: Sequence[Candidate]) -> Sequence[float]:
        """A finite score for each candidate, in their order; higher is better.

        Args:
            query: the fields of a request's query, such as `text`.
        """


class RankerCandidates(Sequence[Candidate]):
    """Items with texts, in two lists that travel in a third of the time of objects."""

    def __init__(self, item_ids: Sequence[Any], texts: Sequence[str]) -> None:
        self.item_ids = list(item_ids)
        self.texts = list(texts)

    def __len__(self) -> int:
        return len(self.item_ids)

    @overload
    def __getitem__(self, number: SupportsIndex) -> Candidate: ...

    @overload
    def __getitem__(self, number: slice) -> "RankerCandidates": ...

    def __getitem__(self, number: SupportsIndex | slice) -> "Candidate | RankerCandidates":
        if isinstance(number, slice):
            return RankerCandidates(self.item_ids[number], self.texts[number])
        return Candidate(self.item_ids[number], {TEXT: self.texts[number]})

    def __iter__(self) -> Iterator[Candidate]:
        return iter(candidates_of(self.item_ids, self.texts))

    @staticmethod
    def of(candidates: Sequence[Candidate]) -> "RankerCandidates":
        """Keep the texts of the items, and no other field."""
        return RankerCandidates([one.item_id for one in candidates], [one.fields[TEXT] for one in candidates])


def candidates_of(item_ids: Sequence[Any], texts: Sequence[str]) -> list[Candidate]:
    """Items as rankers get them."""
    return [Candidate(item_id, {TEXT: text}) for item_id, text in zip(item_ids, texts, strict=True)]
