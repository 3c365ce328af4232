"""A budget before versions that are none of RBE, and a mixture as the ranker behind one that is."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from rails_ray import on_ray
from rails_ray.cli.main import EXIT_BAD_ARGUMENT, EXIT_FAILED, main
from rails_ray.data.dataset import Texts
from rails_ray.data.encoding import encode_items
from rails_ray.errors import UnsupportedError
from rails_ray.families.config import DataConfig
from rails_ray.families.training_family import training_family
from rails_ray.reranking.rankers import candidates_of
from rails_ray.reranking.rankers.calling import ranker_of
from rails_ray.schema.ranker import RankerConfig
from rails_ray.serving import local
from rails_ray.storage import runs
from rails_ray.storage.filesystem import Storage
from support.budgets import QUERIES, opened
from support.data_folders import write_text_data
from support.examples import publish_untrained, small_config, write_untrained_run
from support.published_rbe import write_rbe_run
from support.ranked import by_pairs, small_rbe_config, write_scored_data

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("ray_cluster")]


def test_a_plain_dual_encoder_is_reranked(tmp_path: Path) -> None:
    publish_untrained(tmp_path, write_text_data(tmp_path / "data"))
    on_ray.encode(str(tmp_path), "of-v1", version="texts", stored={"keep_texts": True})
    on_ray.publish(str(tmp_path), "texts")
    version, ranker = opened(tmp_path)
    assert version.facts["takes_budget"]
    assert not local.open(str(tmp_path)).facts["takes_budget"]  # no ranker
    assert not local.open(str(tmp_path), "v1", ranker=by_pairs).facts["takes_budget"]  # no texts
    answer = version.search(["red hat"], k=5, budget={"calls": 60})
    assert answer.results[0].scores[0] == 1.0
    assert ranker.num_pairs == 60
    for vector in ([0.1] * 6, [0.1] * 16):
        with pytest.raises(ValueError, match=r"queries\[0\] must be given by text beside a budget, got embedding"):
            version.search([{"embedding": vector}], k=5, budget={"calls": 60})
    with pytest.raises(ValueError, match=r"budget.rounds must be 1 for version texts, whose items are not one vector"):
        version.search(["red hat"], k=5, budget={"calls": 60, "rounds": 2})
    with pytest.raises(UnsupportedError, match="a budget needs a version that keeps its items' texts, got version v1"):
        local.open(str(tmp_path), "v1", ranker=by_pairs).search(["red hat"], budget={"calls": 60})
    with pytest.raises(UnsupportedError, match="a budget needs a heavy ranker, got none"):
        local.open(str(tmp_path)).search(["red hat"], budget={"calls": 60})


# A dot product, whose scores are in other units than the ranker's


def in_units(scale: float, level: float) -> Callable[..., list[float]]:
    return lambda query, candidates: [scale * score + level for score in by_pairs(query, candidates)]


@pytest.mark.parametrize(("scale", "level"), [(1, 0), (1, -5), (1, 5), (10, 0), (0.1, 0), (10, -50), (0.1, 5)])
def test_rounds_find_what_one_round_does_not_whatever_the_rankers_units(
    dot_products: Path, scale: float, level: float
) -> None:
    """The ranker's scores are inner products with vectors of its own, some way from the queries'."""
    version, _ = opened(dot_products)
    vectors = {
        item_id: vector
        for shard in version.shards
        for item_id, vector in zip(shard.items.item_ids, shard.items.state.components[:, 0].numpy(), strict=True)
    }
    own = version.engine.encoder([{"text": text} for text in QUERIES], [None] * 3).state.vectors().numpy()
    moved = own + 0.6 * np.random.default_rng(0).standard_normal(own.shape)
    moved = dict(zip(QUERIES, moved, strict=True))

    def rank(query: Any, candidates: Any) -> list[float]:
        return [scale * float(vectors[one.item_id] @ moved[query["text"]]) + level for one in candidates]

    version, ranker = opened(dot_products, rank)
    num_found = []
    for rounds in (1, 3):
        ranker.calls.clear()
        results = version.search(QUERIES, k=8, budget={"calls": 24, "rounds": rounds}).results
        assert ranker.num_pairs == 24 * len(QUERIES)
        best = [sorted(vectors, key=lambda item_id: -float(vectors[item_id] @ moved[text]))[:8] for text in QUERIES]
        num_found.append(sum(len({*items} & {*result.items}) for items, result in zip(best, results, strict=True)))
    assert num_found[0] < num_found[1] == 8 * len(QUERIES)


def test_rounds_over_shards_fit_a_level_and_a_scale(dot_products: Path) -> None:
    """a, b, v = argmin |a + b u0_A + E_A v - s_A|^2 + lambda |v|^2, and the best by b u0 + E v next."""
    version, ranker = opened(dot_products, in_units(10, -50))
    version.search(["red hat"], k=5, budget={"calls": 60, "rounds": 4})
    assert [len(item_ids) for _, item_ids in ranker.calls] == [15] * 4
    query = version.engine.encoder([{"text": "red hat"}], [None]).state.vectors()[0].double().numpy()
    shards = [shard.items for shard in version.shards]
    vectors = np.concatenate([items.state.components[:, 0].double().numpy() for items in shards])
    item_ids = [item_id for items in shards for item_id in items.item_ids]
    texts = [text.as_py() for items in shards for text in items.texts]
    start, said = vectors @ query, np.array(in_units(10, -50)({"text": "red hat"}, candidates_of(item_ids, texts)))
    known, estimated = list[int](), start
    for _, asked in ranker.calls:
        left = sorted(set(range(len(item_ids))) - set(known), key=lambda row: -estimated[row])
        assert {item_ids[row] for row in left[:15]} == set(asked)
        known += left[:15]
        ridge = 0.1  # vectors of length 1
        rows = np.column_stack([np.ones(len(known)), start[known], vectors[known]])
        penalty = np.diag([0, 0, *[ridge] * len(query)])
        _, scale, *correction = np.linalg.solve(rows.T @ rows + penalty, rows.T @ said[known])
        assert scale > 0
        estimated = scale * start + vectors @ np.array(correction)


def test_equal_queries_of_a_request_are_reranked_once(dot_products: Path) -> None:
    version, ranker = opened(dot_products)
    best = version.search(["red hat"], k=5, budget={"calls": 30}).results[0]
    ranker.calls.clear()
    queries = ["red hat", "blue", "red hat", {"text": "red hat", "exclude": best.items}]
    answer = version.search(queries, k=5, budget={"calls": 30})
    assert ranker.num_pairs == 3 * 30
    assert answer.results[0] == answer.results[2] == best
    assert not set(answer.results[3].items) & set(best.items)


def test_a_query_in_this_process_names_its_ranker(dot_products: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["query", "red hat", "--local", "--storage", str(dot_products), "--calls", "40"]
    assert main(arguments) == EXIT_FAILED
    assert "a budget needs a heavy ranker, got none: name one (--ranker.path)" in capsys.readouterr().err
    assert main([*arguments, "--ranker.path", "support.ranked:by_pairs"]) == 0
    assert "'red hat': 40 calls, the heavy ranker's order" in capsys.readouterr().out
    assert main([*arguments, "--ranker.folder", "mine"]) == EXIT_BAD_ARGUMENT
    assert "--ranker.folder must be given with --ranker.path, got mine alone" in capsys.readouterr().err


def test_a_mixture_is_the_ranker_behind_rbe(tmp_path: Path) -> None:
    """A run, the matrix that it fills, RBE trained on that, and a search whose reranked scores are the mixture's."""
    config = replace(small_config(), data=DataConfig(folder=str(write_text_data(tmp_path / "texts"))))
    store = Storage(str(tmp_path))
    write_untrained_run(store, "mol", config)
    named = RankerConfig(path="rails_ray.families.rbe.run_ranker:RunRanker", folder=f"{tmp_path}/runs/mol")
    matrix = write_scored_data(tmp_path / "data", ranker=ranker_of(named))
    write_rbe_run(tmp_path, matrix, config=small_rbe_config(ranker=named))
    on_ray.publish(str(tmp_path), on_ray.encode(str(tmp_path), "rbe", num_shards=2).version)
    [result] = local.open(str(tmp_path)).search(["red hat"], k=5, budget={"calls": 30}).results
    assert result.budget is not None
    assert (result.budget.is_reranked, result.budget.calls_used) == (True, 30)
    mixture = training_family(config).trained_model(runs.weights(store, runs.read(store, "mol")))
    texts = pq.read_table(matrix / "items.parquet").to_pydict()
    found = [texts["text"][texts["item_id"].index(item)] for item in result.items]
    with torch.no_grad():
        query = mixture.encode_queries(mixture.query_features(Texts(["red hat"])))
        expected = mixture.similarity.scores(query, encode_items(mixture, mixture.item_features(Texts(found))))[0]
    assert result.scores == pytest.approx(expected.tolist(), abs=1e-5)
