"""Families: what a run trains and a version serves, one folder each with its config, its model and its contract.

| member         | paper                                                                     |
|----------------|---------------------------------------------------------------------------|
| `dual_encoder` | RAILS, pEBR, MoPQ: two towers, their components, and what compares them   |
| `solar`        | SOLAR: chunks of buckets, each trained alone; items have random codes     |
| `rbe`          | RBE: supports, one piece for their matrix, and items that join by calls   |
| `bm25`         | none: the words that a query and an item share, a baseline                |

What they share: `base` is the contract, `config` the tree of a run's configs, `recipes` return such trees; `data` is
what a run reads, `items` what its items become (an artefact that is made once, then a map of each block),
`vector_items` items stored as vectors or codes, `kept_texts` a frozen model that reads each text once, and `version`
what a stored version is made of.

`family` is the one match on what a run trains. Everything else asks the `Family` that it gives.
"""

from typing import assert_never

from rails_ray.allowed_code import OURS_ALONE, AllowedCode
from rails_ray.families.base import Family
from rails_ray.families.bm25.config import Bm25Config
from rails_ray.families.bm25.family import Bm25Family
from rails_ray.families.config import RunConfig
from rails_ray.families.dual_encoder.config import DualEncoderConfig
from rails_ray.families.dual_encoder.family import DualEncoderFamily
from rails_ray.families.rbe.config import RbeConfig
from rails_ray.families.rbe.family import RbeFamily
from rails_ray.families.solar.config import SolarConfig
from rails_ray.families.solar.family import SolarFamily


def family(config: RunConfig, allowed: AllowedCode = OURS_ALONE) -> Family:
    """The family of a run.

    Args:
        allowed: code that the config may name by its import path, beside our own.
    """
    match config.family:
        case DualEncoderConfig():
            return DualEncoderFamily(config, config.family, allowed)
        case SolarConfig():
            return SolarFamily(config, config.family)
        case Bm25Config():
            return Bm25Family(config, config.family)
        case RbeConfig():
            return RbeFamily(config, config.family, allowed)
        case _:
            assert_never(config.family)
