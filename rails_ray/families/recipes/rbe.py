"""Recipes for relevance-based embeddings, for a matrix that `rails-ray relevance` made, given by --data.folder."""

from rails_ray.families.config import RunConfig
from rails_ray.families.rbe.config import RbeConfig
from rails_ray.families.recipes.recipe import Recipe
from rails_ray.modules.schedule import TrainingConfig


@Recipe
def text_rbe() -> RunConfig:
    """100 supports by l2-greedy, and a trained part that begins as AnnCUR."""
    return RunConfig(
        name="text-rbe",
        family=RbeConfig(),
        training=TrainingConfig(
            num_steps=3000, batch_size=64, learning_rate=1e-3, weight_decay=0.0, validate_every=100, patience=10
        ),
    )
