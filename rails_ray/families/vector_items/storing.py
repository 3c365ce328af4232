"""How a version stores its items: what `encode` may choose otherwise than the run's config."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from rails_ray.modules.quantizers.distill_vq import DistillVqConfig
from rails_ray.modules.quantizers.dpq import DpqConfig
from rails_ray.modules.quantizers.dqn import DqnConfig
from rails_ray.modules.quantizers.dvsq import DvsqConfig
from rails_ray.modules.quantizers.jpq import JpqConfig
from rails_ray.modules.quantizers.mopq import MopqConfig
from rails_ray.modules.quantizers.opq import OpqConfig
from rails_ray.modules.quantizers.pq import PqConfig
from rails_ray.modules.quantizers.product import check_sizes
from rails_ray.modules.quantizers.spq import SpqConfig
from rails_ray.modules.schedule import TrainingConfig

Dtype = Literal["float32", "float16", "bfloat16"]
IndexOf = Literal["average", "components", "both"]
Method = DqnConfig | DvsqConfig | SpqConfig | DpqConfig | MopqConfig | DistillVqConfig | JpqConfig


@dataclass(frozen=True, kw_only=True)
class FullItems:
    """Every item keeps its components.

    Args:
        dtype: type of a component's numbers; a gate is in float32.
    """

    kind: Literal["full"] = "full"
    dtype: Dtype = "float32"


@dataclass(frozen=True, kw_only=True)
class TrainedConfig:
    """Codebooks that a run trains, in a piece of its own that comes after the encoder's.

    Args:
        method: what codebooks are trained by.
        encoder_of: an earlier run of this config, but for its items, whose encoder this run begins with; empty to
            train one.
        when: `after` the encoder, which stays as it is, or `jointly` with it.
        encoder_rate: share of the learning rate that the encoder takes if it is trained jointly, above 0.
        start: what fits the codebooks that training begins with.
        training: the steps of the piece.
        revive_every: steps between two looks at codewords that no item has; 0 for none.
    """

    kind: Literal["trained"] = "trained"
    method: Annotated[Method, Field(discriminator="kind")] = field(default_factory=MopqConfig)
    encoder_of: str = ""
    when: Literal["after", "jointly"] = "after"
    encoder_rate: float = 0.1
    start: Annotated[PqConfig | OpqConfig, Field(discriminator="kind")] = field(default_factory=OpqConfig)
    training: TrainingConfig = field(default_factory=lambda: TrainingConfig(num_steps=1000, batch_size=512))
    revive_every: int = 100

    def __post_init__(self) -> None:
        if self.revive_every < 0:
            raise ValueError(f"revive_every must be at least 0, got {self.revive_every}")
        if self.method.kind == "jpq" and self.when == "jointly":
            raise ValueError(
                "when must be after for method.kind jpq, got jointly: its codes stay as they are, whatever an encoder "
                "becomes"
            )
        if not self.encoder_rate > 0:
            raise ValueError(f"encoder_rate must be above 0, got {self.encoder_rate}")


Quantizer = PqConfig | OpqConfig | TrainedConfig


@dataclass(frozen=True, kw_only=True)
class PqItems:
    """Components are stored as codes: num_subspaces numbers below num_codewords for each component.

    Args:
        num_subspaces: M, parts that a component is cut into; it must divide the component's width.
        num_codewords: L, codewords of a part: 16 or fewer take half a byte, up to 256 a byte.
        quantizer: what chooses the codewords.
        has_vectors: whether components are kept beside their codes, to score what the codes find.
        nlist: lists that items are put in for `ivf_lookup`, by their mean component; 0 for none.
        dtype: type of the numbers of components that are kept.
    """

    kind: Literal["pq"] = "pq"
    num_subspaces: int = 8
    num_codewords: int = 256
    quantizer: Annotated[Quantizer, Field(discriminator="kind")] = field(default_factory=OpqConfig)
    has_vectors: bool = False
    nlist: int = 0
    dtype: Dtype = "float32"

    def __post_init__(self) -> None:
        check_sizes(self.num_subspaces, self.num_subspaces, self.num_codewords)
        if self.nlist < 0:
            raise ValueError(f"nlist must be at least 0, got {self.nlist}")


Items = FullItems | PqItems
