"""How a version stores its items: what `encode` may choose otherwise than the run's config."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from rails_ray.quantizers.opq import OpqConfig
from rails_ray.quantizers.pq import PqConfig
from rails_ray.quantizers.product import check_sizes

Dtype = Literal["float32", "float16", "bfloat16"]
IndexOf = Literal["average", "components", "both"]
Quantizer = PqConfig | OpqConfig


@dataclass(frozen=True, kw_only=True)
class PqItems:
    """Every item keeps its components as codes: of each component, num_subspaces numbers below num_codewords.

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
