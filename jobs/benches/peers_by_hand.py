"""A server of vectors as one writes it by hand, for `peers`: FastAPI, uvicorn and FAISS, and nothing else that a server
must do: no checks, keys, limits, certificates.

    python -m jobs.benches.peers_by_hand INDEX PORT
"""

import asyncio
import sys

import faiss
import numpy as np
import uvicorn
from fastapi import FastAPI, Request, Response

try:
    from orjson import dumps, loads
except ImportError:  # slower
    from json import dumps, loads


def api_of(path: str) -> FastAPI:
    api, index = FastAPI(), faiss.read_index(path)
    is_graph = isinstance(index, faiss.IndexHNSW)

    @api.post("/search")
    async def search(request: Request) -> Response:
        body = loads(await request.body())
        vectors = np.array(body["vectors"], dtype=np.float32)
        if is_graph:  # less than a millisecond: a thread costs more than it frees
            params = faiss.SearchParametersHNSW(efSearch=body["ef_search"])
            scores, rows = index.search(vectors, body["k"], params=params)
        else:
            scores, rows = await asyncio.to_thread(index.search, vectors, body["k"])
        answer = {"ids": rows.tolist(), "scores": scores.tolist()}
        return Response(dumps(answer), media_type="application/json")

    return api


if __name__ == "__main__":
    path, port = sys.argv[1:]
    uvicorn.run(api_of(path), host="127.0.0.1", port=int(port), log_level="warning", access_log=False)
