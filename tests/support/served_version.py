"""A version that is served, beside the same one in this process, and what it is asked."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from rails_ray.families.dual_encoder.model import DualEncoder
from rails_ray.modules.similarities.states import ItemState
from rails_ray.search.masks import Exclusions
from rails_ray.search.methods.brute_force import BruteForce
from rails_ray.search.spec import SearchSpec
from rails_ray.storage.described import Manifest

TEXTS = ["red", "blue hat", "tree", "gold ring", "car"]
NO_CHUNKS = {"chunks_trained": None, "num_chunks": None}  # in the coverage of a model of one piece
ASKED = [{"text": text} for text in TEXTS]


@dataclass(frozen=True)
class AtUrl:
    """A server that answers over HTTP."""

    url: str

    def search(self, **body: Any) -> httpx.Response:
        return httpx.post(f"{self.url}/v1/search", json=body, timeout=60)

    def explain(self, **body: Any) -> httpx.Response:
        return httpx.post(f"{self.url}/v1/explain", json=body, timeout=60)


@dataclass(frozen=True)
class FromRoot(AtUrl):
    """A server, and the storage that it reads."""

    root: Path


@dataclass(frozen=True)
class Served(FromRoot):
    """A server, and the same version in this process."""

    manifest: Manifest
    model: DualEncoder
    item_ids: list[str]
    items: ItemState

    def offline(self, texts: list[str], k: int, exclude: list[list[str]] | None = None) -> list[list[str]]:
        query = self.model.encode_queries(self.model.query_features(texts))
        rows = [[self.item_ids.index(item) for item in ids] for ids in exclude or [[] for _ in texts]]
        found = BruteForce(self.model.similarity, self.items).search(query, SearchSpec(k, mask=Exclusions.of(rows)))
        return [[self.item_ids[row] for row in line] for line in found.item_rows.tolist()]
