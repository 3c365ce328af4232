"""A budget of calls of the heavy ranker, in this process: what it buys, what it refuses, what becomes of failures."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from rails_ray import cli, local, on_ray
from rails_ray.answering.budgets import KeptScores
from rails_ray.build import family
from rails_ray.config import DataConfig
from rails_ray.data.dataset import Texts
from rails_ray.errors import UnavailableError, UnsupportedError
from rails_ray.evaluation.ranking import encode_items
from rails_ray.local import Version
from rails_ray.relevance.rankers import candidates_of
from rails_ray.relevance.rankers.calling import RankerConfig, answers_of, ranker_of
from rails_ray.retrieval.rounds import AskShards
from rails_ray.storage import runs
from rails_ray.storage.filesystem import Storage
from support.examples import publish_untrained, small_config, write_text_data, write_untrained_run
from support.published_rbe import publish_rbe, write_rbe_run
from support.ranked import by_pairs, small_rbe_config, write_scored_data

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("ray_cluster")]

NUM_SUPPORTS = 6
QUERIES = ["red hat", "blue", "green bo"]  # the last is in no data set


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("budget")
    publish_rbe(folder, write_scored_data(folder / "data"))
    return folder


@pytest.fixture(scope="module")
def texts(root: Path) -> dict[str, str]:
    items = pq.read_table(root / "data" / "relevance" / "small" / "items.parquet")
    return dict(zip(items["item_id"].to_pylist(), items["text"].to_pylist(), strict=True))


class Counted:
    """A ranker that counts."""

    def __init__(self, ranker: Callable[..., Sequence[float]] = by_pairs) -> None:
        self.ranker = ranker
        self.calls: list[tuple[str, list[Any]]] = []

    def __call__(self, query: Any, candidates: Any) -> Sequence[float]:
        self.calls.append((query["text"], [candidate.item_id for candidate in candidates]))
        return self.ranker(query, candidates)

    @property
    def num_pairs(self) -> int:
        return sum(len(item_ids) for _, item_ids in self.calls)


def opened(root: Path, ranker: Callable[..., Sequence[float]] = by_pairs) -> tuple[Version, Counted]:
    counted = Counted(ranker)
    return local.open(str(root), ranker=counted), counted


def best_of_all(texts: dict[str, str], query: str, k: int) -> list[float]:
    """The scores of the k best items, every one of them ranked."""
    scores = by_pairs({"text": query}, candidates_of(list(texts), list(texts.values())))
    return sorted(scores, reverse=True)[:k]


def test_the_versions_own_ranker_is_taken(root: Path) -> None:
    answer = local.open(str(root)).search(["red hat"], k=3)
    assert len(answer.results[0].items) == 3


def test_without_a_budget_only_supports_are_scored(root: Path) -> None:
    version, ranker = opened(root)
    answer = version.search(QUERIES, k=4)
    assert ranker.num_pairs == NUM_SUPPORTS * len(QUERIES)
    for result in answer.results:
        assert result.budget is not None
        assert result.budget.model_dump() == {
            "calls_used": NUM_SUPPORTS,
            "is_reranked": False,
            "reason": "no budget was asked for",
        }


@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("calls", [20, 60, 90])
def test_a_budget_is_spent_and_told(root: Path, texts: dict[str, str], calls: int, rounds: int) -> None:
    version, ranker = opened(root)
    answer = version.search(QUERIES, k=5, budget={"calls": calls, "rounds": rounds})
    # supports that are found cost nothing more, and no pair is scored twice
    most = min(calls, len(texts))
    for query, result in zip(QUERIES, answer.results, strict=True):
        pairs = [item for text, items in ranker.calls if text == query for item in items]
        assert len(pairs) == len(set(pairs))
        assert result.budget is not None
        assert result.budget.calls_used == len(pairs) <= most
        assert result.budget.is_reranked
        assert result.budget.reason is None
        assert result.scores == sorted(result.scores, reverse=True)
        assert result.scores == pytest.approx(
            by_pairs({"text": query}, candidates_of(result.items, [texts[item] for item in result.items]))
        )
        if calls >= len(texts):
            assert result.scores == pytest.approx(best_of_all(texts, query, 5))
            assert result.certificate.is_exact
        else:
            assert not result.certificate.is_exact
    assert answer.is_exact == (calls >= len(texts))


def test_rounds_over_shards_are_axn(root: Path) -> None:
    """v = argmin |E_A v - (s_A - u0_A)|^2 + lambda |v|^2, by the normal equations, and the best by u0 + E v next."""
    version, ranker = opened(root)
    version.search(["red hat"], k=5, budget={"calls": 6 + 30, "rounds": 3})
    supports, *rounds = [item_ids for _, item_ids in ranker.calls]
    assert [len(item_ids) for item_ids in rounds] == [10, 10, 10]
    encoder = version.engine.encoder
    scores = by_pairs({"text": "red hat"}, encoder.supports)
    query = encoder([{"text": "red hat"}], [np.array(scores)]).state.vectors()[0].double().numpy()
    vectors, texts = {}, {}
    for shard in version.shards:
        state = shard.items.state.components[:, 0].double().numpy()
        for row, item_id in enumerate(shard.items.item_ids):
            vectors[item_id], texts[item_id] = state[row], shard.items.texts[row].as_py()
    start = {item_id: float(query @ vector) for item_id, vector in vectors.items()}
    known, ridge, correction = list[str](), 0.0, np.zeros_like(query)
    for asked in rounds:
        moved = {item_id: float((query + correction) @ vector) for item_id, vector in vectors.items()}
        left = sorted((item_id for item_id in vectors if item_id not in known), key=lambda one: -moved[one])
        assert set(asked) == set([item_id for item_id in left if item_id not in supports][:10])
        known += [*asked, *(item_id for item_id in left[:36] if item_id in supports)]
        rows = np.stack([vectors[item_id] for item_id in known])
        said = by_pairs({"text": "red hat"}, candidates_of(known, [texts[item_id] for item_id in known]))
        ridge = ridge or 0.1 * float(np.square(rows).sum(axis=1).mean())
        residual = np.array(said) - np.array([start[item_id] for item_id in known])
        correction = np.linalg.solve(rows.T @ rows + ridge * np.eye(len(query)), rows.T @ residual)


def test_equal_queries_of_a_request_share_their_supports(root: Path) -> None:
    version, ranker = opened(root)
    answer = version.search(["red hat", "blue", "red hat"], k=3)
    assert ranker.num_pairs == 2 * NUM_SUPPORTS
    assert answer.results[0] == answer.results[2]


def test_a_budget_of_the_supports_alone_reranks_nothing(root: Path) -> None:
    version, _ = opened(root)
    plain = version.search(["red hat"], k=5)
    answer = version.search(["red hat"], k=5, budget={"calls": NUM_SUPPORTS})
    assert answer.results[0].items == plain.results[0].items
    assert answer.results[0].budget is not None
    assert not answer.results[0].budget.is_reranked
    assert answer.results[0].budget.reason == "the budget was spent on the supports"


def test_supports_of_a_repeated_query_are_scored_once_and_change_nothing(root: Path) -> None:
    version, ranker = opened(root)
    first = version.search(["red hat"], k=5, budget={"calls": 30})
    used = ranker.num_pairs
    again = version.search(["red hat"], k=5, budget={"calls": 30})
    assert ranker.num_pairs == 2 * used - NUM_SUPPORTS
    assert again.results[0].items == first.results[0].items
    assert again.results[0].budget is not None
    assert again.results[0].budget.calls_used == used - NUM_SUPPORTS


def test_kept_supports_have_a_bound() -> None:
    kept = KeptScores(2)
    for number, text in enumerate("abac"):
        kept.keep(text, np.array([float(number)]))
    assert len(kept) == 2
    assert kept.get("b") is None
    assert kept.get("a") == [2.0]


def test_excluded_items_are_not_ranked(root: Path) -> None:
    version, ranker = opened(root)
    best = version.search(["red hat"], k=5, budget={"calls": 40}).results[0].items
    ranker.calls.clear()
    query = {"text": "red hat", "exclude": best}
    answer = version.search([query], k=5, budget={"calls": 40, "rounds": 2})
    assert not set(answer.results[0].items) & set(best)
    reranked = {item for _, items in ranker.calls for item in items}
    assert not reranked & set(best)


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


@pytest.fixture(scope="module")
def dot_products(tmp_path_factory: pytest.TempPathFactory, ray_cluster: None) -> Path:
    folder = tmp_path_factory.mktemp("dot-products")
    data = write_text_data(folder / "data", num_items=120)
    publish_untrained(folder, data, similarity="dot product", keep_texts=True)
    return folder


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


@pytest.mark.parametrize(("deadline_ms", "told"), [(None, 25), (60, 25), (15, 15)])
def test_a_deployments_deadline_holds_for_a_request_without_an_earlier_one(
    dot_products: Path, deadline_ms: float | None, told: float
) -> None:
    clock = Clock()

    def slow(query: Any, candidates: Any) -> Any:
        clock.now += 0.010
        return by_pairs(query, candidates)

    version, ranker = opened(dot_products, slow)
    version.engine.ranking = with_clock(version, clock)
    version.engine.limits = replace(version.engine.limits, deadline_s=0.025)
    version.clock = clock
    budget = {"calls": 60, "rounds": 6, "deadline_ms": deadline_ms}
    [result] = version.search(["red hat"], k=20, budget=budget).results
    [plain] = version.search(["red hat"], k=20).results
    assert len(ranker.calls) == told // 10 + 1  # the last one is late
    assert result.budget is not None
    assert result.budget.reason == f"the deadline of {told} ms came first"
    assert result.budget.is_reranked == (told == 25)
    assert (result.items == plain.items) == (told == 15)


def test_a_search_of_a_later_round_has_no_more_time_than_the_deadline(
    dot_products: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, within_s = Clock(), list[float | None]()

    def answers(step: Any) -> list[Any]:
        if not isinstance(step, AskShards):
            clock.now += 0.010
            return answers_of(by_pairs, step.calls, step.within_s, clock)
        within_s.append(step.within_s)
        if len(within_s) == 1:
            return [getattr(shard, step.method)(*step.arguments) for shard in version.shards]
        clock.now += 1
        return [TimeoutError() for _ in version.shards]

    version, _ = opened(dot_products)
    version.engine.ranking = with_clock(version, clock)
    monkeypatch.setattr(version, "_answers", answers)
    budget = {"calls": 40, "rounds": 4, "deadline_ms": 25}
    [result] = version.search(["red hat"], k=5, budget=budget).results
    assert within_s == [None, pytest.approx(0.015)]
    assert result.budget is not None
    assert result.budget.model_dump() == {
        "calls_used": 10,
        "is_reranked": True,
        "reason": "the deadline of 25 ms came first",
    }


def test_a_query_in_this_process_names_its_ranker(dot_products: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["query", "red hat", "--local", "--storage", str(dot_products), "--calls", "40"]
    assert cli.main(arguments) == cli.EXIT_FAILED
    assert "a budget needs a heavy ranker, got none: name one (--ranker.path)" in capsys.readouterr().err
    assert cli.main([*arguments, "--ranker.path", "support.ranked:by_pairs"]) == 0
    assert "'red hat': 40 calls, the heavy ranker's order" in capsys.readouterr().out
    assert cli.main([*arguments, "--ranker.folder", "mine"]) == cli.EXIT_BAD_ARGUMENT
    assert "--ranker.folder must stand beside --ranker.path, got mine alone" in capsys.readouterr().err


def test_a_mixture_is_the_ranker_behind_rbe(tmp_path: Path) -> None:
    """A run, the matrix that it fills, RBE trained on that, and a search whose reranked scores are the mixture's."""
    config = replace(small_config(), data=DataConfig(folder=str(write_text_data(tmp_path / "texts"))))
    store = Storage(str(tmp_path))
    write_untrained_run(store, "mol", config)
    named = RankerConfig(path="rails_ray.build.run_ranker:RunRanker", folder=f"{tmp_path}/runs/mol")
    matrix = write_scored_data(tmp_path / "data", ranker=ranker_of(named))
    write_rbe_run(tmp_path, matrix, config=small_rbe_config(ranker=named))
    on_ray.publish(str(tmp_path), on_ray.encode(str(tmp_path), "rbe", num_shards=2).version)
    [result] = local.open(str(tmp_path)).search(["red hat"], k=5, budget={"calls": 30}).results
    assert result.budget is not None
    assert (result.budget.is_reranked, result.budget.calls_used) == (True, 30)
    mixture = family(config).trained_model(runs.weights(store, runs.read(store, "mol")))
    texts = pq.read_table(matrix / "items.parquet").to_pydict()
    found = [texts["text"][texts["item_id"].index(item)] for item in result.items]
    with torch.no_grad():
        query = mixture.encode_queries(mixture.query_features(Texts(["red hat"])))
        expected = mixture.similarity.scores(query, encode_items(mixture, mixture.item_features(Texts(found))))[0]
    assert result.scores == pytest.approx(expected.tolist(), abs=1e-5)


