"""Filters and included items: a search finds what it would find if there were no other items."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
import torch
from torch import Tensor

from oracles.filters import passes
from rails_ray.families import calibrations
from rails_ray.modules.similarities.states import ItemState, QueryState
from rails_ray.schema.responses import SearchResponse
from rails_ray.search.indexes.faiss_index import IvfConfig
from rails_ray.search.methods.brute_force import BruteForce
from rails_ray.search.methods.on_gpu import GpuScan
from rails_ray.serving import local
from rails_ray.serving.local import LocalVersion
from rails_ray.serving.shard_search import ShardSearch
from rails_ray.storage.filesystem import Storage
from support.attributes import KINDS, WIDTH, built, random_items, with_attributes
from support.calibrations import STORED
from support.examples import publish_here
from support.gpu_copies import note_copies

NUM_TEXTS = 60
FILTERS: dict[str, dict[str, Any]] = {
    "most": {"price": {"$exists": True}},
    "half": {"price": {"$lt": 10}},
    "few": {"lang": "fr", "tags": "a", "year": {"$gte": 2005}},
    "none": {"year": 1},
}
each_filter = pytest.mark.parametrize("filter", FILTERS.values(), ids=FILTERS)
each_way = pytest.mark.parametrize("is_gathered", [False, True], ids=["hidden", "gathered"])
QUERIES = np.random.default_rng(5).standard_normal((4, WIDTH)).astype(np.float32)
Attributes = list[dict[str, Any]]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> tuple[LocalVersion, Attributes]:
    """A mixture over texts in two shards, calibrated."""
    folder, items = tmp_path_factory.mktemp("texts"), random_items(NUM_TEXTS)
    publish_here(folder)
    calibrations.write(Storage(str(folder)), "v1", STORED)
    with_attributes(Storage(str(folder)), items)
    return local.open(str(folder)), items


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> tuple[LocalVersion, Attributes]:
    return built(tmp_path_factory.mktemp("vectors"))


def ids_of(version: LocalVersion) -> list[Any]:
    return list(version.version.item_ids())


def choose(monkeypatch: pytest.MonkeyPatch, shard: ShardSearch, is_gathered: bool) -> None:
    """Have a shard search what a filter leaves in one of the two ways."""
    monkeypatch.setattr(shard.searcher, "gathers", lambda *_: is_gathered)


def same_lists(found: SearchResponse, other: SearchResponse) -> None:
    """The same items with the same scores, and the same said of them."""
    for own, expected in zip(found.results, other.results, strict=True):
        assert own.items == expected.items
        assert own.scores == pytest.approx(expected.scores, abs=1e-6)
        assert own.threshold == (None if expected.threshold is None else pytest.approx(expected.threshold, abs=1e-6))
        for name in ("titles", "num_kept", "num_searched", "is_truncated", "is_short", "certificate"):
            assert own[name] == expected[name], name


@each_filter
@each_way
@pytest.mark.parametrize("method", ["brute_force", "two_pass", "per_embedding", "average", "combined", "gated"])
def test_every_method_of_a_mixture(
    texts: tuple[LocalVersion, Attributes],
    filter: dict[str, Any],
    is_gathered: bool,
    method: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    version, items = texts
    for shard in version.shards:
        choose(monkeypatch, shard, is_gathered)
    left = {own for own, item in zip(ids_of(version), items, strict=True) if passes(filter, item)}
    queries = ["red", "blue hat"]
    every = version.search(queries, k=NUM_TEXTS).results
    found = version.search(queries, k=5, cutoff={"top_k": 5}, filter=filter, method=method, num_candidates=NUM_TEXTS)
    assert found.method == method
    assert found.is_exact
    for own, whole in zip(found.results, every, strict=True):
        best = [(item, score) for item, score in zip(whole.items, whole.scores, strict=True) if item in left]
        assert own.items == [item for item, _ in best[:5]]
        assert own.scores == pytest.approx([score for _, score in best[:5]], abs=1e-6)
        assert (own.num_searched, own.is_short) == (len(left), False)


@each_filter
def test_a_gpu_that_scores_by_a_list_of_rows(
    texts: tuple[LocalVersion, Attributes], filter: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    version, how = texts[0], {"k": 5, "filter": filter, "method": "brute_force"}
    queries = [{"text": "red"}, {"text": "blue hat", "exclude": ids_of(version)[:9]}]
    expected, listed = version.search(queries, **how), list[int]()
    for shard in version.shards:
        searcher: Any = shard.searcher

        def fast(
            query: QueryState, items: ItemState, rows: Tensor | None, scan: BruteForce = searcher.brute_force
        ) -> Tensor:
            listed.append(0 if rows is None else len(rows))
            return scan.similarity.scores(query, items if rows is None else items.taken(rows)) + 1e-5

        monkeypatch.setattr(searcher, "exact", GpuScan(searcher.brute_force, fast))
    same_lists(version.search(queries, **how), expected)
    assert filter != FILTERS["few"] or sum(listed) == expected.results[0].num_searched


@each_way
def test_what_a_request_brings_to_a_gpu_is_sent_without_a_wait(
    texts: tuple[LocalVersion, Attributes], is_gathered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    version, how = texts[0], {"k": 5, "filter": FILTERS["half"], "cutoff": {"score": 0.0}}
    queries = [{"text": "red"}, {"text": "blue hat", "exclude": ids_of(version)[:9]}]
    for shard in version.shards:
        choose(monkeypatch, shard, is_gathered)
    expected, copies = version.search(queries, **how), note_copies(monkeypatch)
    for shard in version.shards:
        searcher: Any = shard.searcher
        monkeypatch.setattr(searcher, "exact", GpuScan(searcher.brute_force, None))
        monkeypatch.setattr(shard, "device", "cuda")
    monkeypatch.setattr(GpuScan, "device", torch.device("cuda"))  # which takes the rows of a list
    same_lists(version.search(queries, **how), expected)
    # of each shard: components, gates and temperatures of queries, thresholds, and the rows that a filter leaves
    assert copies == [(True, True)] * len(version.shards) * (5 if is_gathered else 4)


@each_filter
@pytest.mark.parametrize("index", ["flat", "ivf", "hnsw"])
@each_way
def test_every_index_of_vectors(
    tmp_path: Path, index: str, is_gathered: bool, filter: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    version, items = built(tmp_path, 400, index)
    choose(monkeypatch, version.shards[0], is_gathered)
    left = [row for row, item in enumerate(items) if passes(filter, item)]
    every = version.search(QUERIES, k=400).results
    found = version.search(QUERIES, k=7, method="ann", filter=filter)
    for own, whole in zip(found.results, every, strict=True):
        best = [item for item in whole.items if item in left]
        assert len(own.items) == min(7, len(left))
        assert not own.is_short
        assert set(own.items) <= set(left)
        if index == "flat" or is_gathered:
            assert own.items == best[:7]
            assert own.certificate.is_exact
    assert found.is_exact or (index != "flat" and not is_gathered and len(left) > 0)


@each_way
def test_items_without_a_direction_that_pass_come_last(
    tmp_path: Path, is_gathered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside such that do not pass, and where nothing else passes."""
    rows = np.random.default_rng(0).standard_normal((40, WIDTH)).astype(np.float32)
    rows[[3, 8, 20, 30]] = 0
    local.build(rows, folder=str(tmp_path), zero_vectors="keep")
    items: Attributes = [dict.fromkeys(KINDS) | {"year": row % 4 + 10 * (row in (8, 20))} for row in range(40)]
    with_attributes(Storage(str(tmp_path)), items)
    version = local.open(str(tmp_path))
    choose(monkeypatch, version.shards[0], is_gathered)
    every = version.search(QUERIES, k=40).results
    for filter, last in (({"year": {"$in": [3, 10]}}, [3, 8, 20]), ({"year": 10}, [8, 20])):
        left = [row for row, item in enumerate(items) if passes(filter, item)]
        for own, whole in zip(version.search(QUERIES, k=40, filter=filter).results, every, strict=True):
            assert own.items == [item for item in whole.items if item in left]
            assert own.items[-len(last) :] == last
            assert (own.num_searched, own.certificate.is_exact) == (len(left), True)


