"""Temperatures fitted on one split, and what mass and nucleus keep on another, beside loops over a small corpus."""

from dataclasses import replace

import numpy as np
import pytest

import oracles.cutoffs
from rails_ray.cutoffs.distributions import BetaDistribution
from rails_ray.cutoffs.measuring import LEVELS
from rails_ray.cutoffs.temperatures import AS_TRAINED, FACTORS, HELD_OUT, Factor, Factors, fit, log_likelihoods
from rails_ray.data.encoding import encode_items
from rails_ray.data.queries import ItemLists, Queries
from rails_ray.families.dual_encoder.train import DualEncoderTraining
from rails_ray.families.training_family import training_family
from rails_ray.modules.losses.beta_nce import beta_logit
from rails_ray.modules.losses.config import ContrastiveConfig
from rails_ray.training.evaluation.calibrating import (
    backgrounds_of,
    fitted_factors,
    fitted_mass,
    nuclei_watched,
    shares_kept,
)
from rails_ray.training.evaluation.ranking import Ranking, rank_all
from rails_ray.training.evaluation.softmax import LogLikelihoods, MassAbove
from support.examples import COLOURED, THINGS, small_config

OFFERS = training_family(small_config()).cutoff_support
SEEN = Queries(COLOURED.inputs, COLOURED.relevant, seen=ItemLists.of([[row] for row in range(len(COLOURED))]))


def ranked(queries: Queries, *watching: LogLikelihoods | MassAbove, k: int = 4) -> Ranking:
    model = DualEncoderTraining.of(small_config()).model().eval()
    return rank_all(model, encode_items(model, model.item_features(THINGS)), queries, k, watching=watching)


def logits_of(queries: Queries, factor: float) -> list[tuple[list[float], list[int]]]:
    """The logits that each query finds, and the places of its relevant items among them."""
    model = DualEncoderTraining.of(small_config()).model().eval()
    items = encode_items(model, model.item_features(THINGS))
    state = model.encode_queries(model.query_features(queries.inputs))
    logits = (beta_logit(model.score(state, items).scores, state.temperature) / factor).tolist()
    found = []
    for number, line in enumerate(logits):
        seen = [] if queries.seen is None else queries.seen[number].tolist()
        rows = [row for row in range(len(THINGS)) if row not in seen]
        relevant = [rows.index(row) for row in queries.relevant[number].tolist() if row in rows]
        found.append(([line[row] for row in rows], relevant))
    return found


@pytest.mark.parametrize("queries", [COLOURED, SEEN])
def test_the_softmax_of_a_ranking_equals_the_oracles_loops(queries: Queries) -> None:
    likelihoods, above = LogLikelihoods(OFFERS.logit), MassAbove(OFFERS.logit)
    ranking = ranked(queries, likelihoods, above)
    found, positives = likelihoods.values(), above.positives(ranking.temperature)
    for number in (0, 8, len(FACTORS) - 1):
        asked = [own for own in logits_of(queries, 1.0) if own[1]]
        expected = [oracles.cutoffs.mean_log_probability([own], FACTORS[number]) for own in asked]
        assert found[:, number] == pytest.approx(np.array(expected), rel=1e-4, abs=1e-6)
    expected = [oracles.cutoffs.softmax_above(line, row) for line, rows in logits_of(queries, 1.0) for row in rows]
    assert 1 - positives.share == pytest.approx(np.array(expected), abs=1e-5)
    assert len(above.log_normaliser) == len(queries)
    assert positives.num_queries == len(asked)


def test_few_pairs_at_a_time_are_as_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, parts = MassAbove(OFFERS.logit), MassAbove(OFFERS.logit)
    temperature = ranked(COLOURED, whole).temperature
    monkeypatch.setattr("rails_ray.training.evaluation.softmax.BLOCK_SCORES", 1)
    ranked(COLOURED, parts)
    assert parts.positives(temperature).share == pytest.approx(whole.positives(temperature).share)