# Bad input


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (
            {"budget": {"calls": 5}},
            "budget.calls must be at least 6, which a query of version v1 spends",
        ),
        ({"budget": {"calls": 0}}, "budget.calls must be greater than or equal to 1, got 0"),
        ({"budget": {"calls": 9}}, "k must be at most the 3 items that the budget can rerank, got 5"),
        ({"budget": {"calls": 20, "rounds": 15}}, "budget.rounds must be at most the 14 calls left for them, got 15"),
        ({"budget": {"calls": 20, "deadline_ms": 0}}, "budget.deadline_ms must be greater than 0, got 0"),
        ({"budget": {"calls": 20}, "cutoff": {"score": 0.5}}, "cutoff must be top_k beside a budget, .* got score"),
        ({"budget": {"calls": 10**7}}, "queries times budget.calls must be at most 1000000 items"),
        ({"budget": 20}, "budget must be a JSON object, got 20"),
    ],
)
def test_budgets_that_do_not_fit(root: Path, asked: dict[str, Any], told: str) -> None:
    version, ranker = opened(root)
    with pytest.raises(ValueError, match=told):
        version.search(["red hat"], k=5, **asked)
    assert not ranker.calls


def test_queries_are_read_before_the_ranker_is_asked(root: Path) -> None:
    version, ranker = opened(root)
    with pytest.raises(ValueError, match=r"queries\[1\].text must hold a letter or a digit"):
        version.search(["red hat", "!!"])
    assert not ranker.calls


