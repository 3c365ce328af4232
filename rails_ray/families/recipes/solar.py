"""SOLAR on a data set of your own, given by --data.folder.

Sized for minutes on two cores: 26,000 queries for 7,400 texts took twelve on one that was busy. docs/log/codes.md
has measurements of this and other choices.
"""

from dataclasses import replace

from rails_ray.families.config import RunConfig
from rails_ray.families.recipes.recipe import Recipe
from rails_ray.families.solar.config import SolarConfig
from rails_ray.modules.encoders.solar import ChunksConfig
from rails_ray.modules.losses.bucket_cross_entropy import BucketCrossEntropyConfig
from rails_ray.modules.schedule import TrainingConfig

ENCODER = ChunksConfig(num_chunks=16, hidden=512, num_inputs=2**14, ngram_sizes=(3, 4))


@Recipe
def text_solar() -> RunConfig:
    """Texts that find texts, by the words and character n-grams of the queries and of the items' own texts."""
    return RunConfig(
        name="text-solar",
        family=SolarConfig(
            encoder=replace(ENCODER, reads_items=True),
            loss=BucketCrossEntropyConfig(num_sampled_buckets=500),
        ),
        training=TrainingConfig(num_steps=700, batch_size=512, learning_rate=1e-2, precision="auto"),
    )


@Recipe
def features_solar() -> RunConfig:
    """Sparse features that find labels."""
    config = text_solar()
    return replace(
        config,
        name="features-solar",
        family=SolarConfig(encoder=replace(ENCODER, input="features", num_buckets=100)),
        training=replace(config.training, num_steps=300, learning_rate=5e-3),
    )


@Recipe
def vector_solar() -> RunConfig:
    """Vectors that find labels."""
    return replace(features_solar(), name="vector-solar").with_family(
        encoder=replace(ENCODER, input="vector", num_buckets=100)
    )
