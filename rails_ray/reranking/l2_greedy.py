"""l2-greedy: supports from which a linear combination rebuilds every item with the least squared error.

With x_i the row of item i, and o_i its part outside the span of the supports so far, scaled to length 1, the next
support is the item of the largest

    gain_i = o_i^T (X^T X) o_i = sum_j <x_j, o_i>^2,

by which it lowers the squared error of all items.

Source: RBE, Appendix B, Algorithm 1, in O(Q X (Q + S)).
Differs from the source: the vectors o_i and X^T X o_i of all items are not kept. With o_t the t-th choice and
c_t = X^T X o_t, both parts of gain_i change by numbers:

    |d_i|^2   <-  |d_i|^2 - p_i^2,                      d_i = x_i - sum_t p_ti o_t,  p_i = <d_i, o_t>
    |X d_i|^2 <-  |X d_i|^2 - 2 p_i <d_i, c_t> + p_i^2 <o_t, c_t>.

Both numbers shrink, but their rounding does not. Once sum_i |X d_i|^2 falls below 1e-8 (1e-3 in single precision) of
its value when last computed, d_i replaces x_i and both are computed anew. Without this, supports in single precision
were worse than random ones on TLDR.

Items of which less than 1e-10 of their length is left (1e-4 in single precision) are chosen only after all others.

Axes: X items, Q support queries, S supports.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

LEFT_OF_LENGTH = {torch.float64: 1e-10, torch.float32: 1e-4}
LEFT_OF_REBUILT = {torch.float64: 1e-8, torch.float32: 1e-3}


def l2_greedy(relevance: Float[Tensor, "X Q"], num_supports: int) -> Int[Tensor, " S"]:
    """Rows of the supports in the order of their choice, on the CPU. Equal gains go to the lower row.

    Args:
        relevance: R(I, S_Q), finite; its dtype is that of the arithmetic, its device does the work.
    """
    num_items, num_queries = relevance.shape
    least = LEFT_OF_LENGTH[relevance.dtype] ** 2
    outside = relevance.square().sum(dim=1)  # |d_i|^2
    rebuilt = _rebuilt(relevance)  # |X d_i|^2
    lengths, before = outside.clone(), rebuilt.sum()
    directions = relevance.new_zeros(0, num_queries)  # o_t
    along = relevance.new_zeros(num_items, 0)  # p_ti
    is_chosen = torch.zeros(num_items, dtype=torch.bool, device=relevance.device)
    chosen = list[int]()
    while len(chosen) < num_supports:
        is_left = (outside > least * lengths) & (lengths > 0)
        gains = torch.where(is_left, rebuilt / outside, -1).masked_fill(is_chosen, -torch.inf)
        row = int(gains.argmax())
        if gains[row] < 0:  # nothing is left of any: as good as any
            chosen.append(row)
            is_chosen[row] = True
            continue
        rest = relevance[row] - along[row] @ directions
        rest = rest - (rest @ directions.T) @ directions  # once more, against rounding
        if rest.square().sum() <= least * lengths[row]:  # `outside`, a difference, was rounding
            outside[row] = 0
            continue
        chosen.append(row)
        is_chosen[row] = True
        direction = rest / rest.norm()
        in_all = relevance @ direction  # [X], p_i, as o_t is orthogonal to what went before
        image = relevance.T @ in_all  # c_t
        with_image = relevance @ image - along @ (directions @ image)  # <d_i, c_t>
        outside = outside - in_all.square()
        rebuilt = rebuilt - 2 * in_all * with_image + in_all.square() * (direction @ image)
        directions = torch.cat([directions, direction[None]])
        along = torch.cat([along, in_all[:, None]], dim=1)
        if rebuilt.sum() < LEFT_OF_REBUILT[relevance.dtype] * before:
            relevance = relevance - along @ directions
            directions, along = directions[:0], along[:, :0]
            outside, rebuilt = relevance.square().sum(dim=1), _rebuilt(relevance)
            before = rebuilt.sum()
    return torch.tensor(chosen)


def _rebuilt(relevance: Float[Tensor, "X Q"]) -> Float[Tensor, " X"]:
    """|X x_i|^2 of every item: by the smaller of X X^T and X^T X."""
    num_items, num_queries = relevance.shape
    if num_items <= num_queries:
        return (relevance @ relevance.T).square().sum(dim=1)
    gram = relevance.T @ relevance
    blocks = relevance.split(1024)
    return torch.cat([torch.einsum("xq,xq->x", block @ gram, block) for block in blocks])
