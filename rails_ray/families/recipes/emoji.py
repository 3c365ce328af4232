"""Emoji search in 14 languages, sized for four minutes on two cores."""

from dataclasses import replace

from rails_ray.families.config import RunConfig
from rails_ray.families.dual_encoder.config import DualEncoderConfig
from rails_ray.families.recipes.recipe import Recipe
from rails_ray.modules.encoders.components import ComponentsConfig
from rails_ray.modules.encoders.two_tower import TwoTowerConfig
from rails_ray.modules.schedule import TrainingConfig
from rails_ray.modules.similarities.dot_product import DotProductConfig
from rails_ray.modules.similarities.mol import MixtureOfLogitsConfig

MIXTURE = MixtureOfLogitsConfig(
    # Dropout is for longer runs; measurements of this and other choices are in docs/log/training.md.
    num_query_components=2,
    num_item_components=2,
    temperature=0.1,
    gate_hidden=16,
    logit_dropout=0.0,
    gate_dropout=0.0,
)


@Recipe
def emoji_mol() -> RunConfig:
    """Two towers with a Mixture of Logits of 2 x 2 components."""
    return RunConfig(
        name="emoji-mol",
        family=DualEncoderConfig(
            encoder=TwoTowerConfig(width=64, hidden=128, num_buckets=2**16),
            components=ComponentsConfig(width=64, query_hidden=0, gate_hidden=64),
            similarity=MIXTURE,
        ),
        training=TrainingConfig(num_steps=400, batch_size=512, learning_rate=3e-3),
    )


@Recipe
def emoji_dot() -> RunConfig:
    """Towers of `emoji_mol` under a dot product of vectors as wide as one component of the mixture."""
    return replace(emoji_mol(), name="emoji-dot").with_family(similarity=DotProductConfig())
