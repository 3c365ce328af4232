"""Dropout whose masks are not stored: a hash of a word of the query, a word of the item and the number of the pair of
components draws them anew wherever they are read.

    bits = hash(word of q + word of x + number * 0x9E3779B9)    number = p_x * P_Q + p_q, P_Q padded to a power of two

A logit is kept where the lower 16 bits reach the number that is dropped of 65,536, a gate where the upper 16 bits do.

Axes: B queries, X items, P pairs of components, N = B * X.
"""

from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from rails_ray.kernels.fused_scan import power_of_two
from rails_ray.kernels.mol_gradient import Kept

STEPS = 2**16  # in which shares that are dropped are counted
WORD = 2**32 - 1


class Dropout(NamedTuple):
    """Random words, from which the masks of each pair of query and item follow.

    logits, gates: how many of 65,536 component logits, and of gates, are dropped.
    """

    query_words: Int[Tensor, " B"]
    item_words: Int[Tensor, " X"]
    logits: int = 0
    gates: int = 0

    @property
    def share(self) -> float:
        """The share of the logits that are kept."""
        return 1 - self.logits / STEPS

    def kept(self, num_components: tuple[int, int]) -> Kept:
        """The masks, as the kernel draws them and as `mol_gradient` reads them."""
        p_q, p_x = (torch.arange(num, device=self.query_words.device) for num in num_components)
        numbers = (p_x[:, None] * power_of_two(len(p_q)) + p_q).flatten()  # [P]
        words = self.query_words.long()[:, None] + self.item_words.long()
        bits = (words.flatten() + (numbers * 0x9E3779B9)[:, None]) & WORD  # [P, N]
        for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
            bits = ((bits ^ (bits >> shift)) * factor) & WORD
        bits ^= bits >> 16
        logits, gates = (bits & (STEPS - 1)) >= self.logits, (bits >> 16) >= self.gates
        return Kept(logits.float(), gates.float(), self.share)


def drawn(num_queries: int, num_items: int, logits: float, gates: float, device: torch.device) -> Dropout | None:
    """Words from torch's generator; None if nothing is dropped.

    Args:
        logits, gates: shares that are dropped, in [0, 1), rounded to 1/65,536.
    """
    if not logits and not gates:
        return None
    of_queries, of_items = (
        torch.randint(-(2**31), 2**31, (num,), dtype=torch.int32, device=device) for num in (num_queries, num_items)
    )
    return Dropout(of_queries, of_items, round(STEPS * logits), round(STEPS * gates))
