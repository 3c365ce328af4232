"""Indexes that the job builds: fitted once, built for each shard, opened without training, and told of in answers."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

from rails_ray import on_ray
from rails_ray.errors import DamagedError, UnsupportedError
from rails_ray.families import config as configs
from rails_ray.families import indexing
from rails_ray.families.training_family import training_family
from rails_ray.families.version import Version
from rails_ray.search.indexes.flat import FlatConfig
from rails_ray.search.indexes.hnsw import HnswConfig
from rails_ray.search.indexes.ivf import IvfConfig
from rails_ray.serving import local
from rails_ray.serving.shard_search import ShardSearch
from rails_ray.storage import manifest, runs
from rails_ray.storage.filesystem import Storage
from support.untrained_runs import published, write_runs

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("ray_cluster")]

KINDS = {
    "ivf": IvfConfig(nlist=4),
    "ivf sq8": IvfConfig(nlist=4, storage="sq8"),
    "hnsw": HnswConfig(M=8),
    "hnsw fp16": HnswConfig(M=8, storage="fp16"),
    "flat fp16": FlatConfig(storage="fp16"),
    "flat sq8": FlatConfig(storage="sq8"),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, ray_cluster: None) -> Path:
    """Storage with untrained runs: a mixture over texts, and a dot product over vectors."""
    folder = tmp_path_factory.mktemp("indexing")
    write_runs(folder)
    return folder


QUERIES = np.random.default_rng(5).standard_normal((20, 7)).tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_a_dot_product_is_searched_through_every_kind(root: Path, kind: str) -> None:
    """Its scores are those of brute force; more effort finds more; threshold search holds what it should."""
    version = published(root, "dot", f"dot-{kind.replace(' ', '-')}", index=KINDS[kind])
    best = version.search(QUERIES, 10, cutoff={"top_k": 10})
    most = {"nprobe": 4} if "ivf" in kind else {"ef_search": 400} if "hnsw" in kind else {}
    found = version.search(QUERIES, 10, method="ann", cutoff={"top_k": 10}, **most)
    shares = [len(set(a.items) & set(b.items)) / 10 for a, b in zip(found.results, best.results, strict=True)]
    assert np.mean(shares) >= 0.97
    for own, exact in zip(found.results, best.results, strict=True):
        known = dict(zip(exact.items, exact.scores, strict=True))
        assert all(
            abs(known.get(item, score) - score) < 1e-6 for item, score in zip(own.items, own.scores, strict=True)
        )

    score = best.results[0].scores[5]
    above = version.search(QUERIES, cutoff={"score": score}, method="ann", **most).results
    expected = version.search(QUERIES, cutoff={"score": score}).results
    assert sum(len(own.items) for own in above) >= 0.97 * sum(len(own.items) for own in expected)
    assert all(set(own.items) <= set(all_of.items) for own, all_of in zip(above, expected, strict=True))
    capped = version.search(QUERIES[:1], 3, cutoff={"score": score}, method="ann", **most).results[0]
    assert (len(capped.items), capped.is_truncated) == (3, True)

    some = version.search(QUERIES[:1], 3, method="ann", cutoff={"top_k": 3}, num_candidates=20, nprobe=1, ef_search=20)
    certificate = some.results[0].certificate
    if kind.startswith("flat"):
        assert certificate.gap is not None, "a scan of rounded vectors knows what it can have missed"
    else:
        assert not certificate.is_exact
        assert certificate.reason == f"candidates by an {kind.split()[0]} index, which may pass over any item"


@pytest.mark.parametrize("index_of", ["average", "components", "both"])
def test_a_mixture_takes_its_candidates_from_them(root: Path, index_of: str) -> None:
    version = published(root, "mixture", f"mixture-{index_of}", index=IvfConfig(nlist=3), index_of=index_of)
    entries = version.manifest.indexes
    names = {"average": ["average"], "components": ["component-0", "component-1"]}
    expected = names.get(index_of, [*names["average"], *names["components"]])
    assert sorted((entry.shard, entry.name) for entry in entries) == sorted(
        (shard, name) for shard in range(2) for name in expected
    )
    best = version.search(["red car", "hat"], 5, cutoff={"top_k": 5}).results
    for method in ("average", "per_embedding", "combined"):
        found = version.search(
            ["red car", "hat"], 5, method=method, nprobe=3, num_candidates=60, cutoff={"top_k": 5}
        ).results
        assert [own.items for own in found] == [own.items for own in best]
        widths = {"num_candidates": 6, "num_per_embedding": 5, "nprobe": 1}
        some = version.search(["red car"], 5, method=method, cutoff={"top_k": 5}, **widths).results[0]
        is_asked = "average" in expected if method == "average" else "component-0" in expected
        if method == "combined":
            is_asked = index_of != "average"  # the scan of components still knows what it passed over
        assert ("ivf index" in str(some.certificate.reason)) == is_asked or method == "average"
    with pytest.raises(ValueError, match=r"method must be one of .* got 'ann'"):
        version.search(["red"], method="ann")


def test_the_same_items_give_the_same_indexes_and_what_is_missing_is_made(root: Path) -> None:
    made = [
        on_ray.encode(str(root), "dot", version=name, part_items=64, stored={"index": KINDS["hnsw"]})
        for name in ("again-1", "again-2")
    ]
    assert made[0].indexes == made[1].indexes
    folder = root / "versions" / "again-2"
    (folder / "encoded.json").unlink()
    (folder / "indexes" / "shard-001-average.json").unlink()
    assert (
        on_ray.encode(str(root), "dot", version="again-2", part_items=64, stored={"index": KINDS["hnsw"]}).indexes
        == made[0].indexes
    )


def test_plain_faiss_opens_an_index(root: Path) -> None:
    version = published(root, "dot", "plain", index=IvfConfig(nlist=4))
    entry = version.manifest.indexes[0]
    index = faiss.read_index(str(root / entry.path))
    store = Storage(str(root))
    vectors = np.concatenate([block for _, block in Version(store, version.manifest).vectors().blocks])
    assert index.ntotal == version.manifest.shard_items[0]
    index.nprobe = 4
    _, rows = index.search(vectors[:50], 1)
    assert (rows[:, 0] == np.arange(50)).all()


def test_a_version_of_another_shape(root: Path) -> None:
    """An index that is not of these items is told when it is loaded, even if the manifest names it."""
    version = published(root, "dot", "wrong", index=IvfConfig(nlist=4))
    store, entry = Storage(str(root)), version.manifest.indexes[0]
    other = manifest.write_object(store, faiss.serialize_index(faiss.IndexFlatIP(3)).tobytes())
    named = replace(version.manifest, indexes=[replace(entry, path=other.path, sha256=other.sha256)])
    with pytest.raises(DamagedError, match="index average of shard 0 must hold 200 items of 6 numbers, got 0 of 3"):
        ShardSearch(Version(store, named), 0)
    path = root / entry.path
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(DamagedError, match="must have the sha256 of its manifest"):
        local.open(str(root), "wrong")
    path.write_bytes(whole)


@pytest.mark.parametrize(
    ("run", "stored", "message"),
    [
        ("dot", {"index": IvfConfig(nlist=1000)}, "nlist must be at most the 400 items of the sample, got 1000"),
        ("dot", {"index": "ivf"}, "index"),
        ("mixture", {"dtype": "int3"}, "dtype"),
        ("dot", {"keep_texts": True}, "keep_texts needs items with texts, got run 'dot' of .*, whose items have none"),
        ("dot", {"surrogate": {"kind": "ridge"}}, "surrogate must stand for a mixture of several components"),
        ("mixture", {"surrogate": {"width": 0}}, "width must be at least 1, got 0"),
        ("mixture", {"index_of": "components"}, "index_of must be given with an index, got flat in fp32"),
    ],
)
def test_indexes_that_cannot_be(root: Path, run: str, stored: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        on_ray.encode(str(root), run, version="cannot-be", stored=stored)
    assert not (root / "versions" / "cannot-be").exists(), "it must be told before anything is encoded"


def test_without_faiss(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version without an index needs none; one with an index says so."""
    plain = published(root, "dot", "no-index")
    published(root, "dot", "with-index", index=IvfConfig(nlist=4))

    def missing() -> None:
        raise UnsupportedError("an index of FAISS needs the package faiss, which is not installed")

    for module in ("faiss_index", "faiss_building"):
        monkeypatch.setattr(f"rails_ray.search.indexes.{module}.faiss_library", missing)
    assert plain.search(QUERIES[:1], 3).results
    assert local.open(str(root), "no-index").search(QUERIES[:1], 3).results
    with pytest.raises(UnsupportedError, match="needs the package faiss"):
        local.open(str(root), "with-index")
    with pytest.raises(UnsupportedError, match="needs the package faiss"):
        on_ray.encode(str(root), "dot", stored={"index": IvfConfig()})


