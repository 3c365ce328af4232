"""How much a search looks at: the search parameters of every method, of a request and of the command line."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

NUM_CANDIDATES = 1000  # by default, unless k is more


def _param(
    default: int | None = None, *, least: int = 1, most: int | None = None, follows_k: int = 0, but_of: str = ""
) -> Any:
    """A search parameter.

    Args:
        default: the value of a search that does not name it; None if it depends on the index.
        least, most: the range of values; None for no upper end.
        follows_k: the default of a request, or k where k is more; 0 if it does not depend on k.
        but_of: a method whose requests have no default, as it finds one by its index.
    """
    metadata = {"least": least, "most": most, "follows_k": follows_k, "but_of": but_of}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class SearchParams:
    """How much the first stage of a search looks at. A method reads only the parameters that name it.

    Args:
        num_candidates: Items that the first stage takes in each shard: `average`, `combined` and `ann` by the average
            component, `surrogate` by its vectors, `gated` in all rounds together, `lookup` and `ivf_lookup` by codes,
            `inverted` by buckets. It must be at least k, except for `combined`. By default 1000, or k if that is more;
            for `ann` k, or 4 k if the index keeps fewer than 32 bits a number.
        num_per_embedding: Items that `two_pass`, `per_embedding` and `combined` take in each shard for each pair of
            components; by default 50, or k if that is more.
        num_rounds: Rounds that `gated` splits its candidates into; by default 3. Each but the first begins with a fit
            to the scores so far, and takes another scan.
        num_probes: Buckets that `inverted` looks up in each chunk; by default 100, or all if there are fewer.
        nprobe: Lists that `ivf_lookup` or an index of kind ivf scans; by default the root of their number, or as
            many as hold k items.
        ef_search: Items in the beam of an index of kind hnsw; by default 64, and at least as many as it finds.
    """

    num_candidates: int | None = _param(follows_k=NUM_CANDIDATES, but_of="ann")
    num_per_embedding: int = _param(50, follows_k=50)
    num_rounds: int = _param(3, least=2, most=100)
    num_probes: int | None = _param()
    nprobe: int | None = _param()
    ef_search: int | None = _param()

    @property
    def num_scored(self) -> int:
        """`num_candidates`, or its default."""
        return NUM_CANDIDATES if self.num_candidates is None else self.num_candidates

    def __post_init__(self) -> None:
        for own in fields(self):
            value, least = getattr(self, own.name), own.metadata["least"]
            if value is not None and value < least:
                raise ValueError(f"{own.name} must be at least {least}, got {value}")

    @classmethod
    def of_request(cls, given: Mapping[str, Any], k: int) -> "SearchParams":
        """The parameters of a request, with the defaults of those that it does not name.

        Args:
            given: the request's fields by name, its method too; null counts as not named.
            k: items that each query asks for.
        """
        chosen = dict[str, Any]()
        for own in fields(cls):
            value, least = given.get(own.name), own.metadata["follows_k"]
            if value is None:
                is_open = not least or given.get("method") == own.metadata["but_of"]
                value = own.default if is_open else max(least, k)
            chosen[own.name] = value
        return cls(**chosen)


DEFAULT_PARAMS = SearchParams()
PARAM_NAMES = tuple(own.name for own in fields(SearchParams))
