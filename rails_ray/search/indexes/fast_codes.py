"""Codes of 16 codewords, scored in registers by FAISS's fast scan, then once more by looking up.

    T'[m, l]     = round((T[m, l] - min_l T[m, l]) 255 / s)             s = max_m (max_l - min_l) T[m, l]
    score'(q, x) = sum_m min_l T[m, l] + s / 255 sum_m T'[m, code_m(x)]
    |score' - score| <= M s / 510

A byte for each entry of a table is what lets 32 items be added at once. The items with the best score' are scored by
the table itself; what was passed over scores at most the least score' found, plus M s / 510. FAISS has no threshold for
such a scan: what reaches one is found by looking up all codes.

Source: Andre et al., Quicker ADC; FAISS's IndexPQFastScan.

Axes: B queries, X items, d width of a vector, V vectors of an item, D = V d, M subspaces of D, L codewords.
"""

from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from rails_ray.kernels import lookup_scan
from rails_ray.kernels.faiss_library import as_float32, faiss_library
from rails_ray.kernels.top_k import select
from rails_ray.modules.quantizers.faiss_convert import to_faiss
from rails_ray.modules.quantizers.product import ProductQuantizer
from rails_ray.schema.search_params import SearchParams
from rails_ray.search.indexes.codes import UNIT, for_mean, with_error
from rails_ray.search.indexes.lookup import LookupIndex
from rails_ray.search.masks import Mask
from rails_ray.search.spec import SearchResult, SearchSpec, joined

MOST_SUBSPACES = 256  # FAISS adds bytes in 16 bits: 256 * 255 < 2^16
LONGEST_LIST = 2**13  # items to be scored again; more are looked up all at once


class FastCodeIndex:
    """The contract of `VectorIndex`, by codes of at most 16 codewords.

    Args:
        codes: one codeword a byte, on the CPU.
        num_vectors: V; queries [B, d] ask for their mean.
        error: the largest distance of an item's mean vector to its decoded mean; 0 if decoded vectors are what is
            searched.

    Raises:
        ValueError: if codes do not fit the quantizer.
        UnsupportedError: without FAISS.
    """

    is_exact = knows_scores = False

    def __init__(
        self, quantizer: ProductQuantizer, codes: UInt8[Tensor, "X M"], num_vectors: int = 1, error: float = 0.0
    ) -> None:
        quantizer.check_codes(codes)
        self.by_lookup = LookupIndex(codes)
        self.quantizer = quantizer
        self.codes = codes
        self.num_vectors = num_vectors
        self.error = error
        self.index = faiss_library().IndexPQFastScan(to_faiss(replace(quantizer, rotation=None), codes))

    @staticmethod
    def suits(quantizer: ProductQuantizer, codes: UInt8[Tensor, "X M"]) -> bool:
        """Return whether FAISS has a fast scan of such codes."""
        return quantizer.is_packed and quantizer.num_subspaces <= MOST_SUBSPACES and codes.is_cpu and len(codes) > 0

    def search(
        self, queries: Float[Tensor, "B d"], spec: SearchSpec, params: SearchParams | None = None
    ) -> SearchResult:
        """The contract of `VectorIndex`; every code is looked at."""
        spec.check_queries(len(queries))
        if spec.threshold is not None or not len(queries):
            return self._looked_up(queries, spec)
        num_left = spec.num_left(len(queries), len(self.codes))
        places = spec.k + spare_places(len(self.codes) - num_left)
        parts, lines_of_parts = [], []
        for num in places.unique().tolist():  # a query's list is as long as if it were asked alone
            lines = (places == num).nonzero()[:, 0]
            found = self._scanned(queries[lines], spec.of_queries(lines), num_left[lines], num)
            parts.append(found)
            lines_of_parts.append(lines)
        return joined(parts, torch.cat(lines_of_parts))

    def num_products(self, num_left: int, num_queries: int, params: SearchParams) -> float:
        """The contract of `VectorIndex`; where many items are hidden, all codes are looked up."""
        return float(len(self.codes))

    def _scanned(
        self, queries: Float[Tensor, "B d"], spec: SearchSpec, num_left: Int[Tensor, " B"], num: int
    ) -> SearchResult:
        """The answer by the best `num` items of FAISS's fast scan or, where it has not as many, by looking up."""
        if num >= min(len(self.codes), LONGEST_LIST):
            return self._looked_up(queries, spec)
        augmented = for_mean(queries, self.num_vectors)
        estimates, rows = map(torch.from_numpy, self.index.search(as_float32(self.quantizer.rotated(augmented)), num))
        is_left_out = (rows < 0).any(dim=1)  # by FAISS: an item all of whose entries are the least
        tables = self.quantizer.lookup_table(augmented)
        scores = lookup_scan.scores(tables, self.codes[rows])
        if spec.mask is not None:
            scores.masked_fill_(self._is_hidden(rows, spec.mask), -torch.inf)
        best = select(scores, spec.k, rows)
        passed_over = torch.maximum(estimates[:, -1] + rounding(tables), best.scores[:, -1])
        bound = passed_over + queries.norm(dim=1).float() * self.error * (1 + UNIT)
        found = SearchResult(
            best.scores,
            best.item_rows.masked_fill(best.scores == -torch.inf, 0),
            bound.masked_fill(best.num_found() >= num_left, -torch.inf),
            (num_left > spec.k) & (best.num_found() == spec.k),
            torch.full_like(num_left, len(self.codes)),
            [None] * len(queries),
        )
        if not is_left_out.any():
            return found
        others, again = (~is_left_out).nonzero()[:, 0], is_left_out.nonzero()[:, 0]
        looked_up = self._looked_up(queries[again], spec.of_queries(again))
        return joined([found.of_queries(others), looked_up], torch.cat([others, again]))

    def _looked_up(self, queries: Float[Tensor, "B d"], spec: SearchSpec) -> SearchResult:
        tables = self.quantizer.lookup_table(for_mean(queries, self.num_vectors))
        found = self.by_lookup.search(tables, spec)
        return with_error(found, queries, spec, self.error, len(self.codes))

    def _is_hidden(self, rows: Int[Tensor, "B N"], mask: Mask) -> Bool[Tensor, "B N"]:
        """Which of each query's rows the mask hides."""
        hidden = mask.hidden_rows(len(rows), len(self.codes))
        parts = zip(rows.numpy(), hidden.starts.tolist(), hidden.ends.tolist(), strict=True)
        return torch.from_numpy(np.stack([np.isin(own, hidden.rows[start:end]) for own, start, end in parts]))


def spare_places(num_hidden: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
    """Places more of each query's list, of which its hidden items may take some: a power of four, so that few scans
    serve a batch."""
    exponent = num_hidden.clamp(min=1).log2().div(2).ceil()
    return torch.where(num_hidden > 0, 4**exponent, 0).long().maximum(num_hidden)


def rounding(tables: Float[Tensor, "B M L"]) -> Float[Tensor, " B"]:
    """How far a sum of rounded entries may be from the sum."""
    num_subspaces = tables.shape[1]
    span = (tables.amax(dim=2) - tables.amin(dim=2)).amax(dim=1)
    largest = tables.abs().amax(dim=2).sum(dim=1)
    # FAISS and this module each add M entries in float32, and scale, shift and round in at most 8 operations; each
    # errs by at most 2 UNIT of `largest`.
    return num_subspaces * span / 510 + 4 * (num_subspaces + 8) * UNIT * largest
