"""What everyone should compare with: no training, on a text data set of one's own, given by --data.folder."""

from rails_ray.config import RunConfig
from rails_ray.config.bm25 import Bm25Config


def baseline_bm25() -> RunConfig:
    """BM25 over the words of the items' texts."""
    return RunConfig(name="baseline-bm25", family=Bm25Config())
