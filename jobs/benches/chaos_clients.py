"""Clients that ask a server while `chaos` does something to it, and what comes of their requests."""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn

import aiohttp
import numpy as np
import psutil
import torch

from rails_ray.families.version import Version
from rails_ray.search.spec import SearchSpec
from rails_ray.storage import versions
from rails_ray.storage.filesystem import Storage

K = 5
ROUNDING = 1e-5  # of a score, by processes with other numbers of threads
COLUMNS = ("requests", "failed", "refused", "wrong", "recover_s", "p50_s", "p99_s", "per_s")

Answers = dict[str, list[tuple[list[str | int], list[float]]]]  # of each version, items and scores for each text


@dataclass(frozen=True)
class Request:
    """
    at, seconds: when a request ended, by `time.monotonic`, and how long it took.
    status: of HTTP; 0 where the connection broke.
    is_refused: whether it was told in a sentence when to come again.
    is_wrong: whether its answer is not that of the version which it names.
    """

    at: float
    seconds: float
    status: int
    is_refused: bool
    is_wrong: bool


@dataclass
class Clients:
    """Clients that ask one after the other while the block lasts.

    expected: the answer of each version to each of `texts`.
    headers: of each request.
    k: items that are asked for.
    patience_s: after which a client gives up on an answer.
    """

    url: str
    num_clients: int
    texts: Sequence[str]
    expected: Answers
    headers: dict[str, str] = field(default_factory=dict)
    k: int = K
    patience_s: float = 60
    asked: list[Request] = field(default_factory=list)
    wrong: list[Any] = field(default_factory=list)

    async def __aenter__(self) -> "Clients":
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=self.patience_s)
        self._session = aiohttp.ClientSession(connector=connector, headers=self.headers, timeout=timeout)
        self._tasks = [asyncio.create_task(self._ask_on(number)) for number in range(self.num_clients)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        ended = await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._session.close()
        for failure in ended:
            if not isinstance(failure, asyncio.CancelledError):
                raise RuntimeError("a client must ask until it is stopped") from failure

    async def _ask_on(self, number: int) -> NoReturn:
        while True:
            number = (number + 1) % len(self.texts)
            await asyncio.sleep(await self._ask(number))

    async def _ask(self, number: int) -> float:
        """Ask once; the seconds after which to come again."""
        began, status, is_refused, is_wrong, pause_s = time.monotonic(), 0, False, False, 0.0
        body = {"queries": [{"text": self.texts[number]}], "k": self.k, "cutoff": {"top_k": self.k}}
        with suppress(aiohttp.ClientError, TimeoutError):
            async with self._session.post(f"{self.url}/v1/search", json=body) as response:
                content = await response.read()
                status = response.status
                if status == 200:
                    is_wrong = not self._is_right(number, content)
                    if is_wrong:
                        self.wrong.append(content)
                elif status in (429, 503) and "retry-after" in response.headers:
                    pause_s = float(response.headers["retry-after"])
                    is_refused = b'{"error":' in content
        if status != 200 and not pause_s:
            pause_s = 0.1  # a client that is cut off does not ask again in the same moment
        now = time.monotonic()
        self.asked.append(Request(now, now - began, status, is_refused, is_wrong))
        return pause_s

    def _is_right(self, number: int, content: bytes) -> bool:
        """Whether an answer is that of the version which it names."""
        try:
            answer = json.loads(content)
            items, scores = self.expected[answer["version"]][number]
            (result,) = answer["results"]
            if not np.allclose(result["scores"], scores, rtol=0, atol=ROUNDING):
                return False
            # Rounding may order items of nearly one score otherwise, and so may end a list with another of them.
            known, last = dict(zip(items, scores, strict=True)), scores[-1]
            given = dict(zip(result["items"], result["scores"], strict=True))
            is_near = [abs(known.get(item, last) - own) <= ROUNDING for item, own in given.items()]
            return len(given) == len(items) and all(is_near)
        except (ValueError, KeyError):
            return False

    async def answers(self, count: int, timeout_s: float = 90) -> None:
        """Wait for so many answers with 200.

        Raises:
            TimeoutError: if they do not come in time.
        """
        before = self.num_answered
        async with asyncio.timeout(timeout_s):
            while self.num_answered < before + count:
                await asyncio.sleep(0.02)

    @property
    def num_answered(self) -> int:
        return sum(one.status == 200 for one in self.asked)

    def outcome(self, since: float) -> dict[str, float]:
        """What came of the requests that ended since then, by `COLUMNS`."""
        own = [one for one in self.asked if one.at >= since]
        failures = [one.at for one in own if one.status != 200]
        seconds = sorted(one.seconds for one in own if one.status == 200)
        p50, p99 = np.quantile(seconds, [0.5, 0.99]) if seconds else (np.inf, np.inf)
        return {
            "requests": len(own),
            "failed": sum(one.status != 200 and not one.is_refused for one in own),
            "refused": sum(one.is_refused for one in own),
            "wrong": sum(one.is_wrong for one in own),
            "recover_s": max(failures, default=since) - since,
            "p50_s": float(p50),
            "p99_s": float(p99),
            "per_s": len(seconds) / (max(one.at for one in own) - since) if own else 0.0,
        }


@dataclass(frozen=True)
class Server:
    """
    texts: what clients ask.
    swap: makes the server serve a version, and returns once that was asked of it.
    replicas: of a deployment, or what else runs under such a title.
    """

    url: str
    texts: Sequence[str]
    expected: Answers
    swap: Callable[[str], None]
    replicas: Callable[[str], list[psutil.Process]]
    headers: dict[str, str] = field(default_factory=dict)
    k: int = K

    def clients(self, num_clients: int) -> Clients:
        return Clients(self.url, num_clients, self.texts, self.expected, self.headers, self.k)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


def offline(storage: str, names: Sequence[str], texts: Sequence[str], k: int) -> Answers:
    """What brute force finds in this process, by version."""
    store, found = Storage(storage), Answers()
    for name in names:
        manifest = versions.read_manifest(store, name)
        model = Version(store, manifest).model
        items = Version(store, manifest).items()
        searcher = Version(store, manifest).family.searcher(model.similarity, items.state)
        with torch.no_grad():
            query = model.encode_queries(model.query_features(list(texts)))
        best = searcher.search(query, SearchSpec(k))
        lines = zip(best.item_rows.tolist(), best.scores.tolist(), strict=True)
        found[name] = [([items.item_ids[row] for row in rows], scores) for rows, scores in lines]
    return found


class Truth(Answers):
    """Answers by brute force in this process, of each version from when an answer names it."""

    def __init__(self, storage: str, texts: Sequence[str], k: int = K) -> None:
        super().__init__()
        self._of = storage, texts, k

    def __missing__(self, version: str) -> list[tuple[list[str | int], list[float]]]:
        storage, texts, k = self._of
        self.update(offline(storage, [version], texts, k))
        return self[version]


def own_processes(title: str) -> list[psutil.Process]:
    """Of this process's cluster, by a part of the title."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            found += [process] if title in " ".join(process.cmdline()) else []
    return found
