"""Baselines without training, for a text data set of your own, given by --data.folder."""

from rails_ray.families.bm25.config import Bm25Config
from rails_ray.families.config import RunConfig
from rails_ray.families.recipes.recipe import Recipe


@Recipe
def baseline_bm25() -> RunConfig:
    """BM25 over the words of the items' texts."""
    return RunConfig(name="baseline-bm25", family=Bm25Config())