def drawn(seed: int, num_queries: int = 4000) -> Ranking:
    """Relevant items whose scores have thrice the tau_q that the model says, each first in a list of one."""
    generator = np.random.default_rng(seed)
    tau_q = generator.uniform(0.02, 0.1, num_queries)
    score = 2 * generator.beta(1 + 1 / (3 * tau_q), 1) - 1
    return Ranking(
        best_rank=np.ones(num_queries, dtype=np.int64),
        scores=score[:, None].astype(np.float32),
        is_relevant=np.ones((num_queries, 1), dtype=bool),
        num_relevant=np.ones(num_queries, dtype=np.int64),
        temperature=tau_q.astype(np.float32),
        pair_query=np.arange(num_queries),
        pair_score=score.astype(np.float32),
        sampled_scores=np.zeros((num_queries, 1), dtype=np.float32),
    )


@pytest.mark.long
def test_masses_are_fitted_on_one_split_and_measured_on_another() -> None:
    before, after = drawn(0), drawn(1)
    backgrounds = backgrounds_of(OFFERS, None, before)
    assert list(backgrounds) == [HELD_OUT, "uniform", "sphere"]
    factors, unfitted = fitted_factors(OFFERS, backgrounds, before, None)
    assert factors.mass["uniform"] == fit(
        log_likelihoods(before.pair_query, before.pair_score, before.temperature, BetaDistribution())
    )
    assert (factors.softmax, unfitted) == (None, [])
    assert factors.background == HELD_OUT
    kept = {(one.name, one.factor): one for one in shares_kept(OFFERS, backgrounds, factors, {}, after, 1)}
    for name in (HELD_OUT, "uniform"):
        own = kept[f"mass over {name}", factors.mass[name].value]
        assert [one.nominal for one in own.measured] == [one.nominal for one in own.lists] == list(LEVELS)
        for measured, lists in zip(own.measured, own.lists, strict=True):
            assert measured.coverage == pytest.approx(measured.nominal, abs=0.02)
            assert lists.mean == pytest.approx(measured.coverage)  # a list of one relevant item
    as_trained = kept["mass over uniform", 1.0]
    assert as_trained.measured[2].coverage < 0.6
    mass = fitted_mass(OFFERS, backgrounds, factors, before)
    assert mass is not None
    assert mass > 0.9, "everything is relevant"
    assert fitted_mass(OFFERS, backgrounds, AS_TRAINED, before) is None


def test_nuclei_are_measured_as_trained_and_as_fitted() -> None:
    factors = Factors(softmax=Factor(3.0, 2.0, 4.0, 9))
    watched = nuclei_watched(OFFERS, factors)
    ranking = ranked(COLOURED, *watched.values())
    plain, fitted = shares_kept(OFFERS, {}, factors, watched, ranking, len(THINGS))
    assert (plain.name, plain.factor, fitted.factor) == ("nucleus", 1.0, 3.0)
    for own in (plain, fitted):
        queries = logits_of(COLOURED, own.factor)
        for measured, lists in zip(own.measured, own.lists, strict=True):
            covered, lengths = [], []
            for logits, relevant in queries:
                weights = sorted((np.exp(logit) for logit in logits), reverse=True)
                lengths.append(oracles.cutoffs.nucleus(weights, measured.nominal))
                above = [oracles.cutoffs.softmax_above(logits, row) for row in relevant]
                covered += [sum(one < measured.nominal for one in above) / len(above)] if above else []
            assert measured.coverage == pytest.approx(np.mean(covered))
            assert lists.mean == pytest.approx(np.mean(lengths))


def test_what_cannot_be_fitted_is_told_and_the_rest_is_fitted() -> None:
    before = drawn(0, 50)
    low = replace(before, pair_score=np.full(50, -0.9, dtype=np.float32))
    factors, unfitted = fitted_factors(OFFERS, backgrounds_of(OFFERS, None, low), low, np.zeros((9, len(FACTORS))))
    assert HELD_OUT not in backgrounds_of(OFFERS, None, low)
    assert "uniform" not in factors.mass
    assert unfitted[0].startswith(
        "mass over uniform keeps tau_q as trained: the factor on tau_q that fits the held-out"
    )
    assert unfitted[-1].startswith("nucleus and probability keep tau_q as trained: the factor on tau_q that fits")


def test_a_model_without_a_trained_tau_q_has_no_mass_to_fit() -> None:
    plain = training_family(small_config().with_family(loss=ContrastiveConfig(kind="sampled_softmax"))).cutoff_support
    assert backgrounds_of(plain, None, drawn(0, 50)) == {}
