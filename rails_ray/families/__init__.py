"""Config -> objects: the only place that chooses an implementation.

| module         | what it builds                                                                   |
|----------------|----------------------------------------------------------------------------------|
| `family`       | the contract of a family, and what most of them share                            |
| `dual_encoder` | models, samplers and training steps of a dual encoder, which is one piece        |
| `solar`        | SOLAR's chunks, each a piece, and the codes of items                             |
| `rbe`          | RBE: supports, one piece for its matrix, and items that join by calls            |
| `data`         | what a run reads: its data set and its corpus                                    |
| `items`        | what its items become: an artefact that is made once, then a map of each block   |
| `kept_texts`   | a frozen model of texts that reads each text once, whatever is asked of it       |
| `surrogates`   | vectors that stand for a mixture's scores, fitted when encoding begins           |
| `run_ranker`   | a trained run as a heavy ranker                                                  |
| `version`      | what a stored version is made of                                                 |

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
