"""Product quantization: a vector is cut into M parts, and each part is replaced by one of L codewords.

    y            = R x                                           rotated, if there is a rotation
    code_m(x)    = argmax_l <y_m, s_ml> + b_ml                   the first of equal ones
    x~           = R^T [c_1,code_1(x) ... c_M,code_M(x)]         what is read back
    <q, x~>      = sum_m T_q[m, code_m(x)]                       T_q[m, l] = <(R q)_m, c_ml>

Every way to select a codeword is an inner product with a selector s plus a bias b:

    l2             s = 2 c,       b = -|c|^2       the nearest codeword, as |y - c|^2 = |y|^2 - 2 <y, c> + |c|^2
    cosine         s = c / |c|,   b = 0
    inner product  s = c,         b = 0
    bilinear       s = W c,       b = 0            W is learned

Source: Jegou et al., Product Quantization (asymmetric distance); MoPQ, Section 2.1 and 4.1 (selections); Ge et al.,
Optimized Product Quantization (rotation).
Differs from the source: l2 by the expansion. Differences [X, M, L, w] took 25 to 30 times as long (X = 500,
M = 8, L = 256, w = 16; docs/log/codes.md).

A vector may be several vectors of one width, one after the other, as an item's components are: the rotation then turns
each of them alike.

Axes: X items, B queries, D numbers of a vector, d size of the rotation, which divides D, M subspaces, L codewords,
w = D / M numbers of a codeword.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Integer, UInt8
from torch import Tensor

from rails_ray.errors import DamagedError
from rails_ray.kernels.unit import unit

Selection = Literal["l2", "cosine", "inner_product", "bilinear"]

MOST_CODEWORDS = 256  # that a byte can tell apart
MOST_IN_HALF = 16  # that half a byte can
ORTHOGONAL = 1e-3  # how far a place of R R^T may be from that of 1: float32, as k-means and SVD leave it
BLOCK_ITEMS = 2**14  # encoded at once: scores of 256 codewords take 16 MB


def check_sizes(width: int, num_subspaces: int, num_codewords: int) -> None:
    """
    Raises:
        ValueError: if a vector cannot be cut into so many parts, or a byte cannot hold a code.
    """
    if num_subspaces < 1 or width % num_subspaces:
        raise ValueError(f"num_subspaces must divide the {width} numbers of a vector, got {num_subspaces}")
    if not 2 <= num_codewords <= MOST_CODEWORDS:
        raise ValueError(
            f"num_codewords must be at least 2 and at most the {MOST_CODEWORDS} that a byte tells apart, got "
            f"{num_codewords}"
        )


def check_rotation(rotation: Float[Tensor, "d d"], width: int) -> None:
    """
    Raises:
        ValueError: if it cannot turn each d of a vector's numbers, or changes lengths.
    """
    if rotation.shape[0] != rotation.shape[1] or width % len(rotation):
        raise ValueError(f"a rotation must be square and divide {width} numbers, got {list(rotation.shape)}")
    if (rotation @ rotation.T - torch.eye(len(rotation), device=rotation.device)).abs().max() > ORTHOGONAL:
        raise ValueError("a rotation must keep lengths, got a matrix that changes them")


def selectors_of(
    codebooks: Float[Tensor, "M L w"], selection: Selection, bilinear: Float[Tensor, "M w w"] | None = None
) -> tuple[Float[Tensor, "M L w"], Float[Tensor, "M L"]]:
    """Selectors and biases, differentiably.

    Args:
        bilinear: W of each subspace; read by `bilinear` alone.
    """
    none = codebooks.new_zeros(codebooks.shape[:2])
    match selection:
        case "l2":
            return 2 * codebooks, -codebooks.square().sum(dim=2)
        case "cosine":
            return unit(codebooks), none
        case "inner_product":
            return codebooks, none
        case "bilinear":
            assert bilinear is not None
            return codebooks @ bilinear.transpose(1, 2), none


@dataclass(frozen=True)
class ProductQuantizer:
    """Product quantizer, however it was trained, ready to encode and to search.

    codebooks: what a code stands for.
    selectors, biases: what chooses a code.
    rotation: R, orthogonal; None for none.

    Raises:
        ValueError: if the parts do not fit each other, or are not finite.
    """

    codebooks: Float[Tensor, "M L w"]
    selectors: Float[Tensor, "M L w"]
    biases: Float[Tensor, "M L"]
    rotation: Float[Tensor, "d d"] | None = None

    def __post_init__(self) -> None:
        check_sizes(self.width, self.num_subspaces, self.num_codewords)
        for name in ("codebooks", "selectors", "biases", "rotation"):
            value = getattr(self, name)
            if value is not None and not value.isfinite().all():
                raise ValueError(f"{name} of a quantizer must be finite, got NaN or infinity")
        if self.selectors.shape != self.codebooks.shape or self.biases.shape != self.codebooks.shape[:2]:
            raise ValueError(
                f"selectors and biases must fit codebooks of {list(self.codebooks.shape)}, got "
                f"{list(self.selectors.shape)} and {list(self.biases.shape)}"
            )
        if self.rotation is not None:
            check_rotation(self.rotation, self.width)

    @staticmethod
    def of(
        codebooks: Float[Tensor, "M L w"],
        rotation: Float[Tensor, "d d"] | None = None,
        selection: Selection = "l2",
        bilinear: Float[Tensor, "M w w"] | None = None,
    ) -> "ProductQuantizer":
        """A quantizer that selects codewords by `selection`."""
        return ProductQuantizer(codebooks, *selectors_of(codebooks, selection, bilinear), rotation)

    @property
    def width(self) -> int:
        """D."""
        return self.num_subspaces * self.codebooks.shape[2]

    @property
    def num_subspaces(self) -> int:
        """M."""
        return self.codebooks.shape[0]

    @property
    def num_codewords(self) -> int:
        """L."""
        return self.codebooks.shape[1]

    @property
    def is_packed(self) -> bool:
        """Return whether codes are stored two in a byte."""
        return self.num_codewords <= MOST_IN_HALF

    def rotated(self, vectors: Float[Tensor, "X D"]) -> Float[Tensor, "X D"]:
        """R x."""
        return turned(vectors, self.rotation)

    def encode(self, vectors: Float[Tensor, "X D"]) -> UInt8[Tensor, "X M"]:
        """The codes of vectors.

        Raises:
            ValueError: if vectors have another width, or are not finite.
        """
        self._check_width("vectors", vectors)
        is_bad = ~vectors.isfinite().all(dim=1)
        if is_bad.any():
            raise ValueError(f"vectors must be finite, got NaN or infinity in row {int(is_bad.nonzero()[0])}")
        codes = torch.empty(len(vectors), self.num_subspaces, dtype=torch.uint8, device=vectors.device)
        for first in range(0, len(vectors), BLOCK_ITEMS):
            block = slice(first, first + BLOCK_ITEMS)
            parts = self.rotated(vectors[block].to(self.codebooks.dtype)).unflatten(1, (self.num_subspaces, -1))
            for subspace in range(self.num_subspaces):
                scores = torch.addmm(self.biases[subspace], parts[:, subspace], self.selectors[subspace].T)
                codes[block, subspace] = scores.argmax(dim=1).to(torch.uint8)
        return codes

    def decode(self, codes: Integer[Tensor, "X M"]) -> Float[Tensor, "X D"]:
        """Return the vectors that codes stand for: x~.

        Raises:
            ValueError: if codes have another number of parts, or one is no codeword.
        """
        self.check_codes(codes)
        back = None if self.rotation is None else self.rotation.T
        return turned(self.decode_rotated(codes), back)

    def decode_rotated(self, codes: Integer[Tensor, "*X M"]) -> Float[Tensor, "*X D"]:
        """R x~, of codes that are known to fit. An inner product with R q equals that of q and x~."""
        places = codes.int() + self._offsets(codes.device)
        flat = self.codebooks.flatten(end_dim=1)
        return flat.index_select(0, places.flatten()).view(*codes.shape[:-1], self.width)

    def lookup_table(self, queries: Float[Tensor, "B D"]) -> Float[Tensor, "B M L"]:
        """Return what each codeword adds to the inner product of a query.

        Raises:
            ValueError: if queries have another width.
        """
        self._check_width("queries", queries)
        parts = self.rotated(queries).unflatten(1, (self.num_subspaces, -1))
        return torch.einsum("bmw,mlw->bml", parts, self.codebooks)

    def to(self, device: torch.device | str) -> "ProductQuantizer":
        """Move to another device."""
        rotation = None if self.rotation is None else self.rotation.to(device)
        return ProductQuantizer(self.codebooks.to(device), self.selectors.to(device), self.biases.to(device), rotation)

    def check_codes(self, codes: Integer[Tensor, "X M"]) -> None:
        """
        Raises:
            ValueError: if they cannot be codes of this quantizer.
        """
        if codes.shape[-1] != self.num_subspaces:
            raise ValueError(f"codes must have the {self.num_subspaces} parts of the codebooks, got {codes.shape[-1]}")
        if not codes.numel():
            return
        least, largest = (int(end) for end in codes.aminmax())
        if least < 0 or largest >= self.num_codewords:
            raise ValueError(
                f"codes must be at least 0 and below the {self.num_codewords} codewords of a codebook, got "
                f"{least if least < 0 else largest}"
            )

    def _offsets(self, device: torch.device) -> Tensor:
        return torch.arange(0, self.num_subspaces * self.num_codewords, self.num_codewords, device=device).int()

    def _check_width(self, name: str, vectors: Tensor) -> None:
        if vectors.shape[1] != self.width:
            raise ValueError(
                f"{name} must have the {self.width} numbers that a code stands for, got {vectors.shape[1]}"
            )


def residual_norms(
    quantizer: ProductQuantizer, vectors: Float[Tensor, "X D"], codes: UInt8[Tensor, "X M"], num_vectors: int = 1
) -> Float[Tensor, "X V"]:
    """|x - x~| of each of an item's V vectors. For a query of length 1, score and look-up differ by at most this."""
    error = (vectors - quantizer.decode(codes)).unflatten(1, (num_vectors, -1))
    norms: Tensor = error.norm(dim=2)
    return norms