@pytest.mark.parametrize("index", [None, IvfConfig(nlist=4), FlatConfig(storage="sq8")], ids=["none", "ivf", "sq8"])
def test_a_surrogate_finds_candidates_of_a_mixture(root: Path, index: Any) -> None:
    """Scanned, or in an index of its own."""
    stored = {"surrogate": {"kind": "ridge", "width": 20}} | ({} if index is None else {"index": index})
    made = published(root, "mixture", f"surrogate-{'none' if index is None else index.kind}", **stored)
    names = {entry.name for entry in made.manifest.indexes}
    assert names == (set() if index is None else {"average", "surrogate"})
    best = made.search(["red car", "hat"], 5)
    few = made.search(["red car", "hat"], 5, method="surrogate", num_candidates=20, nprobe=4 if names else None)
    every = made.search(["red car", "hat"], 5, method="surrogate", num_candidates=200, nprobe=4 if names else None)
    for one, some, exact in zip(every.results, few.results, best.results, strict=True):
        assert one.items == exact.items
        assert len(set(some.items) & set(exact.items)) >= 2
        assert some.certificate.reason is not None
    with pytest.raises(ValueError, match=r"method must be one of .*, got 'surrogate'"):
        published(root, "mixture", "no-surrogate").search(["hat"], 5, method="surrogate")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_items_work_in_every_method(root: Path, dtype: str) -> None:
    """And are half as large."""
    for run, queries in (("dot", QUERIES[:3]), ("mixture", ["red car", "hat"])):
        wide, narrow = published(root, run, f"{run}-wide"), published(root, run, f"{run}-{dtype}", dtype=dtype)
        assert narrow.manifest.state.dtypes["components"] == dtype
        assert json.loads((root / "versions" / f"{run}-{dtype}" / "config.json").read_bytes())["family"]["items"] == {
            "kind": "full",
            "dtype": dtype,
        }
        expected = wide.search(queries, 60, cutoff={"top_k": 60}).results
        for method in narrow.shards[0].searcher.methods:
            found = narrow.search(queries, 60, method=method, num_candidates=400, cutoff={"top_k": 60}).results
            for own, exact in zip(found, expected, strict=True):
                known = dict(zip(exact.items, exact.scores, strict=True))
                both = [
                    (score, known[item]) for item, score in zip(own.items, own.scores, strict=True) if item in known
                ]
                assert len(both) >= 55
                assert np.allclose(*zip(*both, strict=True), atol=0.02)
        explained = narrow.explain(queries[0], expected[0].items[:2])
        assert abs(explained.items[0].score - expected[0].scores[0]) < 0.02


