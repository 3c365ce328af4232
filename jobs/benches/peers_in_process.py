"""Peers that search in the process that asks: FAISS, rails-ray, usearch, LanceDB and Milvus Lite."""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from jobs.benches.peers_setting import EF_CONSTRUCTION, K, Kind, M, Setting, Vectors

Search = Callable[[Vectors, int], Any]
"""Rows of the k best items [B, k] for queries [B, D], with a beam of ef_search where there is a graph."""

INSERTED = 5000  # rows at a time


class InProcess(Protocol):
    """A library that builds, and opens what it has built in another process.

    packages: what must be installed, as it is imported.
    kinds: what it has.
    """

    @property
    def packages(self) -> tuple[str, ...]: ...

    @property
    def kinds(self) -> tuple[Kind, ...]: ...

    def build(self, setting: Setting) -> None:
        """Write all vectors to the store, ready to be searched."""
        ...

    def open(self, setting: Setting) -> Search:
        """Open what was built."""
        ...


class Faiss:
    packages, kinds = ("faiss",), ("exact", "hnsw")

    def build(self, setting: Setting) -> None:
        import faiss

        faiss.write_index(faiss_index(setting), str(setting.store / "index"))

    def open(self, setting: Setting) -> Search:
        import faiss

        index = faiss.read_index(str(setting.store / "index"))
        if setting.kind == "exact":
            return lambda queries, ef_search: index.search(queries, K)[1]
        return lambda queries, ef_search: index.search(
            queries, K, params=faiss.SearchParametersHNSW(efSearch=ef_search)
        )[1]


