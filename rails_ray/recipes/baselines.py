"""Baselines without training, for a text data set of your own, given by --data.folder."""

from rails_ray.config import RunConfig
from rails_ray.config.bm25 import Bm25Config


def baseline_bm25() -> RunConfig:
    """BM25 over the words of the items' texts."""
    return RunConfig(name="baseline-bm25", family=Bm25Config())
