"""How much a search looks at: the search parameters of every method, of a request and of the command line."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any


def _param(default: int | None = None, *, least: int = 1, most: int | None = None, follows_k: bool = False) -> Any:
    """A search parameter.

    Args:
        default: the value of a search that does not name it; None if it depends on the index.
        least, most: the range of values; None for no upper end.
        follows_k: whether the default of a request is k where k is more.
    """
    return field(default=default, metadata={"least": least, "most": most, "follows_k": follows_k})


@dataclass(frozen=True, kw_only=True)
class SearchParams:
    """How much the first stage of a search looks at. A method reads only the parameters that name it.

    Args:
        num_candidates: Items that `average`, `combined` and `ann` take in each shard by the average component,
            `surrogate` by its vectors, `gated` in all rounds, `lookup` and `ivf_lookup` by codes, and `inverted` by
            buckets. At least k, but for `combined`; by default 1000, or k if that is more.
        num_per_embedding: Items that `two_pass`, `per_embedding` and `combined` take in each shard for each pair of
            components; by default 50, or k if that is more.
        num_rounds: Rounds that `gated` splits its candidates into; by default 3. Each but the first begins with a fit
            to the scores so far, and takes another scan.
        num_probes: Buckets that `inverted` looks up in each chunk; by default 100, or all if there are fewer.
        nprobe: Lists that `ivf_lookup` or an index of kind ivf scans; by default the root of their number, or as
            many as hold k items.
        ef_search: Items in the beam of an index of kind hnsw; by default 64, and at least as many as it finds.
    """

    num_candidates: int = _param(1000, follows_k=True)
    num_per_embedding: int = _param(50, follows_k=True)
    num_rounds: int = _param(3, least=2, most=100)
    num_probes: int | None = _param()
    nprobe: int | None = _param()
    ef_search: int | None = _param()

    def __post_init__(self) -> None:
        for own in fields(self):
            value, least = getattr(self, own.name), own.metadata["least"]
            if value is not None and value < least:
                raise ValueError(f"{own.name} must be at least {least}, got {value}")

    @classmethod
    def of_request(cls, given: Mapping[str, Any], k: int) -> "SearchParams":
        """The parameters of a request, with the defaults of those that it does not name.

        Args:
            given: the request's fields by name; null counts as not named.
            k: items that each query asks for.
        """
        chosen = dict[str, Any]()
        for own in fields(cls):
            usual: Any = own.default
            value = given.get(own.name)
            if value is None:
                value = max(usual, k) if own.metadata["follows_k"] else usual
            chosen[own.name] = value
        return cls(**chosen)


DEFAULT_PARAMS = SearchParams()
PARAM_NAMES = tuple(own.name for own in fields(SearchParams))
