"""A server as one writes it by hand, for `throughput`: FastAPI, torch, and a queue that is searched in batches.

It finds what ours finds, and nothing else that a server must do: no keys, limits, checks, certificates, shards.

    python -m jobs.benches.by_hand STORAGE PORT
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from rails_ray.families.version import Version
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.versions import read_manifest

MOST_TOGETHER = 64  # queries


class Query(BaseModel):
    text: str


class Search(BaseModel):
    queries: list[Query]
    k: int = 10


Waiting = tuple[Search, asyncio.Future[list[dict[str, Any]]]]


class Searcher:
    """All items in memory, scored by the model itself."""

    def __init__(self, storage: str) -> None:
        store = Storage(storage)
        manifest = read_manifest(store, None)
        self.model: Any = Version(store, manifest).model
        self.items = Version(store, manifest).items()
        self.item_ids, self.titles = list(self.items.item_ids), self.items.titles

    @torch.inference_mode()
    def search(self, texts: list[str], k: int) -> list[dict[str, Any]]:
        query = self.model.encode_queries(self.model.query_features(texts))
        best = self.model.score(query, self.items.state).scores.topk(k, dim=1)
        return [
            {
                "items": [self.item_ids[row] for row in rows],
                "titles": self.titles and [self.titles[row].as_py() for row in rows],
                "scores": scores,
            }
            for rows, scores in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]


def api_of(searcher: Searcher) -> FastAPI:
    queue = asyncio.Queue[Waiting]()

    async def work() -> None:
        while True:
            batch = [await queue.get()]
            while not queue.empty() and sum(len(asked.queries) for asked, _ in batch) < MOST_TOGETHER:
                batch.append(queue.get_nowait())
            texts = [query.text for asked, _ in batch for query in asked.queries]
            try:
                rest = iter(await asyncio.to_thread(searcher.search, texts, max(asked.k for asked, _ in batch)))
                for asked, answer in batch:
                    answer.set_result([next(rest) for _ in asked.queries])
            except Exception as error:
                for _, answer in batch:
                    answer.set_exception(error)

    @asynccontextmanager
    async def working(_: FastAPI) -> AsyncIterator[None]:
        task = asyncio.create_task(work())
        yield
        task.cancel()

    api = FastAPI(lifespan=working)

    @api.post("/v1/search")
    async def search(asked: Search) -> dict[str, Any]:
        answer = asyncio.get_running_loop().create_future()
        queue.put_nowait((asked, answer))
        results = [{name: own and own[: asked.k] for name, own in result.items()} for result in await answer]
        return {"results": results}

    return api


if __name__ == "__main__":
    storage, port = sys.argv[1:]
    uvicorn.run(api_of(Searcher(storage)), host="127.0.0.1", port=int(port), log_level="warning")
