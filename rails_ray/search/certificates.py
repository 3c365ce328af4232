"""Certificates: what an answer proves about the items that were passed over.

Let t_p be the cosine of the last item that component p's EXACT list accepted. Every item outside all lists has
c_p <= t_p for each p, and as gates are convex

    score(q, x) <= max_p c_p(q, x) <= bound = max_p t_p          for every x that was not scored

so that an answer whose k-th score S_k reaches the bound is exact; otherwise each of the exact k scores exceeds the one
found in its place by at most bound - S_k.

Source: RAILS, Section 3.2, Theorems 2 and 3.
Differs from the source: both theorems bound by the largest *score* among the (K+1)-th items of the lists. That is no
bound: an item further down a list may score higher than the one next to it (counter-example in the tests). The largest
*cosine* is.

Exact means with regard to the stored state, as brute force in the same arithmetic would find it; `rounding_slack` is
what two ways of computing one number may differ by.

Axes: B queries, P pairs of components, d width of a component.
"""

import torch

FULL = torch.finfo(torch.float32).eps / 2  # relative error of one rounded operation


def self_slack(num_pairs: int, width: int, stored: torch.dtype) -> float:
    """How far below 1 the score of a vector of length 1 with itself may lie, as it is stored and computed."""
    return rounding_slack(num_pairs, width, stored) + torch.finfo(stored).eps / 2


def rounding_slack(num_pairs: int, width: int, stored: torch.dtype) -> float:
    """How far a score may lie above the largest of its cosines when the two were computed in different ways. For
    vectors of other lengths than 1, multiply it by the product of the two lengths.

    Each of two products of vectors of length 1 or less is off by at most d roundings of float32, the mixture by 2 P.
    Vectors that are stored in fewer bits are widened before they are multiplied, which is exact, but are longer than 1
    by up to one rounding of theirs, and all errors scale with the length.
    """
    roundings = 2 * width + 2 * num_pairs + 16
    longest = 1 + torch.finfo(stored).eps
    return roundings * FULL * longest
