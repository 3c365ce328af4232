"""The peers of `filters`: one query after the other under a filter, by a graph and exactly.

All have the same vectors, numbers, links and beam of building, and search with each beam of a ladder. Each is as its
documentation advises for filters: LanceDB filters before it searches, by a BTREE index of the number; pgvector scans on
where a beam holds too few (`hnsw.iterative_scan`), has a btree index of the number, and its planner chooses between the
two. rails-ray chooses between its graph and the items that pass.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from jobs.benches.filters_corpus import EF_CONSTRUCTION, SHARES, Corpus, K, M, recall
from jobs.benches.peers_processes import free_port, patient, running
from jobs.benches.peers_servers import Postgres
from jobs.benches.peers_setting import Setting, Vectors, percentiles
from rails_ray import local
from rails_ray.search.indexes.hnsw import HnswConfig
from rails_ray.serving.local import LocalVersion

BEAMS = (40, 100, 200, 400)  # ef_search: 40 is pgvector's default
EXACT = None  # in place of a beam
MOST_S = 12.0  # of the queries of a row

Search = Callable[[Vectors, float, int | None], list[int]]
"""Rows of the k best items of a query [D] whose number is below a share, with a beam or exactly."""


class Peer(Protocol):
    """A system that builds its files in a folder and searches them.

    packages: what must be installed, as it is imported.
    """

    packages: tuple[str, ...]

    def build(self, corpus: Corpus, folder: Path) -> None: ...

    def open(self, corpus: Corpus, folder: Path, stack: ExitStack) -> Search:
        """Open what was built, until the stack is closed."""


class RailsRay:
    """`local.open`, in this process."""

    packages = ("rails_ray",)

    def build(self, corpus: Corpus, folder: Path) -> None:
        """Write a version of one shard."""
        graph = HnswConfig(M=M, ef_construction=EF_CONSTRUCTION)
        local.build(corpus.vectors, folder=str(folder), index=graph, attributes={"number": corpus.numbers})

    def open(self, corpus: Corpus, folder: Path, stack: ExitStack) -> Search:
        """The contract of `Peer`."""
        version: LocalVersion = local.open(str(folder))

        def search(query: Vectors, share: float, beam: int | None) -> list[int]:
            way: dict[str, Any] = {"method": "brute_force"} if beam is EXACT else {"method": "ann", "ef_search": beam}
            [result] = version.search(query[None], k=K, filter={"number": {"$lt": share}}, **way).results
            return [int(row) for row in result.items or []]

        return search


class Lance:
    """LanceDB, in this process, from its files."""

    packages = ("lancedb",)

    def build(self, corpus: Corpus, folder: Path) -> None:
        """Write a table with a graph and an index of the numbers."""
        import lancedb

        column = pa.FixedSizeListArray.from_arrays(corpus.vectors.ravel(), corpus.vectors.shape[1])
        rows = pa.table({"id": np.arange(corpus.num_items), "number": corpus.numbers, "vector": column})
        table = lancedb.connect(str(folder)).create_table("items", rows)
        graph = {"index_type": "IVF_HNSW_FLAT", "num_partitions": 1, "m": M, "ef_construction": EF_CONSTRUCTION}
        table.create_index(metric="dot", **graph)
        table.create_scalar_index("number", index_type="BTREE")

    def open(self, corpus: Corpus, folder: Path, stack: ExitStack) -> Search:
        """The contract of `Peer`."""
        import lancedb

        table = lancedb.connect(str(folder)).open_table("items")

        def search(query: Vectors, share: float, beam: int | None) -> list[int]:
            looking = table.search(query).distance_type("dot").limit(K).where(f"number < {share}", prefilter=True)
            looking = looking.bypass_vector_index() if beam is EXACT else looking.nprobes(1).ef(beam)
            found: list[int] = looking.select(["id", "_distance"]).to_arrow()["id"].to_pylist()
            return found

        return search


@dataclass(frozen=True)
class _Filled(Postgres):
    """A server with the vectors and numbers of a corpus."""

    corpus: Corpus

    def _fill(self, connection: Any, setting: Setting) -> None:
        from pgvector.psycopg import register_vector

        connection.execute("CREATE EXTENSION vector")
        register_vector(connection)
        width = self.corpus.vectors.shape[1]
        connection.execute(f"CREATE TABLE items (id bigint PRIMARY KEY, number float8, vector vector({width}))")
        with connection.cursor().copy("COPY items FROM STDIN WITH (FORMAT BINARY)") as copy:
            copy.set_types(["int8", "float8", "vector"])
            for row, (number, vector) in enumerate(zip(self.corpus.numbers.tolist(), self.corpus.vectors, strict=True)):
                copy.write_row([row, number, vector])
        connection.execute("SET maintenance_work_mem = '4GB'")  # so that the graph is made in memory
        graph = f"(m = {M}, ef_construction = {EF_CONSTRUCTION})"
        connection.execute(f"CREATE INDEX ON items USING hnsw (vector vector_ip_ops) WITH {graph}")
        connection.execute("CREATE INDEX ON items (number)")
        connection.execute("VACUUM ANALYZE items")


class Pgvector:
    """PostgreSQL with pgvector, a server of this machine, asked in its own protocol."""

    packages = Postgres.packages

    def build(self, corpus: Corpus, folder: Path) -> None:
        """Fill a server, and stop it."""
        for place in (folder, folder.parent):
            place.chmod(0o755)  # the server, which root may not run, reads its folder below
        own = self._setting(folder)
        own.store.mkdir()
        _Filled(corpus).build(own)

    def open(self, corpus: Corpus, folder: Path, stack: ExitStack) -> Search:
        """The contract of `Peer`; an exact search uses no graph."""
        import psycopg
        from pgvector import Vector
        from pgvector.psycopg import register_vector

        own, server, port = self._setting(folder), _Filled(corpus), free_port()
        process = stack.enter_context(running(server.command(own, port), own, stop=server.stop, as_user=server.user))
        place = f"host=127.0.0.1 port={port} user=postgres dbname=postgres"
        options = "-c hnsw.iterative_scan=strict_order -c jit=off"

        def connect() -> Any:
            return psycopg.connect(place, autocommit=True, options=options)

        connection = stack.enter_context(patient(connect, process, own, psycopg.OperationalError))
        register_vector(connection)
        beams = list[int | None]()

        def search(query: Vectors, share: float, beam: int | None) -> list[int]:
            if beams[-1:] != [beam]:  # a setting of the session, which costs a query nothing
                connection.execute("DISCARD PLANS")
                connection.execute(f"SET enable_indexscan = {'off' if beam is EXACT else 'on'}")
                connection.execute(f"SET hnsw.ef_search = {beam or 40}")
                beams.append(beam)
            sql = f"SELECT id FROM items WHERE number < {share} ORDER BY vector <#> %b LIMIT {K}"
            return [row for (row,) in connection.execute(sql, [Vector(query)], prepare=True).fetchall()]

        return search

    def _setting(self, folder: Path) -> Setting:
        return Setting(folder, "hnsw", folder / "store", 0.0, MOST_S)


PEERS: dict[str, Peer] = {"rails-ray": RailsRay(), "lancedb": Lance(), "pgvector": Pgvector()}


def missing(name: str) -> list[str]:
    """Packages that a peer needs and that are not installed."""
    return [package for package in PEERS[name].packages if find_spec(package) is None]


def of_peer(name: str, corpus: Corpus, best: dict[float, list[set[int]]]) -> Iterator[dict[str, Any]]:
    """A row for each share and beam: latency and recall.

    Args:
        best: of each share, as `Corpus.best` has it.
    """
    peer = PEERS[name]
    folder, seconds = corpus.kept(name, lambda folder: peer.build(corpus, folder))
    if seconds is not None:
        yield {"kind": "built", "peer": name, "num_items": corpus.num_items, "build_s": seconds}
    with ExitStack() as stack:
        search = peer.open(corpus, folder, stack)
        for share in SHARES:
            for beam in (EXACT, *BEAMS):
                search(corpus.queries[0], share, beam)
                took, found = one_by_one(search, corpus, share, beam)
                judged = recall(found, best[share][: len(found)])
                facts = {"peer": name, "num_items": corpus.num_items, "share": share, "ef_search": beam}
                yield {"kind": "peer", **facts, "recall": round(judged, 4), **percentiles(took)}


def one_by_one(search: Search, corpus: Corpus, share: float, beam: int | None) -> tuple[list[float], list[list[int]]]:
    """Seconds of the queries that begin within MOST_S, and the items that each found."""
    took, found, ends = list[float](), list[list[int]](), time.perf_counter() + MOST_S
    for query in corpus.queries:
        began = time.perf_counter()
        found.append(search(query, share, beam))
        took.append(time.perf_counter() - began)
        if began > ends:
            break
    return took, found
