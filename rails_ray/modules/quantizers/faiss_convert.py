"""Quantizers as FAISS has them: an index of codes by inner products, out and in.

A rotation R becomes a LinearTransform with A = R; if an item has several vectors, A is block-diagonal, one R for each.
"""

from typing import Any

import torch
from jaxtyping import UInt8
from torch import Tensor

from rails_ray.kernels.faiss_library import faiss_library
from rails_ray.modules.quantizers.product import ProductQuantizer, check_rotation, pack, unpack


def to_faiss(quantizer: ProductQuantizer, codes: UInt8[Tensor, "X M"] | None = None) -> Any:
    """An IndexPQ, behind a LinearTransform if there is a rotation, which scores as `decode` and an inner product do.

    FAISS's codebooks have 16 or 256 codewords: ours are filled up with copies of their first, which no code names.
    FAISS itself would encode by l2; `quantizer.encode` selects as it was trained to.

    Args:
        codes: items that it is to hold.

    Raises:
        ValueError: if codes do not fit this quantizer.
        UnsupportedError: without FAISS.
    """
    faiss = faiss_library()
    num_subspaces, num_codewords = quantizer.codebooks.shape[:2]
    bits = 4 if num_codewords <= 16 else 8
    index = faiss.IndexPQ(quantizer.width, num_subspaces, bits, faiss.METRIC_INNER_PRODUCT)
    codebooks = quantizer.codebooks[:, :1].repeat(1, 2**bits, 1)
    codebooks[:, :num_codewords] = quantizer.codebooks
    faiss.copy_array_to_vector(codebooks.cpu().float().contiguous().numpy().ravel(), index.pq.centroids)
    index.is_trained = True
    if codes is not None:
        quantizer.check_codes(codes)
        index.add_sa_codes((pack(codes) if bits == 4 else codes).cpu().contiguous().numpy())
    if quantizer.rotation is None:
        return index
    rotation = quantizer.rotation.cpu().float()
    turned = faiss.LinearTransform(quantizer.width, quantizer.width, False)
    whole = torch.block_diag(*[rotation] * (quantizer.width // len(rotation)))
    faiss.copy_array_to_vector(whole.contiguous().numpy().ravel(), turned.A)
    turned.is_trained = turned.is_orthonormal = True
    made = faiss.IndexPreTransform(turned, index)
    made.ntotal = index.ntotal
    turned.this.disown()
    index.this.disown()
    made.own_fields = True
    return made


def from_faiss(index: Any) -> tuple[ProductQuantizer, UInt8[Tensor, "X M"]]:
    """Quantizer and codes of an IndexPQ, which may stand behind an orthogonal LinearTransform.

    Raises:
        ValueError: if the index is of another kind or metric, or a code is neither a byte nor half of one.
        UnsupportedError: without FAISS.
    """
    faiss = faiss_library()
    index, rotation = faiss.downcast_index(index), None
    if isinstance(index, faiss.IndexPreTransform) and index.chain.size() == 1:
        rotation = _rotation(faiss, faiss.downcast_VectorTransform(index.chain.at(0)))
        index = faiss.downcast_index(index.index)
    if not isinstance(index, faiss.IndexPQ):
        raise ValueError(f"an index of codes must be an IndexPQ of FAISS, got an {type(index).__name__}")
    if index.metric_type != faiss.METRIC_INNER_PRODUCT:
        raise ValueError(f"metric_type must be METRIC_INNER_PRODUCT, 0, got {index.metric_type}")
    pq = index.pq
    if pq.nbits not in (4, 8):
        raise ValueError(f"a code must have 4 or 8 bits, got {pq.nbits}")
    codebooks = faiss.vector_to_array(pq.centroids).reshape(pq.M, pq.ksub, pq.dsub)
    stored = torch.from_numpy(faiss.vector_to_array(index.codes).reshape(index.ntotal, pq.code_size))
    codes = stored if pq.nbits == 8 else unpack(stored, pq.M)
    return ProductQuantizer.of(torch.from_numpy(codebooks), rotation), codes


def _rotation(faiss: Any, transform: Any) -> Tensor:
    if not isinstance(transform, faiss.LinearTransform) or transform.d_in != transform.d_out:
        raise ValueError(f"codes must stand behind a rotation, got a {type(transform).__name__}")
    if transform.have_bias:
        raise ValueError("codes must stand behind a rotation, got a map that also shifts")
    matrix = faiss.vector_to_array(transform.A).reshape(transform.d_out, transform.d_in)
    rotation = torch.from_numpy(matrix)
    check_rotation(rotation, transform.d_in)
    return rotation