def pack(codes: UInt8[Tensor, "X M"]) -> UInt8[Tensor, "X _"]:
    """Codes of at most 16 codewords, two in a byte, the first in its lower half; an odd last one is alone."""
    padded = F.pad(codes, (0, codes.shape[1] % 2))
    return padded[:, ::2] | (padded[:, 1::2] << 4)


def unpack(packed: UInt8[Tensor, "X _"], num_subspaces: int) -> UInt8[Tensor, "X M"]:
    """Codes again, from two in a byte.

    Raises:
        DamagedError: if there are not as many bytes as the codes take.
    """
    if packed.shape[1] != (num_subspaces + 1) // 2:
        raise DamagedError(f"{num_subspaces} codes must take {(num_subspaces + 1) // 2} bytes, got {packed.shape[1]}")
    return torch.stack([packed & 15, packed >> 4], dim=2).flatten(start_dim=1)[:, :num_subspaces].contiguous()


def turned(vectors: Float[Tensor, "*X D"], rotation: Float[Tensor, "d d"] | None) -> Float[Tensor, "*X D"]:
    """R x of each d consecutive numbers."""
    if rotation is None:
        return vectors
    parts: Tensor = vectors.unflatten(-1, (-1, len(rotation))) @ rotation.T
    return parts.flatten(start_dim=-2)
