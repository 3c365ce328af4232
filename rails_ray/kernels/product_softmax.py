"""The sampled softmax over inner products, forward and back for a few queries at a time, so that no score leaves the
cache of a CPU.

    z_qx  = <f_q, g_x> / tau + w_qx                                 w = 0 for x+; -inf where x is hidden from q
    L     = sum_q v_q (logsumexp_x z_qx - z_q,x+)
    dL/dz_qx = v_q (softmax_x z_qx - 1[x = x+])

Source: ours; as fused linear cross-entropies of language models, which compute the gradient on the way forward too.

Axes: B queries, N items that all of them share, n queries of a part, d width.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

NUMBERS = 2**21  # scores of a part; products of fewer queries take longer, and more leave the cache


def product_softmax(
    queries: Float[Tensor, "B d"],
    items: Float[Tensor, "N d"],
    alone: Float[Tensor, "B 1"] | None,
    positive: Int[Tensor, " B"],
    is_hidden: Bool[Tensor, "B C"],
    log_weights: Float[Tensor, "B C"] | None,
    weights: Float[Tensor, " B"] | None,
    tau: float,
) -> Float[Tensor, ""]:
    """L, in nats; differentiable once by queries, items and `alone`.

    Args:
        alone: the score of one more candidate of each query, which comes last, so that C = N + 1; C = N without.
        positive: column of each query's positive, which is not hidden.
        is_hidden: candidates to leave out.
        log_weights: w, what is added to the logits of all but the positive; None for 0.
        weights: v, what each query counts; None for 1.
        tau: temperature of the logits, above 0.
    """
    loss: Tensor = _ProductSoftmax.apply(  # type: ignore[no-untyped-call]
        queries, items, alone, positive, is_hidden, log_weights, weights, tau
    )
    return loss


class _ProductSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        queries: Float[Tensor, "B d"],
        items: Float[Tensor, "N d"],
        alone: Float[Tensor, "B 1"] | None,
        positive: Int[Tensor, " B"],
        is_hidden: Bool[Tensor, "B C"],
        log_weights: Float[Tensor, "B C"] | None,
        weights: Float[Tensor, " B"] | None,
        tau: float,
    ) -> Float[Tensor, ""]:
        by_queries, by_items, by_alone = ctx.needs_input_grad[:3]
        num, num_items = len(queries), len(items)
        num_columns = num_items + (alone is not None)
        losses = queries.new_empty(num)
        of_queries = torch.empty_like(queries) if by_queries else None
        of_items = torch.zeros_like(items) if by_items else None
        of_alone = torch.empty_like(alone) if alone is not None and by_alone else None
        size = max(NUMBERS // max(num_columns, 1), 1)
        buffer = queries.new_empty(min(size, num), num_columns)
        for first in range(0, num, size):
            part = slice(first, min(first + size, num))
            own, chosen = queries[part], positive[part, None]
            scores = buffer[: len(own)]
            torch.mm(own, items.T, out=scores[:, :num_items])
            if alone is not None:
                scores[:, num_items:] = alone[part]
            scores /= tau
            of_positive = scores.gather(1, chosen)
            if log_weights is not None:
                scores += log_weights[part]
                scores.scatter_(1, chosen, of_positive)
            scores.masked_fill_(is_hidden[part], -torch.inf)
            largest = scores.amax(dim=1, keepdim=True)
            total = scores.sub_(largest).exp_().sum(dim=1, keepdim=True)
            losses[part] = (total.log() + largest - of_positive)[:, 0]
            if not any((by_queries, by_items, by_alone)):
                continue
            scale = (1 if weights is None else weights[part, None]) / tau
            scores *= scale / total
            scores.scatter_add_(1, chosen, -scale * torch.ones_like(total))
            shared = scores[:, :num_items]
            if of_queries is not None:
                torch.mm(shared, items, out=of_queries[part])
            if of_items is not None:
                of_items.addmm_(shared.T, own)
            if of_alone is not None:
                of_alone[part] = scores[:, num_items:]
        ctx.save_for_backward(of_queries, of_items, of_alone)
        return losses.sum() if weights is None else (losses * weights).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Float[Tensor, ""]) -> tuple[Tensor | None, ...]:
        found = [None if own is None else own * gradient for own in ctx.saved_tensors]
        return *found, None, None, None, None, None
