"""The default search of a version: the method and search parameters of requests that name none.

It lies beside the version's files but is not part of the manifest, as a calibration does: a published, immutable
version may be tuned again. Each default search has its own file, named by its sha256; `search.json` names the current
one and is written last. A server keeps the one that it started with unless it follows. A version without one is
searched by `brute_force`.

    search-*.json    the fields of `DefaultSearch` and the name of the version
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from math import ceil
from typing import Any, get_args

from rails_ray.errors import DamagedError, NotFoundError
from rails_ray.schema.requests import Method
from rails_ray.schema.search_params import SearchParams
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.manifest import folder_of, point_to, pointed_file

CURRENT = "search.json"
AGAIN = "choose again with `rails-ray tune --target-recall`"
WIDTHS = tuple(own.name for own in fields(SearchParams) if own.metadata["follows_k"])


@dataclass(frozen=True, kw_only=True)
class DefaultSearch:
    """
    method, params: the method, and the search parameters that are not its usual ones.
    k: items of a list when it was chosen.
    target_recall: the recall@k that was wanted.
    recall, low: recall@k against brute force, and the lower end of its interval.
    ms: median time of a search for one query, in milliseconds.
    queries: number and kind of the queries that chose, in words.
    created_at: when it was chosen.
    """

    method: str
    params: Mapping[str, int]
    k: int
    target_recall: float
    recall: float
    low: float
    ms: float
    queries: str
    created_at: str

    def fields_for(self, k: int) -> dict[str, Any]:
        """The fields of a request for k items: method and parameters. Widths grow with k beyond the one that it was
        chosen for, so that the share of the best items among the candidates stays."""
        grown = {
            name: max(value, ceil(value * k / self.k)) if name in WIDTHS else value
            for name, value in self.params.items()
        }
        return {"method": self.method, **grown}


def write(storage: Storage, version: str, chosen: DefaultSearch) -> None:
    """Make this the current default search of a version."""
    data = json.dumps({"version": version, **asdict(chosen)}, indent=1).encode()
    name = _name(data)
    storage.write(f"{folder_of(version)}/{name}", data)
    point_to(storage, f"{folder_of(version)}/{CURRENT}", name)


def current(storage: Storage, version: str) -> str | None:
    """The file of the current default search of a version; None if it has none.

    Raises:
        DamagedError: if `search.json` cannot be read.
    """
    return pointed_file(storage, f"{folder_of(version)}/{CURRENT}", AGAIN)


def read(storage: Storage, version: str, name: str) -> DefaultSearch:
    """A default search of a version, by its file.

    Raises:
        DamagedError: if the file is missing, its bytes have changed, or it is of another version.
    """
    path = f"{folder_of(version)}/{name}"
    try:
        data = storage.read(path)
        if _name(data) != name:
            raise ValueError("others than its name says")
        found = json.loads(data)
        if (of := found.pop("version")) != version:
            raise ValueError(f"those of version {of}")
        chosen = DefaultSearch(**found)
        SearchParams(**chosen.params)
        if chosen.method not in get_args(Method):
            raise ValueError(f"the unknown method {chosen.method!r}")
        return chosen
    except (NotFoundError, KeyError, TypeError, ValueError) as error:
        raise DamagedError(
            f"{storage}/{path} must hold the bytes that `rails-ray tune` wrote for version {version}, got: {error}: "
            f"{AGAIN}"
        ) from None


def read_current(storage: Storage, version: str) -> DefaultSearch | None:
    """The current default search of a version, if it has one; raises what `current` and `read` do."""
    name = current(storage, version)
    return None if name is None else read(storage, version, name)


def _name(data: bytes) -> str:
    return f"search-{hashlib.sha256(data).hexdigest()}.json"
