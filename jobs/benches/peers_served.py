"""A server of `peers` and what its clients measure of it."""

import asyncio
import time
from collections.abc import Awaitable
from contextlib import ExitStack
from functools import partial
from typing import Any

import psutil
import uvloop

from jobs.benches.peers_load import Connection, loaded, one_by_one
from jobs.benches.peers_processes import free_port, memory_mb, patient, running
from jobs.benches.peers_servers import Server
from jobs.benches.peers_setting import BATCH, NUM_QUERIES, Setting, judged, percentiles

LOADS = ((8, 1), (32, 1), (1, BATCH))  # clients, queries of a request
FIRST_BEAM = 100  # of the first answer, before any is chosen; not of the ladder


def served(server: Server, setting: Setting) -> dict[str, Any]:
    """Measurements of a server: seconds to its first answer, one client, memory after it, and loads."""
    started = time.perf_counter()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, ExitStack() as process:
        own = Served(server, setting, runner, process)
        own.start()
        open_s = round(time.perf_counter() - started, 2)
        return {"open_s": open_s, **judged(setting, own.alone), **own.memory(), **own.loads()}


class Served:
    """A server, and clients in this process.

    Args:
        stack: what stops the server when it is closed.
    """

    def __init__(self, server: Server, setting: Setting, runner: asyncio.Runner, stack: ExitStack) -> None:
        self._server, self._setting, self._run, self._stack = server, setting, runner.run, stack
        self._port, self._beam = free_port(), FIRST_BEAM

    def start(self) -> None:
        """Start the server, after stopping the one that runs; return when it has answered."""
        self._stack.close()
        command = self._server.command(self._setting, self._port)
        starting = running(command, self._setting, stop=self._server.stop, as_user=self._server.user)
        own = self._stack.enter_context(starting)
        self.process = psutil.Process(own.pid)
        patient(partial(self._alone, 1), own, self._setting)

    def alone(self, ef_search: int) -> tuple[dict[str, Any], list[list[int]]]:
        """Times of the queries of one client with a beam, and the items that each found."""
        if ef_search != self._beam:
            self._beam = ef_search
            if self._server.tune(self._setting, self._port, ef_search):
                self.start()
        return self._alone(NUM_QUERIES)

    def _alone(self, num_queries: int) -> tuple[dict[str, Any], list[list[int]]]:
        requests = self._requests(1, num_queries)
        took, answers = self._run(one_by_one(self._connect, requests, self._setting.most_s))
        return percentiles(took), [self._server.rows(answer)[0] for answer in answers]

    def memory(self) -> dict[str, float]:
        """Memory of the server while a client that has searched is connected."""
        return self._run(self._memory())

    async def _memory(self) -> dict[str, float]:
        connection = await self._connect()
        await connection.ask(self._requests(1, 1)[0])
        found = memory_mb(self.process)
        await connection.close()
        return found

    def loads(self) -> dict[str, float]:
        """Queries a second of each load, and the share of a core that its clients take."""
        facts = dict[str, float]()
        for clients, size in LOADS:
            load = self._run(loaded(self._connect, self._requests(size), clients, self._setting.seconds))
            name = "batch" if size > 1 else str(clients)
            facts[f"queries_per_s_{name}"] = round(size * load["per_s"], 1)
            facts[f"client_cpu_{name}"] = round(load["client_cpu"], 2)
        return facts

    def _connect(self) -> Awaitable[Connection]:
        return self._server.connect(self._setting, self._port, self._beam)

    def _requests(self, size: int, num_queries: int = NUM_QUERIES) -> list[Any]:
        parts = self._setting.in_parts(size, num_queries)
        return [self._server.request(self._setting, part, self._beam) for part in parts]
