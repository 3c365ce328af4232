"""pEBR, Tables 1 and 2 and Figure 2: which cut-off finds most in lists of the same average length?

Held fixed: data, encoder, steps, batches, seed and split. Per data set and seed one model of each loss is trained, and
the corpus ranked for the queries that calibrate and for those that measure. That is kept in --storage, so that
policies are compared again without training again. Every policy has one number (k, a score, a mass ...), which is
chosen so that the lists measured are of the same average length.

    python -m jobs.benches.pebr --folder FOLDER --storage FOLDER [--data wordnet ml-1m amazon-beauty] [--seeds 0 1 2]

FOLDER of --folder holds a folder per data set (jobs/benches/pebr_data.py says what is made of them).

Yes: over all queries, and over the third with most and the third with fewest relevant items, a policy of pEBR has a
higher recall and a higher precision than top-k and a fixed score, in the mean over seeds.
"""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import tyro
from numpy.typing import NDArray
from rich.console import Console

from jobs.benches import pebr_data, pebr_models
from jobs.benches.record import Record
from rails_ray.cli import rendering
from rails_ray.cutoffs.calibration import Calibration
from rails_ray.cutoffs.distributions import UNIFORM, sphere
from rails_ray.cutoffs.measuring import LEVELS, measure
from rails_ray.cutoffs.policies import NucleusCutoff
from rails_ray.data.dataset import DataSet
from rails_ray.families.config import RunConfig
from rails_ray.families.dual_encoder.train import DualEncoderTraining
from rails_ray.families.training_family import training_family
from rails_ray.training.evaluation.calibrating import fitted_background, list_lengths, positives_of
from rails_ray.training.evaluation.ranking import Ranking

MODELS = ("softmax", "beta", "exp")
MEAN_KEPT = {"emoji": (5, 20), "wordnet": (20, 200), "ml-1m": (50, 200), "amazon-beauty": (20, 200)}
MASSES = (0.99, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4)  # of Table 2
FIGURE_VALUE = 0.5
BISECTIONS = 18

Lengths = Callable[[float], NDArray[np.int64]]  # of the lists [Q] that a policy's number gives, rising with it


@dataclass(frozen=True)
class Arguments:
    """
    folder: of the data sets.
    storage: where models and rankings are kept.
    kinds: of rows: lists of equal length, coverage against its promise, lengths by mass and by coverage.
    """

    folder: Path
    storage: Path
    data: tuple[str, ...] = ("emoji", "wordnet", "ml-1m", "amazon-beauty")
    seeds: tuple[int, ...] = (0, 1, 2)
    kinds: tuple[Literal["equal", "coverage", "length"], ...] = ("equal", "coverage", "length")


def main(arguments: Arguments) -> None:
    record, console = Record("pebr"), Console()
    for name in arguments.data:
        for seed in arguments.seeds:
            data = pebr_data.read(name, arguments.folder, seed)
            for model in MODELS:
                config = pebr_models.config_of(name, model, seed)
                with rendering.bar(console, config.name) as on_progress:
                    ranked = pebr_models.rankings(config, data, arguments.storage, on_progress)
                    on_progress(1, 1, "compare")
                    facts = {"data": name, "seed": seed, "model": model}
                    for kind in arguments.kinds:
                        for row in rows_of(kind, config, ranked["valid"], ranked["test"], data, MEAN_KEPT[name]):
                            record.row(**facts, kind=kind, part=f"{name} {kind}", **row)


def rows_of(
    kind: str, config: RunConfig, before: Ranking, after: Ranking, data: DataSet, mean_kept: tuple[int, ...]
) -> Iterator[dict[str, object]]:
    """Rows of one model."""
    match kind:
        case "equal":
            yield from equal(config, before, after, mean_kept)
        case "coverage":
            yield from coverage(config, before, after, len(data.item_ids))
        case "length" if training_family(config).cutoff_support.has_trained_temperature:
            yield from lengths_by_value(config, before, after)


def equal(
    config: RunConfig, before: Ranking, after: Ranking, mean_kept: tuple[int, ...]
) -> Iterator[dict[str, object]]:
    """Lists of equal average length, tuned for each group of queries on its own, and for all of them."""
    groups = _tertiles(after.num_relevant)
    for policy, lengths, low, high in policies(config, before, after):
        for kept in mean_kept:
            for group, members in groups.items():
                own = tuned(lengths, kept, members, low, high)
                parts = groups if group == "all" else {group: members}
                for part, some in parts.items():
                    yield {"tuned_on": group, "mean_kept": kept, "policy": policy} | quality(own, after, some, part)


