"""By which method a request is searched: its own, or else the version's default search, or else `brute_force`."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rails_ray.errors import UnsupportedError
from rails_ray.families import default_searches
from rails_ray.families.default_searches import AGAIN, DefaultSearch
from rails_ray.families.version import Version
from rails_ray.schema.requests import SearchRequest
from rails_ray.schema.search_params import PARAM_NAMES, SearchParams

USUAL = "brute_force"
NO_SEARCH = "none"  # the deployment started without a default search


@dataclass(frozen=True)
class SearchDefaults:
    """
    version: name of the version.
    stored: its default search; None if it has none.
    """

    version: str
    stored: DefaultSearch | None = None

    @staticmethod
    def read(version: Version, name: str | None = None) -> "SearchDefaults":
        """The default search of a version.

        Args:
            name: its file; by default the current one.

        Raises:
            DamagedError: if the file differs from what was written.
        """
        name = name or version.tuned.search or NO_SEARCH
        stored = None if name == NO_SEARCH else default_searches.read(version.storage, version.name, name)
        return SearchDefaults(version.name, stored)

    def check(self, methods: Sequence[str]) -> None:
        """Check the default search against the methods that the version offers.

        Raises:
            UnsupportedError: if its method is none of them.
        """
        if self.stored is not None and self.stored.method not in methods:
            raise UnsupportedError(
                f"the default search of version {self.version} must be by one of {', '.join(methods)}, got "
                f"{self.stored.method}: {AGAIN}"
            )

    def method(self, request: SearchRequest) -> str:
        """The method that a request is searched by."""
        stored = self._of(request)
        return request.method or (USUAL if stored is None else stored.method)

    def params(self, request: SearchRequest, k: int) -> SearchParams:
        """The search parameters of a request for k items of each query."""
        stored = self._of(request)
        return SearchParams.of_request(vars(request) if stored is None else stored.fields_for(k), k)

    def summary(self) -> dict[str, Any]:
        """The facts that a client may see: the fields of a request by the default, and how it was chosen."""
        if self.stored is None:
            return {"method": USUAL, "params": {}, "tuned": None}
        tuned = asdict(self.stored)
        return {"method": tuned.pop("method"), "params": tuned.pop("params"), "tuned": tuned}

    def _of(self, request: SearchRequest) -> DefaultSearch | None:
        """The default search if the request names neither a method nor a search parameter."""
        names = request.method is not None or any(getattr(request, name) is not None for name in PARAM_NAMES)
        return None if names else self.stored
