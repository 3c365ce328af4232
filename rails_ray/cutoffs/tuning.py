"""Choose a cut-off: every kind at many values, by the mean F-beta of the lists that it keeps.

    F_beta = (1 + beta^2) P R / (beta^2 P + R) = (1 + beta^2) hits / (kept + beta^2 relevant)

for a list with P = hits / kept and R = hits / relevant; 0 where nothing is kept. A beta above 1 asks for recall.

The best of many values looks better on the queries that chose it than on others. So each kind is also chosen on one
half of the queries, drawn at random, and measured on the other, and the other way round.

Axes: Q queries, k items of a list.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rails_ray.cutoffs import Cutoff
from rails_ray.cutoffs.policies import POLICIES, cut


@dataclass(frozen=True)
class LabelledLists:
    """The queries of a split with their best items, and which are relevant.

    scores: descending, -inf where nothing was found [Q, k].
    is_relevant: whether each of them is relevant [Q, k].
    num_relevant: relevant items of each query [Q], at least 1.
    temperature: tau_q [Q].
    num_items: items of the corpus.
    """

    scores: NDArray[np.floating]
    is_relevant: NDArray[np.bool_]
    num_relevant: NDArray[np.int64]
    temperature: NDArray[np.floating]
    num_items: int


@dataclass(frozen=True)
class Tried:
    """One cut-off, and the lists that it keeps.

    kind, value: the cut-off.
    f_beta: mean over queries.
    held_out_f_beta: of the kind, on each half of the queries with the value that is best on the other half.
    precision: relevant share of a kept list, over the queries that keep any.
    recall: kept share of a query's relevant items, against labels.
    mean_kept, num_kept: mean length of a list, and its quantiles .1, .5 and .9.
    empty_fraction, truncated_fraction: share of queries that keep nothing, and of those whose list might go on.
    """

    kind: str
    value: float
    f_beta: float
    held_out_f_beta: float
    precision: float
    recall: float
    mean_kept: float
    num_kept: tuple[float, float, float]
    empty_fraction: float
    truncated_fraction: float


def values_of(kind: str, lists: LabelledLists) -> list[float]:
    """The values to try, ascending.

    Raises:
        ValueError: if there is no such kind.
    """
    if kind not in POLICIES:
        raise ValueError(f"a cut-off to try must be one of {', '.join(POLICIES)}, got {kind!r}")
    return POLICIES[kind].values(lists.scores)


def f_beta(
    hits: NDArray[np.int64], num_kept: NDArray[np.int64], num_relevant: NDArray[np.int64], beta: float
) -> NDArray[np.float64]:
    """F-beta of each list [Q].

    Args:
        hits: relevant items kept [Q].
    """
    weight = beta**2
    return np.asarray((1 + weight) * hits / (num_kept + weight * num_relevant))


def tune(
    kind: str, policies: Sequence[tuple[float, Cutoff]], lists: LabelledLists, beta: float
) -> tuple[Tried, list[Tried]]:
    """The best value of one kind by F-beta, the lowest where several are, and all values that were tried.

    Args:
        policies: values with the policies that apply them; at least one.

    Raises:
        ValueError: if there is no query, or beta is not above 0.
    """
    if not len(lists.scores):
        raise ValueError("tuning needs at least 1 query with a relevant item, got none")
    if not beta > 0:
        raise ValueError(f"beta must be above 0, got {beta:g}")
    kept = list(_kept(policies, lists))
    hits_to = np.pad(lists.is_relevant.cumsum(axis=1), ((0, 0), (1, 0)))  # [Q, k + 1]
    hits = [np.take_along_axis(hits_to, own[:, None], axis=1)[:, 0] for own, _ in kept]
    f = np.stack([f_beta(h, own, lists.num_relevant, beta) for h, (own, _) in zip(hits, kept, strict=True)])
    unseen = held_out(f)
    tried = [
        _tried(kind, value, float(f[number].mean()), unseen, hits[number], *kept[number], lists.num_relevant)
        for number, (value, _) in enumerate(policies)
    ]
    return tried[int(f.mean(axis=1).argmax())], tried


def held_out(f: NDArray[np.float64]) -> float:
    """The mean over two halves of the queries of what the value that is best on the other half comes to.

    Args:
        f: F-beta of each value on each query [values, Q].
    """
    num_queries = f.shape[1]
    if num_queries < 2:
        return float(f.mean(axis=1).max())
    order = np.random.default_rng(0).permutation(num_queries)
    halves = order[: num_queries // 2], order[num_queries // 2 :]
    best = [int(f[:, half].mean(axis=1).argmax()) for half in halves]
    found = np.concatenate([f[best[1], halves[0]], f[best[0], halves[1]]])
    return float(found.mean())


def _kept(
    policies: Sequence[tuple[float, Cutoff]], lists: LabelledLists
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.bool_]]]:
    """The lengths of the lists, and whether each might go on below what was ranked."""
    is_cut_short = np.full(len(lists.scores), lists.scores.shape[1] < lists.num_items)
    for _, policy in policies:
        done = cut(lists.scores, lists.temperature, policy, is_cut_short)
        yield done.num_kept, done.is_truncated


def _tried(
    kind: str,
    value: float,
    f: float,
    unseen: float,
    hits: NDArray[np.int64],
    num_kept: NDArray[np.int64],
    is_truncated: NDArray[np.bool_],
    num_relevant: NDArray[np.int64],
) -> Tried:
    some = num_kept > 0
    low, middle, high = np.quantile(num_kept, [0.1, 0.5, 0.9]).tolist()
    return Tried(
        kind=kind,
        value=value,
        f_beta=f,
        held_out_f_beta=unseen,
        precision=float((hits[some] / num_kept[some]).mean()) if some.any() else 0.0,
        recall=float((hits / num_relevant).mean()),
        mean_kept=float(num_kept.mean()),
        num_kept=(low, middle, high),
        empty_fraction=float((~some).mean()),
        truncated_fraction=float(is_truncated.mean()),
    )
