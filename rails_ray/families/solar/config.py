"""SOLAR: K models with a probability for every bucket of their own; items have random codes."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

import tyro

from rails_ray.modules.encoders.solar import ChunksConfig
from rails_ray.modules.losses.bucket_cross_entropy import BucketCrossEntropyConfig
from rails_ray.modules.similarities.look_up import LookUpConfig


@dataclass(frozen=True, kw_only=True)
class SolarConfig:
    """Config of SOLAR."""

    kind: Annotated[Literal["solar"], tyro.conf.Suppress] = "solar"
    encoder: ChunksConfig = field(default_factory=ChunksConfig)
    similarity: LookUpConfig = field(default_factory=LookUpConfig)
    loss: BucketCrossEntropyConfig = field(default_factory=BucketCrossEntropyConfig)
