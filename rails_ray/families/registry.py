"""The family of a run: the one match on what it trains."""

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