# Faults


def failing(when: Callable[[str, int], bool], how: Callable[[int], Any]) -> Callable[..., Any]:
    """A ranker that does wrong for some calls: of a query and a number of items."""

    def rank(query: Any, candidates: Any) -> Any:
        if when(query["text"], len(candidates)):
            return how(len(candidates))
        return by_pairs(query, candidates)

    return rank


def raising(num: int) -> Any:
    raise RuntimeError("out of memory")


WRONGS = {
    "raises": (raising, "got RuntimeError: out of memory"),
    "NaN": (lambda num: [float("nan")] * num, "must answer with finite scores, got nan"),
    "too few": (lambda num: [1.0] * (num - 1), "one for each item, got an answer of shape"),
}


@pytest.mark.parametrize(("how", "told"), WRONGS.values(), ids=WRONGS)
def test_supports_that_fail_fail_their_query_alone(root: Path, how: Callable[[int], Any], told: str) -> None:
    sound, _ = opened(root)
    expected = sound.search(["red hat", "green bo"], k=5, budget={"calls": 30}).results
    version, _ = opened(root, failing(lambda text, num: text == "blue", how))
    answer = version.search(["red hat", "blue", "green bo"], k=5, budget={"calls": 30})
    assert [answer.results[0], answer.results[2]] == expected
    broken = answer.results[1]
    assert (broken.items, broken.num_kept, answer.is_exact) == ([], 0, False)
    assert broken.error is not None
    assert broken.error.startswith("queries[1] must have its supports scored, got: the heavy ranker must")
    assert told in broken.error
    with pytest.raises(UnavailableError, match=r"queries\[0\] must have its supports scored, got: the heavy ranker"):
        version.search(["blue"], k=5)


