"""The answer to `SearchSpec` on a GPU, from scores that come block by block, in row order, without a look at them.

A GPU runs behind its host: to look at a number is to wait for all that was started before it. So every list has k
places, and how many of them are needed is looked at once, at the end. `scan.Scan`, which it equals, looks at each block
to pass over what is of no use.

Axes: B queries, X items of a block, k places.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rails_ray.kernels.top_k import TopK, select_by_tiles
from rails_ray.search.spec import LEAST, SearchResult, SearchSpec, nothing

MOST_PARTS = 16  # lists of blocks that are held before they are merged


class Unread(NamedTuple):
    """Answer that the host has not looked at.

    found: its lists may have places that no query needs.
    longest: how many places the longest list needs.
    """

    found: SearchResult
    longest: Int[Tensor, ""]

    def read(self, spec: SearchSpec, longest: int) -> SearchResult:
        """The answer, by how many places its longest list needs."""
        return self.found if spec.threshold is None else self.found.first(longest)


def scan_on_gpu(
    blocks: Iterable[tuple[int, Float[Tensor, "B _"]]],
    spec: SearchSpec,
    num_queries: int,
    num_items: int,
    device: torch.device | None = None,
) -> SearchResult:
    """Return what `scan.scan` gives, after one look with a threshold, and after none without."""
    num_scored = torch.full((num_queries,), num_items, device=device)
    unread = unread_scan(blocks, spec, num_scored, spec.num_left(num_queries, num_items, device))
    return unread.found if spec.threshold is None else unread.read(spec, int(unread.longest))


def unread_scan(
    blocks: Iterable[tuple[int, Float[Tensor, "B _"]]],
    spec: SearchSpec,
    num_scored: Int[Tensor, " B"],
    num_left: Int[Tensor, " B"],
    item_rows: Int[Tensor, "B C"] | None = None,
) -> Unread:
    """Search all items that come.

    Args:
        num_left, item_rows: as in `Scan.found`.
    """
    reach, num_above = None, torch.zeros_like(num_scored)
    if spec.threshold is not None:
        reach = spec.threshold.float().clamp(min=LEAST)[:, None]
    parts = list[TopK]()
    for first_row, given in blocks:
        scores = given.float() if spec.mask is None else spec.mask.hide(given.float(), first_row)
        if reach is not None:
            num_above += (scores >= reach).sum(dim=1)
        own = select_by_tiles(scores, min(spec.k, scores.shape[1]))
        parts.append(TopK(own.scores, own.item_rows + first_row))
        if len(parts) == MOST_PARTS:
            parts = [_merged(parts, spec.k)]
    best = _merged(parts, spec.k) if parts else nothing(len(num_scored), num_scored.device)
    is_wanted = best.scores > -torch.inf
    if reach is not None:
        is_short = (num_above < spec.at_least)[:, None]
        place = torch.arange(best.k, device=best.scores.device)
        is_wanted &= torch.where(is_short, place < spec.at_least, best.scores >= reach)
    num_found = is_wanted.sum(dim=1)
    rows = best.item_rows if item_rows is None else item_rows.gather(1, best.item_rows)
    found = SearchResult(
        best.scores.masked_fill(~is_wanted, -torch.inf),
        rows.masked_fill(~is_wanted, 0),
        torch.full_like(num_scored, -torch.inf, dtype=torch.float32),
        (num_left > spec.k) & (num_found == spec.k) if reach is None else num_above > spec.k,
        num_scored,
        [None] * len(num_scored),
    )
    return Unread(found, num_found.amax() if len(num_found) else num_found.sum())


def _merged(parts: list[TopK], k: int) -> TopK:
    if len(parts) == 1:
        return parts[0]
    scores, rows = (torch.cat([getattr(part, name) for part in parts], dim=1) for name in ("scores", "item_rows"))
    return select_by_tiles(scores, min(k, scores.shape[1]), rows)
