"""A budget beside a filter, or items that are included: the ranker sees what passes, and nothing else."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oracles.filters import passes
from rails_ray.families.config import DataConfig
from rails_ray.families.encoding import EncodeOptions, encode
from rails_ray.families.in_process import InProcess
from rails_ray.storage import versions
from rails_ray.storage.filesystem import Storage
from support.attributes import random_items, with_attributes
from support.budgets import Counted, opened
from support.data_folders import write_text_data
from support.examples import small_config, write_untrained_run
from support.published_rbe import write_rbe_run
from support.ranked import by_pairs, write_scored_data

FILTER = {"price": {"$lt": 10}}
QUERIES = ["red hat", "blue"]


def of_dot_products(folder: Path) -> Path:
    data = write_text_data(folder / "data")
    write_untrained_run(
        Storage(str(folder)), "r", replace(small_config("dot product"), data=DataConfig(folder=str(data)))
    )
    return data


def of_rbe(folder: Path) -> Path:
    data = write_scored_data(folder / "data")
    write_rbe_run(folder, data, "r")
    return data


@pytest.mark.parametrize(("run", "rounds"), [(of_dot_products, 1), (of_dot_products, 3), (of_rbe, 1)])
def test_the_ranker_scores_what_passes(run: Callable[[Path], Path], rounds: int, tmp_path: Path) -> None:
    run(tmp_path)
    storage = Storage(str(tmp_path))
    stored = {} if run is of_rbe else {"keep_texts": True}
    encoded = encode(InProcess(), str(tmp_path), "r", EncodeOptions(version="v1", num_shards=2, stored=stored))
    versions.publish(storage, encoded, "2026-01-01T00:00:00Z")
    items = random_items(encoded.num_items)
    with_attributes(storage, items)
    version, ranker = opened(tmp_path)
    texts = dict[Any, str]()
    for part in version.version.parts():
        texts |= dict(zip(part["item_id"].to_pylist(), part["text"].to_pylist(), strict=True))
    left = [item for item, own in zip(texts, items, strict=True) if passes(FILTER, own)]
    calls = len(texts) + len(version.engine.ranking.supports)
    budget = {"calls": calls, "rounds": rounds}

    def assert_ranked(found: Any, among: list[Any]) -> None:
        for query, own in zip(QUERIES, found.results, strict=True):
            scores = by_pairs({"text": query}, candidates_of(texts, among))
            best = sorted(zip(scores, among, strict=True), key=lambda pair: -pair[0])[:4]
            assert own.scores == pytest.approx([score for score, _ in best])
            assert set(own.items) <= set(among)
            assert own.fields == [{"price": items[list(texts).index(item)]["price"]} for item in own.items]
            assert own.num_searched == len(among)
            assert own.budget.is_reranked
            assert own.certificate.is_exact

    assert_ranked(version.search(QUERIES, k=4, budget=budget, filter=FILTER, fields=["price"]), left)
    assert_seen(ranker, version.engine.ranking.supports, left)
    several = [{"text": QUERIES[0], "include": left[:9]}, {"text": QUERIES[1], "include": left[:9]}]
    assert_ranked(version.search(several, k=4, budget=budget, fields=["price"]), left[:9])
    several = [{"text": QUERIES[0], "include": left[:7]}, {"text": QUERIES[1], "include": left[3:]}]
    found = version.search(several, k=4, budget=budget).results
    assert [own.num_searched for own in found] == [7, len(left) - 3]
    assert set(found[0].items) <= set(left[:7])
    assert set(found[1].items) <= set(left[3:])


def assert_seen(ranker: Counted, supports: Any, left: list[Any]) -> None:
    known = {support.item_id for support in supports}
    seen = {item for _, own in ranker.calls for item in own}
    assert seen - known == set(left) - known


def candidates_of(texts: dict[Any, str], among: list[Any]) -> list[Any]:
    from rails_ray.reranking.rankers import RankerCandidates

    return [*RankerCandidates(among, [texts[item] for item in among])]