@pytest.mark.parametrize(("how", "told"), WRONGS.values(), ids=WRONGS)
def test_a_reranking_that_fails_leaves_the_order_of_the_index(root: Path, how: Callable[[int], Any], told: str) -> None:
    plain, _ = opened(root)
    expected = plain.search(QUERIES, k=5).results
    version, _ = opened(root, failing(lambda text, num: text == "blue" and num > NUM_SUPPORTS, how))
    results = version.search(QUERIES, k=5, budget={"calls": 30}).results
    assert [result.budget.is_reranked for result in results if result.budget] == [True, False, True]
    assert results[1].items == expected[1].items
    assert results[1].budget is not None
    assert results[1].budget.reason is not None
    assert told in results[1].budget.reason
    assert results[1].budget.calls_used == NUM_SUPPORTS


@pytest.mark.parametrize("text", ["red hat", "blue", "gold", "plum ring"])
def test_supports_that_were_found_do_not_make_a_failed_reranking_one(root: Path, text: str) -> None:
    plain, _ = opened(root)
    [expected] = plain.search([text], k=1).results
    version, _ = opened(root, failing(lambda text, num: num > NUM_SUPPORTS, raising))
    [result] = version.search([text], k=1, budget={"calls": 50}).results
    assert (result.items, result.scores) == (expected.items, expected.scores)
    assert result.budget is not None
    assert not result.budget.is_reranked


