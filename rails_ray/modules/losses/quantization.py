"""Losses of the methods that train codebooks, beside or in place of a softmax over scores.

    reconstruction           |x - x~|^2                                                            DQN, DPQ
    distortion               mean over items of <q, x - x~>^2                                      DVSQ, Equation 5
    disagreement             |soft(x) - hard(x)|^2                                                 SPQ
    evenness                 sum_m sum_l (mean_x P_m(l|x))^2 - mean_x sum_m sum_l P_m(l|x)^2       SPQ, Gini terms
    negative_log_likelihood  - sum_m log P_m(code_m(x) | x)                                        MoPQ, Equation 2
    distillation             - sum_x softmax(teacher(q, x)) log softmax(student(q, x))             Distill-VQ

Source: Cao et al., Deep Quantization Network (2016); Cao et al., Deep Visual-Semantic Quantization (2017); Klein and
Wolf, End-to-End Supervised Product Quantization (2019); Chen et al., Differentiable Product Quantization (2020); MoPQ,
Section 3.1; Xiao et al., Distill-VQ (arXiv 2204.00185).

Axes: B queries, X items, P_Q / P_X components, d width of a component, D = P_X d, M subspaces, L codewords.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def reconstruction(vectors: Float[Tensor, "X D"], read_back: Float[Tensor, "X D"]) -> Float[Tensor, " X"]:
    """|x - x~|^2 of each item."""
    return (vectors - read_back).square().sum(dim=1)


def distortion(
    query: Float[Tensor, "B P_Q d"], vectors: Float[Tensor, "X P_X d"], read_back: Float[Tensor, "X P_X d"]
) -> Float[Tensor, " B"]:
    """How far codes move the inner products of each query: the mean of squares over items and pairs of components."""
    return torch.einsum("bqd,xpd->bqxp", query, vectors - read_back).square().mean(dim=(1, 2, 3))


def mean_product(query: Float[Tensor, "B P_Q d"], items: Float[Tensor, "X P_X d"]) -> Float[Tensor, "B X"]:
    """The mean inner product over pairs of components."""
    return query.mean(dim=1) @ items.mean(dim=1).T


def disagreement(soft: Float[Tensor, "X D"], hard: Float[Tensor, "X D"]) -> Float[Tensor, " X"]:
    """For each item, the squared distance between its mean codeword and its chosen one."""
    return (soft - hard).square().sum(dim=1)


def evenness(log_probabilities: Float[Tensor, "X M L"]) -> Float[Tensor, ""]:
    """Low if items share codewords evenly and each is sure of its own."""
    probabilities = log_probabilities.exp()
    return probabilities.mean(dim=0).square().sum() - probabilities.square().sum(dim=(1, 2)).mean()


def negative_log_likelihood(
    log_probabilities: Float[Tensor, "X M L"], codes: Int[Tensor, "X M"]
) -> Float[Tensor, " X"]:
    """- log of the probability of each item's code, in nats."""
    return -log_probabilities.gather(2, codes.unsqueeze(2)).sum(dim=(1, 2))


def distillation(
    teacher: Float[Tensor, "B X"], student: Float[Tensor, "B X"], is_hidden: Bool[Tensor, "B X"]
) -> Float[Tensor, " B"]:
    """The cross-entropy of a student's softmax over items under a teacher's, of each query, in nats.

    Args:
        teacher, student: logits.
        is_hidden: items that both leave out.
    """
    wanted = teacher.masked_fill(is_hidden, -torch.inf).softmax(dim=1)
    given = student.masked_fill(is_hidden, -torch.inf).log_softmax(dim=1)
    return -(wanted * given.masked_fill(is_hidden, 0.0)).sum(dim=1)
