"""Temperatures fitted at calibration: do mass and nucleus then keep the share that they name?

Held fixed: the data sets, models and splits of `jobs.benches.pebr`, whose trained models are read from --storage (or
trained into it). The factors are fitted on the queries that calibrate, as `rails-ray calibrate` fits them, and what a
cut-off keeps is measured on the others, with tau_q as trained and as fitted.

    python -m jobs.benches.temperatures --folder FOLDER --storage FOLDER [--data emoji wordnet] [--seeds 0]

Yes: with the fitted tau_q the coverage measured is within .05 of the nominal one at each of .5, .8, .9, .95 and .99.
Whether one factor serves mass and nucleus both is read from their intervals.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from jobs.benches import pebr_data, pebr_models
from jobs.benches.record import Record
from rails_ray.cli import rendering
from rails_ray.data.dataset import DataSet
from rails_ray.data.encoding import encode_items
from rails_ray.families.config import RunConfig
from rails_ray.families.training_family import training_family
from rails_ray.modules.model import Model
from rails_ray.training.evaluation.calibrating import (
    backgrounds_of,
    fitted_background,
    fitted_factors,
    nuclei_watched,
    shares_kept,
)
from rails_ray.training.evaluation.ranking import rank_all
from rails_ray.training.evaluation.report import LONGEST_LIST
from rails_ray.training.evaluation.softmax import LogLikelihoods


@dataclass(frozen=True)
class Arguments:
    """
    folder: of the data sets.
    storage: where models are kept.
    """

    folder: Path
    storage: Path
    data: tuple[str, ...] = ("emoji", "wordnet")
    losses: tuple[str, ...] = ("beta", "exp", "softmax")
    seeds: tuple[int, ...] = (0,)


def main(arguments: Arguments) -> None:
    record, console = Record("temperatures"), Console()
    table = Table("", "cut-off", "factor", "nominal", "measured", "mean kept", "empty")
    for name in arguments.data:
        for seed in arguments.seeds:
            data = pebr_data.read(name, arguments.folder, seed)
            for loss in arguments.losses:
                config = pebr_models.config_of(name, loss, seed)
                with rendering.bar(console, config.name) as on_progress:
                    model = pebr_models.kept_model(config, data, arguments.storage, on_progress)
                for row in rows_of(config, model, data):
                    record.row(data=name, seed=seed, model=loss, part=name, **row)
                    if row["kind"] == "kept":
                        table.add_row(config.name, *shown(row))
    console.print(table)


def shown(row: dict[str, Any]) -> list[str]:
    """What was measured at one level, for the eye."""
    measured = f"{row['coverage']:.3f}", f"{row['mean']:.1f}", f"{row['empty_fraction']:.3f}"
    return [f"{row['cutoff']} {row['background'] or ''}", f"{row['factor']:.3g}", f"{row['nominal']:g}", *measured]


def rows_of(config: RunConfig, model: Model, data: DataSet) -> Iterator[dict[str, Any]]:
    """The factors, and what each cut-off keeps at each level."""
    offers = training_family(config).offers
    items = encode_items(model, model.item_features(data.item_inputs))
    k = min(LONGEST_LIST, len(data.item_ids))
    likelihoods = LogLikelihoods(offers.logit)
    before = rank_all(model, items, data.queries["valid"], k, watching=[likelihoods])
    backgrounds = backgrounds_of(offers, fitted_background(before), before)
    factors, unfitted = fitted_factors(offers, backgrounds, before, likelihoods.values())
    tau = np.quantile(before.temperature, [0.1, 0.5, 0.9]).tolist()
    for name, own in {
        **{f"mass {name}": own for name, own in factors.mass.items()},
        "softmax": factors.softmax,
    }.items():
        if own is not None:
            yield {"kind": "factor", "of": name, "tau_q": tau, **dataclasses.asdict(own)}
    for sentence in unfitted:
        yield {"kind": "unfitted", "told": sentence}
    watching = nuclei_watched(offers, factors)
    after = rank_all(model, items, data.queries["test"], k, watching=list(watching.values()))
    for kept in shares_kept(offers, backgrounds, factors, watching, after, len(data.item_ids)):
        for measured, lists in zip(kept.measured, kept.lists, strict=True):
            yield {
                "kind": "kept",
                "cutoff": kept.cutoff,
                "background": kept.background,
                "factor": kept.factor,
                **dataclasses.asdict(measured),
                **dataclasses.asdict(lists),
            }


if __name__ == "__main__":
    main(tyro.cli(Arguments, description=__doc__))
