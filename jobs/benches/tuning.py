"""`rails-ray tune --cutoff`: is what validation queries choose good on test queries too?

Held fixed: data sets, models and splits of `jobs.benches.pebr`, whose models are read from --storage (or trained into
it). The version is calibrated on the validation queries, as `rails-ray calibrate` does it; the value of each kind with
the highest F1 is chosen on the same queries and measured on the test queries.

    python -m jobs.benches.tuning --folder FOLDER --storage FOLDER [--data emoji wordnet] [--losses beta]

Yes: the kind that is best on the validation queries is the best on the test queries, or within .005 of it, and its F1
there is within .01 of what the two halves of the validation queries say (`held_out_f_beta`).
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console
from rich.table import Table

from jobs.benches import pebr_data, pebr_models
from jobs.benches.record import Record
from rails_ray.cli import rendering
from rails_ray.cli.tuning import asked_by, lists_of, try_kinds
from rails_ray.cutoffs.distributions import UNIFORM
from rails_ray.cutoffs.policies import POLICIES
from rails_ray.cutoffs.temperatures import HELD_OUT
from rails_ray.cutoffs.tuning import tune
from rails_ray.data.dataset import DataSet
from rails_ray.data.encoding import encode_items
from rails_ray.families.config import RunConfig
from rails_ray.families.training_family import training_family
from rails_ray.modules.model import Model
from rails_ray.serving.cutoffs import Cutoffs
from rails_ray.storage.calibrations import StoredCalibration
from rails_ray.training.evaluation.calibrating import backgrounds_of, fitted_background, fitted_factors, positives_of
from rails_ray.training.evaluation.ranking import rank_all
from rails_ray.training.evaluation.report import LONGEST_LIST
from rails_ray.training.evaluation.softmax import LogLikelihoods

BETAS = (0.5, 1.0, 2.0)


@dataclass(frozen=True)
class Arguments:
    """
    folder: of the data sets.
    storage: where models are kept.
    """

    folder: Path
    storage: Path
    data: tuple[str, ...] = ("emoji", "wordnet")
    losses: tuple[str, ...] = ("beta",)
    seeds: tuple[int, ...] = (0,)


def main(arguments: Arguments) -> None:
    record, console = Record("tuning"), Console()
    table = Table("", "beta", "cut-off", "valid", "other half", "test", "precision", "recall", "mean kept", "empty")
    for name in arguments.data:
        for seed in arguments.seeds:
            data = pebr_data.read(name, arguments.folder, seed)
            for loss in arguments.losses:
                config = pebr_models.config_of(name, loss, seed)
                with rendering.bar(console, config.name) as on_progress:
                    model = pebr_models.kept_model(config, data, arguments.storage, on_progress)
                for row in rows_of(config, model, data):
                    record.row(data=name, seed=seed, model=loss, part=name, **row)
                    scores = (f"{row[key]:.4f}" for key in ("valid", "other_half", "f_beta", "precision", "recall"))
                    rest = f"{row['mean_kept']:.1f}", f"{row['empty_fraction']:.3f}"
                    table.add_row(config.name, f"{row['beta']:g}", f"{row['kind']} {row['value']:.6g}", *scores, *rest)
    console.print(table)


def rows_of(config: RunConfig, model: Model, data: DataSet) -> Iterator[dict[str, Any]]:
    """What each kind comes to on the test queries, with the value that the validation queries choose."""
    offers, num_items = training_family(config).offers, len(data.item_ids)
    items, k = encode_items(model, model.item_features(data.item_inputs)), min(LONGEST_LIST, num_items)
    likelihoods = LogLikelihoods(offers.logit)
    first = rank_all(model, items, data.queries["valid"], k, watching=[likelihoods])
    fitted = fitted_background(first)
    backgrounds = backgrounds_of(offers, fitted, first)
    factors, _ = fitted_factors(offers, backgrounds, first, likelihoods.values())
    stored = StoredCalibration(
        positives=positives_of(first, offers.distribution()),
        num_segments=3,
        background_name="uniform",
        background=UNIFORM,
        fitted=fitted,
        split="valid",
        created_at="",
        factors=factors,
        held_out=backgrounds.get(HELD_OUT),
    )
    cutoffs = Cutoffs.of(offers, num_items, None, stored)
    before, after = (rank_all(model, items, data.queries[own], k, cutoffs.softmax_logit) for own in ("valid", "test"))
    for beta in BETAS:
        best, _, _ = try_kinds(cutoffs, lists_of(before, num_items), before.log_normaliser, list(POLICIES), beta)
        for one in best:
            policy = cutoffs.policy(asked_by(one.kind, one.value), k, after.log_normaliser)
            measured, _ = tune(one.kind, [(one.value, policy)], lists_of(after, num_items), beta)
            row = {"beta": beta, "valid": one.f_beta, "other_half": one.held_out_f_beta}
            yield row | {key: own for key, own in dataclasses.asdict(measured).items() if key != "held_out_f_beta"}


if __name__ == "__main__":
    main(tyro.cli(Arguments, description=__doc__))
