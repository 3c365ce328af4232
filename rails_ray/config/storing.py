"""How a version stores its items: what `encode` may choose otherwise than the run's config."""

from typing import Literal

Dtype = Literal["float32", "float16", "bfloat16"]
IndexOf = Literal["average", "components", "both"]
