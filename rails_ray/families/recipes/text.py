"""Recipes for a text data set of your own, given by --data.folder."""

from dataclasses import replace

from rails_ray.families.config import RunConfig
from rails_ray.families.dual_encoder.negatives import CrossDeviceNegatives
from rails_ray.families.recipes.emoji import MIXTURE, emoji_mol
from rails_ray.families.recipes.recipe import Recipe
from rails_ray.families.vector_items.storing import PqItems, TrainedConfig
from rails_ray.modules.encoders.components import ComponentsConfig
from rails_ray.modules.encoders.text import TransformerConfig
from rails_ray.modules.encoders.two_tower import TwoTowerConfig
from rails_ray.modules.losses.config import TermsConfig
from rails_ray.modules.similarities.dot_product import DotProductConfig


@Recipe
def text_mol() -> RunConfig:
    """The towers and the mixture of `emoji_mol`, with more buckets and steps for longer texts and a larger corpus."""
    config = emoji_mol()
    return replace(
        config,
        name="text-mol",
        training=replace(config.training, num_steps=2000),
    ).with_family(encoder=TwoTowerConfig(width=128, hidden=256, num_buckets=2**18))


@Recipe
def text_dot() -> RunConfig:
    """Towers of `text_mol` under a dot product."""
    return replace(text_mol(), name="text-dot").with_family(similarity=DotProductConfig())


@Recipe
def text_dot_glas() -> RunConfig:
    """`text_dot` with the GLaS regulariser, SOLAR's baseline.

    Its weight is the best on validation of 0, .1, 1, 10, 100, 300 and 1000 in runs of 600 steps on TLDR (seed 0): mean
    reciprocal ranks .4135, .4128, .4130, .4125, .4148, .4086, .3866, hit rates at 10 .596, .598, .599, .600, .608,
    .603, .580 (seed 1: .4046 and .588 at 0, .4079 and .592 at 100). No query of TLDR has two items, so the
    regulariser only spreads items out there.
    """
    return replace(text_dot(), name="text-dot-glas").with_family(terms=TermsConfig(glas_weight=100.0))


@Recipe
def text_mopq() -> RunConfig:
    """The towers under a dot product of 128 numbers, trained; then trained further, together with codebooks that store
    an item in 8 bytes. The items of all workers are negatives for each query."""
    return replace(text_dot(), name="text-mopq").with_family(
        components=ComponentsConfig(width=128, query_hidden=0, gate_hidden=64),
        negatives=CrossDeviceNegatives(),
        items=PqItems(quantizer=TrainedConfig(when="jointly")),
    )


@Recipe
def text_transformer_dot() -> RunConfig:
    """A small transformer under a dot product; the items of all workers are negatives for each query."""
    config = text_dot()
    return replace(
        config,
        name="text-transformer-dot",
        training=replace(config.training, batch_size=256, learning_rate=1e-3, warmup_fraction=0.1),
    ).with_family(
        encoder=TransformerConfig(),
        components=ComponentsConfig(width=128, query_hidden=0, gate_hidden=64),
        negatives=CrossDeviceNegatives(),
    )


@Recipe
def text_transformer_mol() -> RunConfig:
    """The transformer under a Mixture of Logits; each component has its own aggregation token."""
    return replace(text_transformer_dot(), name="text-transformer-mol").with_family(
        encoder=TransformerConfig(pooling="aggregation"),
        similarity=MIXTURE,
    )