@each_way
@pytest.mark.parametrize("index", ["flat", "ivf"])
def test_excluded_items_beside_a_filter(
    tmp_path: Path, index: str, is_gathered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some excluded items do not pass the filter. Some lie before, and some behind, all items that do."""
    version, items = built(tmp_path, 200, index)
    choose(monkeypatch, version.shards[0], is_gathered)
    left = [row for row, item in enumerate(items) if passes(FILTERS["half"], item)]
    out = [[], [0, 1, 2, 3, 199], left[:3], [left[0], left[-1], 198]]
    queries = [{"embedding": query, "exclude": own} for query, own in zip(QUERIES.tolist(), out, strict=True)]
    every = version.search(QUERIES, k=200).results
    found = version.search(queries, k=200, filter=FILTERS["half"], method="brute_force").results
    for own, whole, excluded in zip(found, every, out, strict=True):
        assert own.items == [item for item in whole.items if item in left and item not in excluded]


CUTOFFS: list[dict[str, float]] = [
    {"nucleus": 0.4},
    {"probability": 0.02},
    {"mass": 0.9},
    {"coverage": 0.9},
    {"score": 0.1},
    {"top_k": 3},
    {"score": 0.99, "min_items": 2},
]


@each_filter
@pytest.mark.parametrize("cutoff", CUTOFFS, ids=str)
def test_every_cut_off_is_that_of_the_items_that_pass(
    texts: tuple[LocalVersion, Attributes], filter: dict[str, Any], cutoff: dict[str, float]
) -> None:
    """As if the others were excluded one by one, or these alone were included."""
    version, items = texts
    left, out = list[Any](), list[Any]()
    for own, item in zip(ids_of(version), items, strict=True):
        (left if passes(filter, item) else out).append(own)
    found = version.search(["red", "hat"], cutoff=cutoff, filter=filter)
    same_lists(found, version.search([{"text": text, "exclude": out} for text in ("red", "hat")], cutoff=cutoff))
    same_lists(found, version.search([{"text": text, "include": left} for text in ("red", "hat")], cutoff=cutoff))
    if not left:
        assert [(own.items, own.num_kept, own.num_searched, own.is_short) for own in found.results] == [
            ([], 0, 0, False)
        ] * 2
        assert found.is_exact


def test_included_items_of_each_query(vectors: tuple[LocalVersion, Attributes]) -> None:
    """Beside queries that include all, exclude some of them, and name what nobody knows; the numbers are counted."""
    version, items = vectors
    vector = QUERIES[0].tolist()
    queries = [
        {"embedding": vector, "include": [3, 5, 150, 150, 9999]},
        {"embedding": vector},
        {"embedding": vector, "include": [3, 5, 7], "exclude": [5, 6]},
        {"embedding": vector, "include": []},
        {"embedding": vector, "include": ["3", "nowhere"]},
    ]
    best = version.search([vector], k=200).results[0].items
    found = version.search(queries, k=4).results
    for own, left in zip(found, [[3, 5, 150], best, [3, 7], [], [3]], strict=True):
        assert own.items == [item for item in best if item in left][:4]
        assert own.num_searched == len(left)
        assert own.certificate.is_exact
    assert [own.num_unknown_included for own in found] == [1, None, 0, 0, 1]
    assert [own.num_unknown_excluded for own in found] == [0] * 5
    filtered = version.search(queries, k=4, filter=FILTERS["half"]).results
    for own, left in zip(filtered, [[3, 5, 150], best, [3, 7], [], [3]], strict=True):
        some = [item for item in best if item in left and passes(FILTERS["half"], items[item])]
        assert (own.items, own.num_searched) == (some[:4], len(some))


def test_thresholds_go_with_their_queries(texts: tuple[LocalVersion, Attributes]) -> None:
    """In a batch whose queries include different items, each by a threshold of its own."""
    version, _ = texts
    ids = ids_of(version)
    queries = [{"text": "red", "include": ids[:40]}, {"text": "hat"}, {"text": "blue", "include": ids[20:]}]
    for cutoff in CUTOFFS:
        together = version.search(queries, cutoff=cutoff)
        for own, query in zip(together.results, queries, strict=True):
            [alone] = version.search([query], cutoff=cutoff).results
            assert own.items == alone.items
            assert own.scores == pytest.approx(alone.scores, abs=1e-6)


def test_attributes_in_answers(
    vectors: tuple[LocalVersion, Attributes], texts: tuple[LocalVersion, Attributes]
) -> None:
    for (version, items), queries in ((vectors, QUERIES), (texts, ["red", "hat"])):
        of_id = dict(zip(ids_of(version), items, strict=True))
        for own in version.search(queries, k=9, fields=["price", "tags", "at"]).results:
            assert own.fields is not None
            assert [set(one) for one in own.fields] == [{"price", "tags", "at"}] * 9
            for item, one in zip(own.items, own.fields, strict=True):
                at = of_id[item]["at"]
                assert (one["price"], one["tags"]) == (of_id[item]["price"], of_id[item]["tags"])
                assert one["at"] == (None if at is None else at.isoformat().replace("+00:00", "Z"))
        assert version.search(queries, k=9).results[0].fields is None


def test_an_expression(vectors: tuple[LocalVersion, Attributes]) -> None:
    version, _ = vectors
    expression = (pc.field("price") < 10) & (pc.field("lang") == "fr")
    found = version.search(QUERIES, k=5, filter=expression)
    same_lists(found, version.search(QUERIES, k=5, filter={"price": {"$lt": 10}, "lang": "fr"}))
    with pytest.raises(ValueError, match="filter must be an expression of booleans over the columns lang, price"):
        version.search(QUERIES, filter=pc.field("colour") == 1)


def test_the_index_says_what_filters_may_name(vectors: tuple[LocalVersion, Attributes]) -> None:
    assert vectors[0].index()["attributes"] == KINDS


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"filter": {"colour": 1}}, r"filter must name attributes of the version, lang, price, .*, got 'colour'"),
    (
        {"filter": {"price": {"$lt": "a"}}},
        r"filter.price.\$lt must be a number, as the column is of type float, got 'a'",
    ),
    ({"filter": 3}, "filter must be a JSON object, got 3"),
    ({"filter": {"$and": []}}, r"filter.\$and must be a list of at least one filter, got \[\]"),
    ({"fields": ["price", "size"]}, r"fields\[1\] must be one of the version's attributes, lang, .*, got 'size'"),
]


@pytest.mark.parametrize(("options", "sentence"), WRONG)
def test_what_does_not_fit_is_refused(
    vectors: tuple[LocalVersion, Attributes], options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        vectors[0].search(QUERIES, **options)


def test_a_version_without_attributes_takes_neither() -> None:
    version = local.build(QUERIES)
    with pytest.raises(
        ValueError, match="filter must be left out for a version whose items have no attributes, got 'p'"
    ):
        version.search(QUERIES, filter={"p": 1})
    with pytest.raises(ValueError, match=r"fields\[0\] must be left out for a version whose items have no attributes"):
        version.search(QUERIES, fields=["p"])
    with pytest.raises(
        ValueError, match="filter must be left out for a version whose items have no attributes, got one"
    ):
        version.search(QUERIES, filter=pc.field("p") == 1)
    assert version.index()["attributes"] == {}
    assert version.search(QUERIES, k=2, filter={}) == version.search(QUERIES, k=2)


def test_calibration_says_nothing_of_what_a_filter_leaves(texts: tuple[LocalVersion, Attributes]) -> None:
    version, _ = texts
    queries = [{"text": "red"}, {"text": "red", "include": ids_of(version)[:30]}]

    def said(**options: Any) -> list[bool | None]:
        return [own.is_calibrated for own in version.search(queries, **options).results]

    assert said(cutoff={"coverage": 0.9}) == [True, False]
    assert said(cutoff={"coverage": 0.9}, filter=FILTERS["half"]) == [False, False]
    assert said(cutoff={"top_k": 3}, filter=FILTERS["half"]) == [None, None]


def test_feedback_on_a_filtered_search_is_no_coverage(texts: tuple[LocalVersion, Attributes]) -> None:
    version, _ = texts
    relevant, cutoff = [["item-1", "item-2"]], {"coverage": 0.9}
    before = version.index()["feedback"]
    judged = version.feedback(["red"], relevant, cutoff=cutoff, filter=FILTERS["none"])
    assert judged.kept == [[False, False]]
    assert version.index()["feedback"] == before
    version.feedback(["red"], relevant, cutoff=cutoff)
    assert version.index()["feedback"] != before


def test_a_shard_that_is_not_there_counts_nothing(texts: tuple[LocalVersion, Attributes]) -> None:
    version, _ = texts
    engine, query = version.engine, [{"text": "red", "include": ["item-1", "nowhere"]}]
    request = local._read(local.SearchRequest, {"queries": query, "min_coverage": 0.1, "k": 3})
    rounds = engine.search(request)
    step: Any = next(rounds)
    first: ShardSearch = version.shards[0]
    with pytest.raises(StopIteration) as end:
        rounds.send([first.search(*step.arguments), TimeoutError()])
    [result] = end.value.value.results
    assert (result.num_unknown_included, result.num_unknown_excluded) == (None, None)


@pytest.mark.parametrize("method", ["average", "per_embedding", "ann"])
def test_what_an_approximate_search_finds_does_not_depend_on_the_queries_beside(tmp_path: Path, method: str) -> None:
    generator = np.random.default_rng(0)
    points, queries = generator.standard_normal((2000, 16)), generator.standard_normal((32, 16))
    part = {"group": (np.arange(2000) % 10).tolist()}
    version = local.build(points, attributes=part, index=IvfConfig(nlist=40), folder=str(tmp_path))
    options: dict[str, Any] = {"k": 10, "method": method, "filter": {"group": {"$lt": 7}}}
    together = version.search(queries, **options).results
    alone = [version.search(queries[number : number + 1], **options).results[0] for number in range(32)]
    assert [own.items for own in together] == [own.items for own in alone]
    assert [own.certificate.is_exact for own in together] == [own.certificate.is_exact for own in alone]
    assert not all(own.certificate.is_exact for own in alone)
