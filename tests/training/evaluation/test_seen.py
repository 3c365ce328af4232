"""Sessions that come back to an item: what is found with seen items excluded, and what with them allowed."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracles.ranking
from rails_ray.cutoffs.distributions import UNIFORM, BetaDistribution
from rails_ray.data.dataset import DataSet
from rails_ray.data.encoding import encode_items
from rails_ray.data.queries import ItemLists, Queries
from rails_ray.families.data import read_data
from rails_ray.families.dual_encoder.model import DualEncoder
from rails_ray.families.dual_encoder.train import DualEncoderTraining
from rails_ray.storage.filesystem import Storage
from rails_ray.training.evaluation.ranking import rank_all, rank_both
from rails_ray.training.evaluation.report import evaluate, validate, validation_mrr
from rails_ray.training.evaluation.seen import (
    ALLOWED,
    EXCLUDED,
    SeenItems,
    has_both_figures,
    labelled,
    left_out,
    remark,
)
from support.sessions import NUM_REPEATED, NUM_SESSIONS, repeating, sessions_config, write_sessions

BETA = BetaDistribution(UNIFORM)
SHARE = NUM_REPEATED / NUM_SESSIONS


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> DataSet:
    return read_data(sessions_config(write_sessions(tmp_path_factory.mktemp("sessions"))), Storage("."))


@pytest.fixture(scope="module", params=["repeating", "at random"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> DualEncoder:
    config = sessions_config(write_sessions(tmp_path_factory.mktemp("model")))
    return repeating(config) if request.param == "repeating" else DualEncoderTraining.of(config).model().eval()


def scores_of(model: DualEncoder, read: DataSet, queries: Queries) -> list[list[float]]:
    items = encode_items(model, model.item_features(read.item_inputs))
    scores: list[list[float]] = model.score(
        model.encode_queries(model.query_features(queries.inputs)), items
    ).scores.tolist()
    return scores


def slow_hit_rate(scores: list[list[float]], queries: Queries, k: int, *, excludes_seen: bool) -> float:
    hits = 0
    for number, line in enumerate(scores):
        excluded = list(queries.inputs[number]) if excludes_seen else []
        hits += bool(set(oracles.ranking.top_k(line, k, excluded)) & set(queries.relevant[number].tolist()))
    return hits / len(scores)


def test_both_figures_equal_the_loops(model: DualEncoder, read: DataSet) -> None:
    items, queries = encode_items(model, model.item_features(read.item_inputs)), read.queries["test"]
    scores = scores_of(model, read, queries)
    report = evaluate(model, items, queries, "test", 0.9, BETA)
    assert report.seen_items is not None
    assert report.seen_items.allowed is not None
    for k in report.hit_rate:
        assert report.hit_rate[k] == slow_hit_rate(scores, queries, k, excludes_seen=True)
        assert report.seen_items.allowed.hit_rate[k] == slow_hit_rate(scores, queries, k, excludes_seen=False)
    ranks = [
        oracles.ranking.rank_of_best(line, own.tolist()) for line, own in zip(scores, queries.relevant, strict=True)
    ]
    assert report.seen_items.allowed.mrr == pytest.approx(sum(1 / rank for rank in ranks) / len(ranks))
    assert (report.seen_items.num_seen, report.seen_items.num_relevant) == (NUM_REPEATED, NUM_SESSIONS)
    assert report.seen_items.is_excluded


def test_who_repeats_the_last_item_finds_what_is_asked_again(read: DataSet, tmp_path: Path) -> None:
    """Asked as a shop asks; excluded, no such item can be found, however many items are looked at."""
    model = repeating(sessions_config(write_sessions(tmp_path / "data")))
    items = encode_items(model, model.item_features(read.item_inputs))
    for exclude_seen in (None, True, False):
        queries = replace(read.queries["test"], exclude_seen=exclude_seen)
        report = evaluate(model, items, queries, "test", None, None)
        assert report.hit_rate[200] == (1 if exclude_seen is False else 1 - SHARE)
        assert report.seen_items is not None
        assert report.seen_items.is_excluded == (exclude_seen is not False)
        assert (report.seen_items.allowed is not None) == (exclude_seen is None)
        if exclude_seen is False:
            assert report.hit_rate[1] == SHARE
        elif report.seen_items.allowed is not None:
            assert report.seen_items.allowed.hit_rate[1] == SHARE


@pytest.mark.parametrize("exclude_seen", [True, False])
def test_one_figure_is_that_of_the_choice(model: DualEncoder, read: DataSet, exclude_seen: bool) -> None:
    """In validation, in the glances of training, and with a cut-off."""
    features = model.item_features(read.item_inputs)
    items, both = encode_items(model, features), read.queries["valid"]
    chosen = replace(both, exclude_seen=exclude_seen)
    report = validate(model, lambda: items, chosen, BETA)
    unchosen = validate(model, lambda: items, both, BETA)
    assert unchosen.seen_items is not None
    assert unchosen.seen_items.allowed is not None
    expected = unchosen if exclude_seen else unchosen.seen_items.allowed
    assert (report.hit_rate, report.mrr) == (expected.hit_rate, expected.mrr)
    assert validation_mrr(model, features, chosen) == expected.mrr
    if exclude_seen:
        assert report.lists == expected.lists
    else:  # the mass is chosen where it will be applied
        assert report.lists is not None
        assert expected.lists is not None
        assert report.lists.f1 >= expected.lists.f1


def test_both_rankings_are_those_of_either_choice(model: DualEncoder, read: DataSet) -> None:
    items, queries = encode_items(model, model.item_features(read.item_inputs)), read.queries["test"]
    for ranking, exclude_seen in zip(rank_both(model, items, queries, 7), (True, False), strict=True):
        alone = rank_all(model, items, replace(queries, exclude_seen=exclude_seen), 7)
        for name in (
            "best_rank",
            "scores",
            "is_relevant",
            "num_relevant",
            "pair_query",
            "pair_score",
            "sampled_scores",
        ):
            np.testing.assert_array_equal(getattr(ranking, name), getattr(alone, name))


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 5), min_size=1, max_size=3), st.lists(st.integers(0, 5), max_size=6)))
)
def test_seen_relevant_items_are_counted_as_by_loops(lists: list[tuple[list[int], list[int]]]) -> None:
    relevant, seen = ItemLists.of([own for own, _ in lists]), ItemLists.of([own for _, own in lists])
    queries = Queries(seen, relevant, seen)
    assert queries.num_seen_relevant == sum(item in history for own, history in lists for item in own)
    assert Queries(seen, relevant).num_seen_relevant == 0


@pytest.mark.parametrize(("num_seen", "is_said"), [(0, False), (1, False), (2, True)])
def test_few_are_passed_over_without_a_word(num_seen: int, is_said: bool) -> None:
    """Of fifty queries: one is 2%."""
    seen = ItemLists.of([[number < num_seen] for number in range(50)])
    queries = Queries(seen, ItemLists.of([[1]] * 50), seen)
    assert has_both_figures(queries) == is_said
    assert bool(left_out(queries, "valid")) == is_said
    found = SeenItems.of(queries)
    assert found is not None
    label = EXCLUDED if is_said else None
    assert [own for own, _ in labelled({"mrr": 0.5, "seen_items": found.to_dict()})] == [label]
    for chosen in (True, False):
        assert not has_both_figures(replace(queries, exclude_seen=chosen))
        assert not left_out(replace(queries, exclude_seen=chosen), "valid")


def test_queries_without_histories_have_seen_nothing() -> None:
    inputs = ItemLists.of([[0], [1]])
    assert SeenItems.of(Queries(inputs, inputs)) is None
    assert not has_both_figures(Queries(inputs, inputs))


def test_a_choice_stays_with_queries() -> None:
    inputs = ItemLists.of([[0], [1], [2]])
    queries = Queries(inputs, inputs, inputs, exclude_seen=False)
    some = [queries.head(2), queries.take(np.array([2, 0])), queries.in_corpus(np.array([0, 1, -1]), 2)]
    assert all(own.exclude_seen is False and own.excluded is None for own in some)
    assert [own.seen is not None and list(map(list, own.seen)) for own in some] == [
        [[0], [1]],
        [[2], [0]],
        [[0], [1], []],
    ]


def test_a_choice_changes_no_digest(read: DataSet) -> None:
    """A run that was begun without one goes on."""
    assert len({read.choosing(choice).digest() for choice in (None, True, False)}) == 1


def test_the_lines_of_a_table(model: DualEncoder, read: DataSet) -> None:
    items, queries = encode_items(model, model.item_features(read.item_inputs)), read.queries["test"]
    both = evaluate(model, items, queries, "test", None, None).by_name("demo")
    assert [name for name, _ in both] == [f"demo, {EXCLUDED}", f"demo, {ALLOWED}"]
    for (_, own), exclude_seen in zip(both, (True, False), strict=True):
        chosen = evaluate(model, items, replace(queries, exclude_seen=exclude_seen), "test", None, None)
        [(name, alone)] = chosen.by_name("demo")
        assert name == f"demo, {EXCLUDED if exclude_seen else ALLOWED}"
        assert (own.hit_rate, own.mrr) == (alone.hit_rate, alone.mrr)
    none = evaluate(model, items, replace(queries, seen=None), "test", None, None)
    assert [name for name, _ in none.by_name("demo")] == ["demo"]


def test_reports_of_an_earlier_release_have_one_figure_without_a_label() -> None:
    report = {"hit_rate": {"1": 0.5}, "mrr": 0.6}
    assert labelled(report) == [(None, report)]


def test_the_sentences() -> None:
    seen = ItemLists.of([[1], [0], [0]] * 1000)
    queries = Queries(seen, ItemLists.of([[1]] * 3000), seen)
    share = "1,000 of the 3,000 relevant items of split test (33.3%) are in the history of their own query"
    assert remark({"num_seen": 1000, "num_relevant": 3000}, "test") == (
        f"{share}: answers leave them out in the first figure, as requests do by default, and may hold them in the "
        "second: choose one with --exclude-seen or --no-exclude-seen"
    )
    assert left_out(queries, "test") == [
        f"{share}: requests exclude such items by default, so that no cut-off keeps them: choose with --exclude-seen "
        "or --no-exclude-seen"
    ]