def faiss_index(setting: Setting) -> Any:
    """An index of all vectors by inner product."""
    import faiss

    vectors = setting.vectors
    if setting.kind == "exact":
        index = faiss.IndexFlatIP(vectors.shape[1])
    else:
        index = faiss.IndexHNSWFlat(vectors.shape[1], M, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = EF_CONSTRUCTION
    index.add(vectors)
    return index


class Local:
    """rails-ray, as `local.open` searches it."""

    packages, kinds = ("rails_ray",), ("exact", "hnsw")

    def build(self, setting: Setting) -> None:
        build_version(setting)

    def open(self, setting: Setting) -> Search:
        from rails_ray import local

        version, options = local.open(str(setting.store)), method_of(setting)

        def search(queries: Vectors, ef_search: int) -> list[list[Any]]:
            found = version.search(queries, k=K, **options(ef_search))
            return [result.items or [] for result in found.results]

        return search


def build_version(setting: Setting) -> None:
    """Make a version of one shard: by the public door where it has no index, and else by the commands."""
    if setting.kind == "exact":
        from rails_ray import local

        local.build(np.load(setting.folder / "vectors.npy"), folder=str(setting.store))
        return
    from rails_ray.cli.main import main

    data, named = str(setting.store / "data"), ["--version", "v1", "--storage", str(setting.store)]
    graph = ["--index", "hnsw", "--hnsw-m", str(M), "--ef-construction", str(EF_CONSTRUCTION)]
    for words in (
        ["index", "import", str(setting.folder / "vectors.npy"), "--folder", data],
        ["encode", "--recipe", "vector-cosine", "--folder", data, "--shards", "1", *graph, *named],
        ["publish", *named],
    ):
        assert main(words) == 0


def method_of(setting: Setting) -> Callable[[int], dict[str, Any]]:
    """The fields of a request that choose how to search, by ef_search."""
    if setting.kind == "exact":
        return lambda ef_search: {"method": "brute_force"}
    return lambda ef_search: {"method": "ann", "num_candidates": K, "ef_search": ef_search}


class Usearch:
    """Exact searches read the array of vectors itself, which needs no index."""

    packages, kinds = ("usearch",), ("exact", "hnsw")

    def build(self, setting: Setting) -> None:
        if setting.kind == "hnsw":
            index = self._index(setting)
            index.add(np.arange(len(setting.vectors)), setting.vectors)
            index.save(str(setting.store / "index"))

    def open(self, setting: Setting) -> Search:
        if setting.kind == "exact":
            return self._exactly(np.load(setting.folder / "vectors.npy"))
        index = self._index(setting)
        index.load(str(setting.store / "index"))

        def search(queries: Vectors, ef_search: int) -> NDArray[Any]:
            index.expansion_search = ef_search
            return self._keys(index.search(queries, K), len(queries))

        return search

    def _exactly(self, vectors: Vectors) -> Search:
        from usearch.index import MetricKind, search

        return lambda queries, ef_search: self._keys(
            search(vectors, queries, K, MetricKind.IP, exact=True), len(queries)
        )

    def _index(self, setting: Setting) -> Any:
        from usearch.index import Index

        width = setting.vectors.shape[1]
        return Index(ndim=width, metric="ip", dtype="f32", connectivity=M, expansion_add=EF_CONSTRUCTION)

    def _keys(self, found: Any, num_queries: int) -> NDArray[Any]:
        return np.asarray(found.keys).reshape(num_queries, -1)


class Lance:
    packages, kinds = ("lancedb",), ("exact", "hnsw")

    def build(self, setting: Setting) -> None:
        import lancedb
        import pyarrow as pa

        vectors = setting.vectors
        column = pa.FixedSizeListArray.from_arrays(vectors.ravel(), vectors.shape[1])
        rows = pa.table({"id": np.arange(len(vectors)), "vector": column})
        table = lancedb.connect(str(setting.store)).create_table("items", rows)
        if setting.kind == "hnsw":
            table.create_index(
                metric="dot",
                index_type="IVF_HNSW_FLAT",
                num_partitions=1,
                m=M,
                ef_construction=EF_CONSTRUCTION,
            )

    def open(self, setting: Setting) -> Search:
        import lancedb

        table = lancedb.connect(str(setting.store)).open_table("items")

        def search(queries: Vectors, ef_search: int) -> NDArray[np.int64]:
            asking = table.search(queries if len(queries) > 1 else queries[0]).distance_type("dot").limit(K)
            if setting.kind == "hnsw":
                asking = asking.nprobes(1).ef(ef_search)
            found = asking.select(["id"]).to_arrow()
            return found["id"].to_numpy().reshape(len(queries), -1)

        return search


class Milvus:
    packages, kinds = ("pymilvus", "milvus_lite"), ("exact", "hnsw")

    def build(self, setting: Setting) -> None:
        client, vectors = self._client(setting), setting.vectors
        schema = client.create_schema(auto_id=False)
        self._add_fields(schema, vectors.shape[1])
        index = client.prepare_index_params()
        graph = {"M": M, "efConstruction": EF_CONSTRUCTION}
        kind, params = ("FLAT", {}) if setting.kind == "exact" else ("HNSW", graph)
        index.add_index("vector", index_type=kind, metric_type="IP", params=params)
        client.create_collection("items", schema=schema, index_params=index)
        for first in range(0, len(vectors), INSERTED):
            rows = enumerate(vectors[first : first + INSERTED], start=first)
            client.insert("items", [{"id": row, "vector": vector} for row, vector in rows])
        client.flush("items")
        client.close()

    def open(self, setting: Setting) -> Search:
        client = self._client(setting)
        client.load_collection("items")

        def search(queries: Vectors, ef_search: int) -> list[list[int]]:
            params = {} if setting.kind == "exact" else {"ef": ef_search}
            found = client.search("items", data=list(queries), limit=K, search_params={"params": params})
            return [[hit["id"] for hit in hits] for hits in found]

        return search

    def _client(self, setting: Setting) -> Any:
        from pymilvus import MilvusClient

        return MilvusClient(str(setting.store / "items.db"))

    def _add_fields(self, schema: Any, width: int) -> None:
        from pymilvus import DataType

        schema.add_field("id", DataType.INT64, is_primary=True)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=width)


IN_PROCESS: dict[str, InProcess] = {
    "faiss": Faiss(),
    "local": Local(),
    "usearch": Usearch(),
    "lancedb": Lance(),
    "milvus-lite": Milvus(),
}