@pytest.mark.parametrize(("num_parts", "num_items"), [(1, 100), (4, 100), (64, 100), (1, 1000)])
def test_an_index_is_fitted_to_a_sample_of_many_parts(
    root: Path, num_parts: int, num_items: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many parts as hold the sample's items, or more of them, and all items of a small corpus; none twice."""
    store, version = Storage(str(root)), f"sample-{num_parts}-{num_items}"
    described = on_ray.encode(str(root), "dot", version=version, num_shards=2, part_items=32)
    own = training_family(configs.from_json(runs.read(store, "dot").config))
    monkeypatch.setattr(indexing, "SAMPLE_ITEMS", num_items)
    monkeypatch.setattr(indexing, "SAMPLE_PARTS", num_parts)
    read = list[int]()
    one_part = indexing.read_part
    monkeypatch.setattr(indexing, "read_part", lambda *given: read.append(given[2].num_items) or one_part(*given))
    rows = [tuple(row) for row in indexing.sample(store, described, own, "average").tolist()]
    total = sum(described.shard_items)
    assert len(set(rows)) == len(rows)
    assert min(num_items, total) <= len(rows) <= num_items + len(read)
    assert len(read) >= min(num_parts, len(described.parts))
    assert sum(read) >= min(num_items, total)
    if num_parts == 1 and num_items < total:
        assert len(read) < len(described.parts)
