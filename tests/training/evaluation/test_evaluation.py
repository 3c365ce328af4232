import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracles.losses
import oracles.ranking
from rails_ray.counting import shown
from rails_ray.cutoffs.distributions import UNIFORM, BetaDistribution
from rails_ray.data import encoding
from rails_ray.data.dataset import Texts
from rails_ray.data.encoding import encode_items
from rails_ray.data.queries import ItemLists, Queries
from rails_ray.families.dual_encoder.train import DualEncoderTraining
from rails_ray.modules.losses.beta_nce import beta_logit
from rails_ray.training.evaluation import ranking
from rails_ray.training.evaluation.agreement import recall_at_k
from rails_ray.training.evaluation.metrics import hit_rate, list_quality, mean_reciprocal_rank
from rails_ray.training.evaluation.ranking import NOT_FOUND, rank_all, rank_of_best
from rails_ray.training.evaluation.report import evaluate, validate, validation_mrr
from support.examples import COLOURED, THINGS, small_config, small_history_config

BETA = BetaDistribution(UNIFORM)


@given(st.lists(st.sampled_from([0.0, 0.5, 0.5, 1.0]), min_size=1, max_size=10), st.data())
def test_rank_of_best_equals_the_definition(scores: list[float], data: st.DataObject) -> None:
    relevant = data.draw(st.sets(st.integers(0, len(scores) - 1), min_size=1))
    mask = torch.tensor([[row in relevant for row in range(len(scores))]])
    assert rank_of_best(torch.tensor([scores]), mask).tolist() == [
        oracles.ranking.rank_of_best(scores, sorted(relevant))
    ]


def test_hit_rate_and_mrr() -> None:
    ranks = np.array([1, 2, 4, 100])
    assert hit_rate(ranks, 1) == 0.25
    assert hit_rate(ranks, 4) == 0.75
    assert mean_reciprocal_rank(ranks) == pytest.approx((1 + 0.5 + 0.25 + 0.01) / 4)


def test_list_quality() -> None:
    is_relevant = np.array([[True, False, True], [False, False, False]])
    quality = list_quality(np.array([2, 0]), is_relevant, np.array([2, 1]))
    assert quality.precision == 0.5  # of the one list that is not empty
    assert quality.recall == 0.25
    assert quality.f1 == pytest.approx((0.5 + 0) / 2)
    assert quality.empty_fraction == 0.5


def test_recall_at_k() -> None:
    assert recall_at_k([[1, 2], [3, 4]], [[2, 1], [3, 9]]) == 0.75
    with pytest.raises(ValueError, match="one list per expected list, 2, got 1"):
        recall_at_k([[1]], [[1], [2]])
    with pytest.raises(ValueError, match="expected must hold lists of at least 1 item"):
        recall_at_k([[1]], [[]])


def test_ranking_equals_the_naive_loop() -> None:
    model = DualEncoderTraining.of(small_config()).model().eval()
    items = encode_items(model, model.item_features(THINGS))
    ranking = rank_all(model, items, COLOURED, 3)
    scores = model.score(model.encode_queries(model.query_features(COLOURED.inputs)), items).scores.tolist()
    for number, line in enumerate(scores):
        relevant = COLOURED.relevant[number].tolist()
        assert ranking.best_rank[number] == oracles.ranking.rank_of_best(line, relevant)
        best = oracles.ranking.top_k(line, 3)
        assert ranking.is_relevant[number].tolist() == [row in relevant for row in best]
        assert ranking.num_relevant[number] == len(relevant)
        assert ranking.scores[number].tolist() == pytest.approx([line[row] for row in best], abs=1e-5)


