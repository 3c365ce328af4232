"""Next items of histories of your own, short or few, by the order of the items before them. Sized for two CPU cores.

A learning rate that stays constant needs no number of epochs: `patience` ends a run, and its best weights are kept.

Source: the settings of eSASRec for Beauty, Toys and Sports of Amazon's reviews, under a sampled softmax.
Differs from the source: vectors are no longer than 1, and a temperature makes up for it, so that scores are in [-1, 1];
a batch shares its negatives, so that thousands cost little; more is dropped; validation is by MRR.
What they find, and what public ones find, is in docs/log/training.md.
"""

from dataclasses import replace
from typing import Any

from rails_ray.families.config import RunConfig
from rails_ray.families.dual_encoder.config import DualEncoderConfig
from rails_ray.families.dual_encoder.negatives import UniformNegatives
from rails_ray.families.recipes.recipe import Recipe
from rails_ray.modules.encoders.components import ComponentsConfig
from rails_ray.modules.encoders.hstu import HstuConfig
from rails_ray.modules.encoders.sasrec import SasrecConfig
from rails_ray.modules.losses.config import ContrastiveConfig
from rails_ray.modules.schedule import TrainingConfig
from rails_ray.modules.similarities.dot_product import DotProductConfig
from rails_ray.modules.similarities.mol import MixtureOfLogitsConfig

ENCODER: dict[str, Any] = {"width": 256, "positions_from": "newest", "dropout": 0.4, "item_dropout": 0.2}
TEMPERATURE = 0.0625  # of queries of length 1 in place of LayerNorm's, which have length sqrt(256)


@Recipe
def sasrec() -> RunConfig:
    """SASRec of one block under a dot product."""
    return RunConfig(
        name="sasrec",
        family=DualEncoderConfig(
            encoder=SasrecConfig(num_blocks=1, **ENCODER),
            components=ComponentsConfig(queries="given", items="given", lengths="at_most_one"),
            similarity=DotProductConfig(temperature=TEMPERATURE),
            loss=ContrastiveConfig(kind="sampled_softmax", pointwise_weight=0.0),
            negatives=UniformNegatives(num_items=8192),
        ),
        training=TrainingConfig(
            num_steps=35_000,
            batch_size=128,
            schedule="constant",
            warmup_fraction=0.005,
            weight_decay=0.0,
            validate_every=350,
            patience=4,
        ),
    )


@Recipe
def sasrec_mol() -> RunConfig:
    """Encoder of `sasrec` under a Mixture of Logits of four vectors of a history with the embedding of an item, which
    stores four numbers more than in `sasrec`."""
    return replace(sasrec(), name="sasrec-mol").with_family(
        similarity=MIXTURE,
        components=ComponentsConfig(items="given", lengths="at_most_one", query_hidden=0, gate_hidden=64),
    )


MIXTURE = MixtureOfLogitsConfig(
    num_query_components=4,
    num_item_components=1,
    gate_hidden=16,
    temperature=TEMPERATURE,
    logit_dropout=0.0,
)


@Recipe
def esasrec() -> RunConfig:
    """SASRec with the gated layers of LiGR (eSASRec) under a dot product."""
    return replace(sasrec(), name="esasrec").with_family(encoder=ESASREC)


@Recipe
def esasrec_mol() -> RunConfig:
    """Encoder of `esasrec` under the mixture of `sasrec_mol`."""
    return replace(sasrec_mol(), name="esasrec-mol").with_family(encoder=ESASREC)


ESASREC = SasrecConfig(num_blocks=1, layers="ligr", **ENCODER)


@Recipe
def hstu() -> RunConfig:
    """HSTU in place of SASRec, under a dot product."""
    return replace(sasrec(), name="hstu").with_family(encoder=HSTU)


@Recipe
def hstu_mol() -> RunConfig:
    """HSTU under the mixture of `sasrec_mol`."""
    return replace(sasrec_mol(), name="hstu-mol").with_family(encoder=HSTU)


HSTU = HstuConfig(num_blocks=2, **ENCODER)
