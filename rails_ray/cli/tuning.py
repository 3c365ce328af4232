"""Try the cut-offs of a stored version, or of a run, on queries of a split: which one has the highest F-beta?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rails_ray.allowed_code import AllowedCode
from rails_ray.cutoffs import Cutoff
from rails_ray.cutoffs.policies import POLICIES
from rails_ray.cutoffs.tuning import LabelledLists, Tried, tune, values_of
from rails_ray.data.queries import Queries
from rails_ray.errors import UnsupportedError
from rails_ray.families import calibrations, config
from rails_ray.families.config import DataConfig
from rails_ray.families.data import read_data
from rails_ray.families.training_family import training_family
from rails_ray.families.version_queries import VersionQueries, with_data_of
from rails_ray.modules.model import Model
from rails_ray.modules.similarities.states import AnyItems
from rails_ray.schema.requests import CutoffInput
from rails_ray.serving.cutoffs import Cutoffs
from rails_ray.storage import runs
from rails_ray.storage.filesystem import Storage
from rails_ray.training.evaluation import seen
from rails_ray.training.evaluation.ranking import Ranking, rank_all
from rails_ray.training.evaluation.report import LONGEST_LIST

TUNED_ON = ("valid", "train")


@dataclass(frozen=True)
class Tuning:
    """
    tuned: name of the run or version.
    split, num_queries: the queries that chose.
    calibrated_on: split and number of the queries that calibrated the version, in words; None if none did.
    beta: of F-beta.
    best: the best of each kind, by F-beta descending.
    tried: all that was tried.
    left_out: a sentence for each kind that the version cannot have, and for relevant items that no answer may hold.
    """

    tuned: str
    split: str
    num_queries: int
    calibrated_on: str | None
    beta: float
    best: list[Tried]
    tried: list[Tried]
    left_out: list[str]

    @property
    def cutoff(self) -> dict[str, Any]:
        """The field `cutoff` of a request that asks for the best one."""
        return asked_by(self.best[0].kind, self.best[0].value).model_dump(exclude_defaults=True)


def asked_by(kind: str, value: float) -> CutoffInput:
    """The field `cutoff` of a request."""
    given: dict[str, Any] = {kind: int(value) if kind == "top_k" else value}
    return CutoffInput(**given)


def tune_cutoffs(
    store: Storage,
    *,
    run: str | None = None,
    version: str | None = None,
    split: str = "valid",
    kinds: Sequence[str] = (),
    beta: float = 1.0,
    data: DataConfig | None = None,
    allow_code: Sequence[str] = (),
) -> Tuning:
    """Try the cut-offs of a version, published or not, or of a run, which has no calibration. Nothing is stored.

    Args:
        version: by default the current one.
        split: queries that choose; never those of the test split.
        kinds: kinds of cut-off to try; by default all.
        data: by default the data in the config of the run or version.
        allow_code: as in `local.open`.

    Raises:
        NotFoundError: if there is no such run or version.
        DamagedError: if a file differs from what was written.
        ValueError: if both a run and a version are given, or the split, a kind or beta cannot be.
        UnsupportedError: if none of the kinds can be had.
    """
    if run is not None and version is not None:
        raise ValueError(f"give a run or a version to tune, got run {run!r} and version {version!r}")
    if split not in TUNED_ON:
        raise ValueError(
            f"split must be valid or train, got {split!r}: test queries measure what others have chosen, with "
            "`rails-ray evaluate`"
        )
    for kind in kinds:
        if kind not in POLICIES:
            raise ValueError(f"a cut-off to try must be one of {', '.join(POLICIES)}, got {kind!r}")
    if not beta > 0:
        raise ValueError(f"beta must be above 0, got {beta:g}")
    allowed = AllowedCode.given(allow_code)
    if run is not None:
        found = runs.read(store, run)
        run_config = with_data_of(config.from_json(found.config), data)
        read = read_data(run_config, store, [split])
        own = training_family(run_config, allowed.read_by(f"run {run}", str(store)))
        own.check_can_be_asked(read)
        model = own.trained_model(runs.weights(store, found))
        items = own.run_items(store, run, model, read)
        cutoffs = Cutoffs.of(own.cutoff_support, len(items), found.cutoff_mass, None)
        return _tuned(run, cutoffs, model, items, read.queries[split], split, kinds or list(POLICIES), beta)
    stored = VersionQueries.read(store, version, data, [split], allowed)
    calibration = calibrations.read_current(store, stored.version)
    cutoffs = Cutoffs.of(
        training_family(stored.config).cutoff_support, len(stored.items), stored.cutoff_mass, calibration
    )
    queries = stored.queries(split)
    return _tuned(stored.version, cutoffs, stored.model, stored.items, queries, split, kinds or list(POLICIES), beta)


def _tuned(
    name: str,
    cutoffs: Cutoffs,
    model: Model,
    items: AnyItems,
    queries: Queries,
    split: str,
    kinds: Sequence[str],
    beta: float,
) -> Tuning:
    ranking = rank_all(model, items, queries, min(LONGEST_LIST, len(items)), cutoffs.softmax_logit)
    lists = lists_of(ranking, len(items))
    best, tried, left_out = try_kinds(cutoffs, lists, ranking.log_normaliser, kinds, beta)
    if not best:
        raise UnsupportedError(f"{name} must offer a cut-off to try, got none: {'; '.join(left_out)}")
    stored = cutoffs.stored
    return Tuning(
        tuned=name,
        split=split,
        num_queries=len(lists.scores),
        calibrated_on=None if stored is None else f"{stored.positives.num_queries} queries of split {stored.split}",
        beta=beta,
        best=best,
        tried=tried,
        left_out=[*left_out, *seen.left_out(queries, split)],
    )


def lists_of(ranking: Ranking, num_items: int) -> LabelledLists:
    """The lists of a ranking of a corpus of `num_items`."""
    return LabelledLists(ranking.scores, ranking.is_relevant, ranking.num_relevant, ranking.temperature, num_items)


def try_kinds(
    cutoffs: Cutoffs,
    lists: LabelledLists,
    log_normaliser: NDArray[np.float64] | None,
    kinds: Sequence[str],
    beta: float,
) -> tuple[list[Tried], list[Tried], list[str]]:
    """The best of each kind by F-beta descending, all that was tried, and a sentence for each kind that cannot be had.

    Args:
        log_normaliser: log-sum-exp over the corpus of each query's `softmax_logit` [Q]; None without a logit.
    """
    best, tried, left_out = list[Tried](), list[Tried](), list[str]()
    for kind in kinds:
        try:
            policies = _policies(kind, cutoffs, lists, log_normaliser)
        except UnsupportedError as error:
            left_out.append(f"{kind}: {error}")
            continue
        chosen, own = tune(kind, policies, lists, beta)
        best.append(chosen)
        tried += own
    return sorted(best, key=lambda one: -one.f_beta), tried, left_out


def _policies(
    kind: str, cutoffs: Cutoffs, lists: LabelledLists, log_normaliser: NDArray[np.float64] | None
) -> list[tuple[float, Cutoff]]:
    """Compute what a server would apply for each value that the version can have.

    Raises:
        UnsupportedError: if it can have none.
    """
    if kind in ("nucleus", "probability"):
        cutoffs.check_logit()
    found, refusal = list[tuple[float, Cutoff]](), ""
    for value in values_of(kind, lists):
        try:
            policy = cutoffs.policy(asked_by(kind, value), lists.scores.shape[1], log_normaliser)
        except ValueError as error:  # a coverage that needs more calibration queries
            refusal = str(error)
            continue
        found.append((value, policy))
    if not found:
        raise UnsupportedError(refusal or f"no query has an item to try {kind} on")
    return found