@pytest.mark.parametrize("num_at_once", [0, 1, 3])
def test_few_queries_at_a_time_rank_as_all_at_once(num_at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large corpus leaves room for the scores of few queries, of one at least."""
    model = DualEncoderTraining.of(small_config()).model().eval()
    items = encode_items(model, model.item_features(THINGS))
    whole = rank_all(model, items, COLOURED, 3)
    monkeypatch.setattr(ranking, "MOST_SCORES", num_at_once * len(THINGS))
    sizes, batches = list[int](), ranking.query_batches
    monkeypatch.setattr(ranking, "query_batches", lambda *given: sizes.append(given[2]) or batches(*given))
    found = rank_all(model, items, COLOURED, 3)
    assert sizes == [max(num_at_once, 1)]
    for name in ("best_rank", "scores", "is_relevant", "temperature", "pair_query", "pair_score"):
        np.testing.assert_allclose(getattr(found, name), getattr(whole, name), atol=1e-6)


def test_items_and_queries_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "ITEM_BATCH", 25)
    model, items, queries = (
        DualEncoderTraining.of(small_config()).model().eval(),
        [f"thing {n}" for n in range(60)],
        [
            "red thing",
            "blue thing",
            "thing",
        ],
    )
    seen = list[tuple[int, int, str]]()
    asked = Queries(Texts(queries), ItemLists.of([[0]] * 3))
    with shown(lambda *one: seen.append(one)):
        rank_all(model, encode_items(model, model.item_features(items)), asked, 3)
    of_items = [(done, 60, "items encoded") for done in (25, 50, 60)]
    assert seen == [*of_items, (3, 3, "queries ranked")]


def test_a_query_that_says_nothing_finds_nothing() -> None:
    """A server refuses it; a history is empty where another corpus has none of its items."""
    model = DualEncoderTraining.of(small_history_config()).model().eval()
    items = encode_items(model, model.item_features(np.arange(9)))
    queries = Queries(ItemLists.of([[3], []]), ItemLists.of([[0], [0]]))
    ranking = rank_all(model, items, queries, 9)
    assert 1 <= ranking.best_rank[0] <= 9
    assert ranking.best_rank[1] == NOT_FOUND
    assert mean_reciprocal_rank(ranking.best_rank) == pytest.approx(0.5 / ranking.best_rank[0])


def test_a_seen_item_gets_no_place() -> None:
    model = DualEncoderTraining.of(small_history_config()).model().eval()
    items = encode_items(model, model.item_features(np.arange(9)))
    histories, relevant = [[0, 1], [3], [8, 4, 2]], [[5, 8], [0], [1]]
    scores = model.score(model.encode_queries(model.query_features(histories)), items).scores.tolist()
    best, last = (
        [row for row in oracles.ranking.top_k(scores[number], 4) if row not in relevant[number]] for number in (0, 2)
    )
    seen = [sorted(best), [], sorted(last)]
    queries = Queries(ItemLists.of(histories), ItemLists.of(relevant), ItemLists.of(seen))
    ranking = rank_all(model, items, queries, 5)
    for number, line in enumerate(scores):
        best = oracles.ranking.top_k(line, 5, seen[number])
        assert ranking.best_rank[number] == oracles.ranking.rank_of_best(line, relevant[number], seen[number])
        assert ranking.is_relevant[number].tolist() == [row in relevant[number] for row in best]
        assert ranking.scores[number].tolist() == pytest.approx([line[row] for row in best], abs=1e-5)


BEYOND = 4  # the row of items that THINGS lack


@given(
    st.lists(st.lists(st.integers(0, BEYOND), min_size=1, max_size=4), min_size=4, max_size=4),
    st.lists(st.sets(st.integers(0, BEYOND - 1)), min_size=4, max_size=4),
)
def test_a_relevant_item_that_the_corpus_lacks_is_not_found(relevant: list[list[int]], others: list[set[int]]) -> None:
    model = DualEncoderTraining.of(small_config()).model().eval()
    items = encode_items(model, model.item_features(THINGS))
    seen = [sorted(rows - {*wanted}) for rows, wanted in zip(others, relevant, strict=True)]
    queries = Queries(COLOURED.inputs, ItemLists.of(relevant), ItemLists.of(seen))
    ranking = rank_all(model, items, queries, 4)
    scores = model.score(model.encode_queries(model.query_features(COLOURED.inputs)), items).scores.tolist()
    for number, line in enumerate(scores):
        order = oracles.ranking.top_k(line, 4, seen[number])
        ranks = [rank for rank, row in enumerate(order, start=1) if row in relevant[number]]
        assert ranking.best_rank[number] == min(ranks, default=NOT_FOUND)
        assert ranking.num_relevant[number] == len(relevant[number])
        assert ranking.is_relevant[number].tolist()[: len(order)] == [row in relevant[number] for row in order]


def test_a_relevant_item_that_was_seen_is_not_found() -> None:
    """An answer never holds it, however many items it has."""
    model = DualEncoderTraining.of(small_config()).model().eval()
    items = encode_items(model, model.item_features(THINGS))
    seen = ItemLists.of([[0, 1], [], [], [0, 3]])  # all that is relevant to the first query, a part for the last
    ranking = rank_all(model, items, Queries(COLOURED.inputs, COLOURED.relevant, seen), 4)
    unseen = rank_all(model, items, COLOURED, 4)
    assert ranking.best_rank[0] == NOT_FOUND
    assert ranking.best_rank[1:3].tolist() == unseen.best_rank[1:3].tolist()
    assert ranking.best_rank[3] <= 2


def test_what_the_corpus_lacks_counts_against_every_measure() -> None:
    """Also against a hit rate at more items than the corpus has: to look at all of them is not to find it."""
    model = DualEncoderTraining.of(small_config()).model().eval()
    items = encode_items(model, model.item_features(THINGS))
    found = Queries(COLOURED.inputs.take(slice(2)), COLOURED.relevant.take(slice(2)))
    lacking = Queries(COLOURED.inputs, ItemLists.of([*found.relevant, [BEYOND], [BEYOND, BEYOND]]))
    before, after = (evaluate(model, items, queries, "test", 0.9, BETA) for queries in (found, lacking))
    assert after.hit_rate == {k: rate / 2 for k, rate in before.hit_rate.items()}
    assert after.mrr == before.mrr / 2
    assert before.lists is not None
    assert after.lists is not None
    assert after.lists.recall == before.lists.recall / 2


def test_a_list_that_seen_items_leave_too_short_is_filled_up_with_nothing() -> None:
    model = DualEncoderTraining.of(small_config()).model().eval()
    items = encode_items(model, model.item_features(THINGS))
    seen = ItemLists.of([[2, 3], [], [0], [0, 2]])
    ranking = rank_all(model, items, Queries(COLOURED.inputs, COLOURED.relevant, seen), 3)
    assert np.isneginf(ranking.scores).sum(axis=1).tolist() == [1, 0, 0, 1]
    report = validate(model, lambda: items, Queries(COLOURED.inputs, COLOURED.relevant, seen), distribution=BETA)
    assert report.lists is not None
    assert report.lists.num_kept[2] <= 4


def test_a_glance_is_the_mean_reciprocal_rank() -> None:
    model = DualEncoderTraining.of(small_config()).model().eval()
    features = model.item_features(THINGS)
    expected = mean_reciprocal_rank(rank_all(model, encode_items(model, features), COLOURED, 4).best_rank)
    assert validation_mrr(model, features, COLOURED) == expected


def test_validation_chooses_the_mass_that_evaluation_applies() -> None:
    model = DualEncoderTraining.of(small_config()).model().eval()
    items = encode_items(model, model.item_features(THINGS))
    chosen = validate(model, lambda: items, COLOURED, distribution=BETA)
    assert chosen.cutoff_mass is not None
    assert chosen.lists is not None
    again = evaluate(model, items, COLOURED, "test", chosen.cutoff_mass, BETA)
    assert again.lists == chosen.lists
    assert again.hit_rate == chosen.hit_rate
    none = validate(model, lambda: items, COLOURED, distribution=None)
    assert none.cutoff_mass is None
    assert none.lists is None


def test_ranking_says_what_cut_offs_are_calibrated_on() -> None:
    """The score of each relevant item that can be found, and the normaliser of all that can be."""
    model = DualEncoderTraining.of(small_config()).model().eval()
    items = encode_items(model, model.item_features(THINGS))
    relevant, seen = [[0, 2], [1], [BEYOND], [3, 0]], [[2, 3], [], [0], [3]]
    queries = Queries(COLOURED.inputs, ItemLists.of(relevant), ItemLists.of(seen))
    ranking = rank_all(model, items, queries, 4, beta_logit)
    query = model.encode_queries(model.query_features(COLOURED.inputs))
    scores = model.score(query, items).scores.tolist()
    findable = [
        (number, row) for number, rows in enumerate(relevant) for row in rows if row not in (BEYOND, *seen[number])
    ]
    assert sorted(ranking.pair_query.tolist()) == [number for number, _ in findable]
    assert sorted(ranking.pair_score.tolist()) == pytest.approx(sorted(scores[n][row] for n, row in findable), abs=1e-5)
    for number, tau_q in enumerate(query.temperature.tolist()):
        logits = [oracles.losses.beta_logit(scores[number][row], tau_q) for row in range(4) if row not in seen[number]]
        assert ranking.log_normaliser[number] == pytest.approx(np.logaddexp.reduce(logits), rel=1e-4)
        allowed = [scores[number][row] for row in range(4) if row not in seen[number]]
        sampled = ranking.sampled_scores[number][np.isfinite(ranking.sampled_scores[number])]
        assert all(min(abs(score - other) for other in allowed) < 1e-5 for score in sampled.tolist())
