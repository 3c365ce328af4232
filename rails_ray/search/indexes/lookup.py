"""All codes, scored in blocks by looking up: exact search by a sum of table entries.

Source: SOLAR, Section 4 ("full"); Jegou et al., Product Quantization, Section 3 (asymmetric distance).

Axes: B queries, X items, M parts of a code, L entries of a table.
"""

from collections.abc import Iterator
from copy import copy

import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor

from rails_ray.kernels import lookup_scan
from rails_ray.search.scan import scan
from rails_ray.search.spec import SearchResult, SearchSpec

BLOCK_SCORES = 2**21  # scores of a block, 8 MB: the codes of a batch of 32 queries, 64,000 items, stay in the cache
SCORES_BESIDE = 2**23  # where queries lie side by side: codes are read once, and torch, whose threads then keep the
# loops waiting, selects after each block
GPU_BLOCK_SCORES = 2**26  # 256 MB


class LookupIndex:
    """Exact search over `codes` [X, M] of any integer dtype, which are kept as they are.

    Raises:
        ValueError: if a code is negative.
    """

    is_exact = True

    def __init__(self, codes: Integer[Tensor, "X M"]) -> None:
        self.codes = codes
        self.largest_code = check_codes(codes)

    def of_rows(self, rows: Int[Tensor, " N"]) -> "LookupIndex":
        """The index of some items. Their codes, which were checked with all, are not looked at again."""
        some = copy(self)
        some.codes = self.codes.index_select(0, rows)
        return some

    def scores(self, tables: Float[Tensor, "B M L"]) -> Float[Tensor, "B X"]:
        """The scores of all items."""
        self._check(tables)
        return lookup_scan.scores(tables, self.codes)

    def search(self, tables: Float[Tensor, "B M L"], spec: SearchSpec) -> SearchResult:
        """The contract of `Index`, with sums of look-ups as scores.

        Raises:
            ValueError: also if the codes do not fit the tables.
        """
        spec.check_queries(len(tables))
        return scan(self.blocks(tables), spec, len(tables), len(self.codes), tables.device)

    def blocks(self, tables: Float[Tensor, "B M L"]) -> Iterator[tuple[int, Float[Tensor, "B _"]]]:
        """(First item row, scores) of each block. The next block takes their memory.

        Raises:
            ValueError: if the codes do not fit the tables.
        """
        self._check(tables)
        looked_up = lookup_scan.LookUps(tables)
        most = SCORES_BESIDE if looked_up.beside else BLOCK_SCORES
        most = most if tables.is_cpu else GPU_BLOCK_SCORES
        size = max(most // max(len(tables), 1), 1)
        memory = torch.empty(len(tables) * min(size, len(self.codes))) if tables.is_cpu else None
        for first in range(0, len(self.codes), size):
            yield first, looked_up.scores(self.codes[first : first + size], memory=memory)

    def _check(self, tables: Float[Tensor, "B M L"]) -> None:
        num_parts, num_entries = tables.shape[1:]
        if num_parts != self.codes.shape[1]:
            raise ValueError(f"tables must have the {self.codes.shape[1]} parts of the codes, got {num_parts}")
        check_entries(self.largest_code, num_entries)


def check_entries(largest_code: int, num_entries: int) -> None:
    """Raises:
    ValueError: if a code points beyond the entries of a table.
    """
    if largest_code >= num_entries:
        raise ValueError(f"codes must be below the {num_entries} entries of a table, got {largest_code}")


def check_codes(codes: Integer[Tensor, "*X M"]) -> int:
    """The largest code; -1 if there is none.

    Raises:
        ValueError: if one is negative.
    """
    if not codes.numel():
        return -1
    smallest, largest = (int(end) for end in codes.aminmax())
    if smallest < 0:
        raise ValueError(f"codes must be at least 0, got {smallest}")
    return largest
