"""Does a mixture find as much with ReLU between the two layers of its gate as with SiLU?

With ReLU a score takes 2 P special functions in place of H + 2 P; they limit the scan on a GPU.

    python -m jobs.benches.gates [--sizes recipe wide] [--seeds 0 1 2] [--steps 400] [--kept FOLDER]

Emoji under the recipe `emoji-mol` (2 x 2 components, H = 16), and under a wide gate (4 x 4, H = 64). Held fixed:
everything but the activation. Both have the same seeds and the settings of the recipe, which were chosen for SiLU.
HR@1/10/50/200, MRR and NDCG@10 of the held-out queries of `pebr_data`; models are kept for `bounds`. A yes: NDCG@10 of
ReLU within the spread of SiLU's seeds.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
import tyro

from jobs.benches.pebr_data import read
from jobs.benches.pebr_models import kept_model
from jobs.benches.quality_measures import quality_of
from jobs.benches.record import Record
from rails_ray.data.dataset import DataSet
from rails_ray.families.config import RunConfig
from rails_ray.families.recipes.emoji import MIXTURE, emoji_mol
from rails_ray.kernels.mol_scan import Activation

Size = Literal["recipe", "wide"]
SIZES = {
    "recipe": MIXTURE,
    "wide": replace(MIXTURE, num_query_components=4, num_item_components=4, gate_hidden=64),
}
ACTIVATIONS: tuple[Activation, ...] = ("silu", "relu")


@dataclass(frozen=True)
class Gates:
    """Options."""

    sizes: tuple[Size, ...] = ("recipe", "wide")
    seeds: tuple[int, ...] = (0, 1, 2)
    steps: int = 400
    kept: Path = Path("/tmp/rails-ray-gates")


def config_of(size: Size, activation: Activation, seed: int, steps: int) -> RunConfig:
    """The run of one model."""
    base = emoji_mol()
    training = replace(base.training, num_steps=steps)
    named = replace(base, name=f"{size}-{activation}-{steps}", seed=seed, training=training)
    return named.with_family(similarity=replace(SIZES[size], gate_activation=activation))


def quiet(done: int, total: int, note: str) -> None:
    """Progress that nobody watches."""


def emoji() -> DataSet:
    return read("emoji", Path(), 0)


def main(options: Gates) -> None:
    torch.set_num_threads(1)
    record, data = Record("gates"), emoji()
    for size in options.sizes:
        for seed in options.seeds:
            for activation in ACTIVATIONS:
                model = kept_model(config_of(size, activation, seed, options.steps), data, options.kept, quiet)
                with torch.no_grad():
                    found = quality_of(model, model.item_features(data.item_inputs), data.queries["test"])
                record.row(size=size, activation=activation, seed=seed, steps=options.steps, **found.row)
                print(size, activation, seed, found.row, flush=True)


if __name__ == "__main__":
    main(tyro.cli(Gates))