def test_explaining_asks_the_ranker_too(root: Path) -> None:
    version, ranker = opened(root)
    found = version.search(["red hat"], k=2).results[0]
    explained = version.explain("red hat", found.items)
    assert [item.score for item in explained.items] == pytest.approx(found.scores, abs=1e-5)
    assert ranker.num_pairs == NUM_SUPPORTS  # kept from the search
    broken, _ = opened(root, failing(lambda text, num: True, raising))
    with pytest.raises(UnavailableError, match="must have its supports scored, got: the heavy ranker must score"):
        broken.explain("red hat", found.items)


class Clock:
    """Time that each call of a ranker takes a part of."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("deadline_ms", "is_reranked"), [(25, True), (15, False)], ids=["after reranking", "before reranking"]
)
def test_a_deadline_leaves_the_order_of_the_index(
    root: Path, monkeypatch: pytest.MonkeyPatch, deadline_ms: float, is_reranked: bool
) -> None:
    clock = Clock()

    def slow(query: Any, candidates: Any) -> Any:
        clock.now += 0.010
        return by_pairs(query, candidates)

    version, _ = opened(root, slow)
    expected = version.search(["red hat"], k=5).results[0]
    version.engine.ranking = with_clock(version, clock)
    monkeypatch.setattr("rails_ray.relevance.rankers.calling.time.monotonic", clock)
    version.clock = clock
    [result] = version.search(["red hat"], k=5, budget={"calls": 30, "deadline_ms": deadline_ms}).results
    assert result.budget is not None
    assert result.budget.is_reranked == is_reranked
    if not is_reranked:
        assert result.items == expected.items
        assert result.budget.reason == "the deadline of 15 ms came first"


def test_a_deadline_before_the_supports_fails_the_query(root: Path) -> None:
    clock = Clock()

    def slow(query: Any, candidates: Any) -> Any:
        clock.now += 0.010
        return by_pairs(query, candidates)

    version, _ = opened(root, slow)
    version.engine.ranking = with_clock(version, clock)
    version.clock = clock
    with pytest.raises(UnavailableError, match="supports scored, got: the deadline of 5 ms came first"):
        version.search(["red hat"], k=5, budget={"calls": 30, "deadline_ms": 5})


def test_a_failure_before_the_deadline_is_not_blamed_on_it(root: Path) -> None:
    clock = Clock()

    def slow(query: Any, candidates: Any) -> Any:
        if query["text"] == "blue":
            raise RuntimeError("out of memory")
        clock.now += 0.010
        return by_pairs(query, candidates)

    version, _ = opened(root, slow)
    version.engine.ranking = with_clock(version, clock)
    version.clock = clock
    with pytest.raises(UnavailableError, match=r"queries\[0\] must have .* got: .* RuntimeError: out of memory"):
        version.search(["blue", "red hat"], k=5, budget={"calls": 30, "deadline_ms": 5})


def with_clock(version: Version, clock: Clock) -> Any:
    return replace(version.engine.ranking, clock=clock, kept=KeptScores())


@pytest.mark.parametrize("rounds", [1, 2])
@pytest.mark.parametrize("fails_at", [1, 2])
def test_a_shard_that_is_lost_is_told_and_what_is_found_is_ranked(
    root: Path, monkeypatch: pytest.MonkeyPatch, rounds: int, fails_at: int
) -> None:
    """From the first search on, or in the round after it."""
    version, _ = opened(root)
    searches = [0]
    search = version.shards[1].search

    def lost(*arguments: Any) -> Any:
        searches[0] += 1
        if searches[0] >= fails_at:
            raise UnavailableError("gone")
        return search(*arguments)

    def answers(step: Any) -> list[Any]:
        if isinstance(step, AskShards):
            return [answer_of(getattr(shard, step.method), step.arguments) for shard in version.shards]
        return answers_of(by_pairs, step.calls, step.within_s)

    def answer_of(method: Callable[..., Any], arguments: Any) -> Any:
        try:
            return method(*arguments)
        except UnavailableError as error:
            return error

    monkeypatch.setattr(version.shards[1], "search", lost)
    monkeypatch.setattr(version, "_answers", answers)
    asked = {"k": 4, "budget": {"calls": 30, "rounds": rounds}, "min_coverage": 0.4}
    answer = version.search(["red hat"], **asked)
    [result] = answer.results
    assert len(result.items) == 4
    assert result.budget is not None
    if fails_at == 1:
        assert answer.coverage.shards_answered == 1
        assert result.budget.is_reranked
        assert not result.certificate.is_exact
    elif rounds == 2:
        assert result.budget.reason == "a shard did not answer the search of a later round"
    else:
        assert result.budget.reason is None


def test_codes_of_long_vectors_estimate_the_rankers_scores(root: Path, texts: dict[str, str]) -> None:
    """Vectors of RBE have any length, which codes in their place keep."""
    on_ray.encode(str(root), "of-v1", version="codes", stored={"codes": (4, 16)})
    on_ray.publish(str(root), "codes")
    plain, coded = (
        local.open(str(root), name, ranker=by_pairs).search(["red hat"], k=len(texts)).results[0]
        for name in ("v1", "codes")
    )
    on_ray.publish(str(root), "v1")
    scores = dict(zip(coded.items, coded.scores, strict=True))
    pairs = np.array([[score, scores[item]] for item, score in zip(plain.items, plain.scores, strict=True)])
    assert np.corrcoef(pairs.T)[0, 1] > 0.9
    assert np.abs(pairs[:, 0] - pairs[:, 1]).mean() < 0.3 * pairs[:, 0].std() + 0.05