def policies(config: RunConfig, before: Ranking, after: Ranking) -> Iterator[tuple[str, Lengths, float, float]]:
    """(name, lengths of lists by a number, the least and the most of that number)."""
    scores, temperature = after.scores, after.temperature

    def above(threshold: NDArray[np.floating]) -> NDArray[np.int64]:
        return ((scores >= threshold[:, None]) & (scores > -np.inf)).sum(axis=1)

    num_queries, longest = scores.shape
    yield "top_k", lambda number: np.full(num_queries, min(round(number), longest)), 1, longest
    yield "score", lambda number: above(np.full(num_queries, -number)), -1.0, 1.0
    if training_family(config).cutoff_support.has_trained_temperature:
        backgrounds = {
            "uniform": UNIFORM,
            "sphere": sphere(DualEncoderTraining.of(config).own.components.width),
            "fitted": fitted_background(before),
        }
        for name, background in backgrounds.items():
            distribution = training_family(config).cutoff_support.distribution(background)
            # the share left out, by its logarithm to the base of 10
            yield f"mass {name}", lambda x, d=distribution: above(d.quantile(10.0**-x, temperature)), 1e-4, 250.0
    distribution = training_family(config).cutoff_support.distribution()
    calibration = Calibration(positives_of(before, distribution), distribution)
    yield "coverage", lambda c: above(calibration.threshold(c, temperature)), 0.001, 0.995
    assert after.log_normaliser is not None
    softmax = NucleusCutoff(training_family(config).cutoff_support.logit, after.log_normaliser, 0.5, longest)
    probability = np.exp(softmax.log_probability(scores, temperature))
    held = probability.cumsum(axis=1)
    yield "nucleus", lambda c: np.minimum((held < c).sum(axis=1) + 1, longest), 0.0, 1.0
    yield "probability", lambda x: (probability >= 10.0**-x).sum(axis=1), 0.0, 30.0
    found = np.cumsum(after.is_relevant, axis=1) / after.num_relevant[:, None]
    number = np.arange(1, longest + 1)
    yield "hindsight", lambda x: (found - number * 10.0**-x).argmax(axis=1) + 1, 0.0, 9.0


def tuned(lengths: Lengths, mean_kept: int, members: NDArray[np.bool_], low: float, high: float) -> NDArray[np.int64]:
    """The lengths [Q] of lists whose mean over `members` comes nearest to `mean_kept` from above, by bisection."""
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if lengths(middle)[members].mean() < mean_kept:
            low = middle
        else:
            high = middle
    return lengths(high)


def quality(kept: NDArray[np.int64], after: Ranking, members: NDArray[np.bool_], group: str) -> dict[str, object]:
    """Of the lists of some queries; a list that keeps nothing has precision 0."""
    hits = np.concatenate([np.zeros((len(kept), 1), dtype=np.int64), after.is_relevant.cumsum(axis=1)], axis=1)
    own = np.take_along_axis(hits, kept[:, None], axis=1)[:, 0]
    return {
        "group": group,
        "kept": float(kept[members].mean()),
        "precision": float((own / np.maximum(kept, 1))[members].mean()),
        "recall": float((own / after.num_relevant)[members].mean()),
        "empty": float((kept == 0)[members].mean()),
    }


def coverage(config: RunConfig, before: Ranking, after: Ranking, num_items: int) -> Iterator[dict[str, object]]:
    """Nominal against measured, calibrated for all queries alike and by tertile of tau_q."""
    distribution = training_family(config).cutoff_support.distribution()
    for num_segments in (1, 3):
        calibration = Calibration(positives_of(before, distribution), distribution, num_segments)
        lists = {one.nominal: one for one in list_lengths(calibration, after, num_items, LEVELS)}
        for one in measure(calibration, positives_of(after, distribution), LEVELS):
            own = dataclasses.asdict(lists[one.nominal]) if one.segment is None else {}
            yield {"num_segments": num_segments, **dataclasses.asdict(one), **own}


def lengths_by_value(config: RunConfig, before: Ranking, after: Ranking) -> Iterator[dict[str, object]]:
    """Table 2: mean lengths by mass as trained, by coverage as calibrated; Figure 2: all lengths at one coverage."""
    distribution = training_family(config).cutoff_support.distribution()
    calibration = Calibration(positives_of(before, distribution), distribution)
    groups = _tertiles(after.num_relevant)
    for value in MASSES:
        for policy, threshold in (
            ("mass uniform", distribution.quantile(1 - value, after.temperature)),
            ("coverage", calibration.threshold(value, after.temperature)),
        ):
            kept = ((after.scores >= threshold[:, None]) & (after.scores > -np.inf)).sum(axis=1)
            for group, members in groups.items():
                row: dict[str, object] = {"policy": policy, "value": value, "group": group}
                row["kept"] = float(kept[members].mean())
                is_drawn = (DualEncoderTraining.of(config).own.loss.kind, policy, value) == (
                    "beta_nce",
                    "coverage",
                    FIGURE_VALUE,
                ) and group != "all"
                yield row | ({"lengths": kept[members].tolist()} if is_drawn else {})


def _tertiles(num_relevant: NDArray[np.int64]) -> dict[str, NDArray[np.bool_]]:
    """Queries by their number of relevant items; where many have the same number a third may be empty and left out."""
    few, many = np.quantile(num_relevant, [1 / 3, 2 / 3])
    groups = {
        "all": num_relevant > 0,
        "few": num_relevant <= few,
        "some": (num_relevant > few) & (num_relevant <= many),
        "many": num_relevant > many,
    }
    return {name: members for name, members in groups.items() if members.any()}


if __name__ == "__main__":
    main(tyro.cli(Arguments, description=__doc__))
