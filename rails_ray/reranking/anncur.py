"""AnnCUR: an item's relevance to any query is a fixed linear combination of the supports' relevances to it.

    R~(i, q) = c_i R(S_I, q),   c_i = R(i, S_Q) pinv(A),                                A = R(S_I, S_Q)
    ridge:                      c_i = R(i, S_Q) A^T / |S_Q| (A A^T / |S_Q| + lambda)^-1

Source: RBE, Equation 1; Theorem 3.1 with the mean over support queries as in its proof.
Differs from the source: an item may lack some relevances. Its combination is fitted to those that it has.

Axes: X items, Q support queries, S supports, B queries.
"""

import torch
from jaxtyping import Float
from torch import Tensor


class AnnCur:
    """The combination of supports that stands for each item, in double precision.

    Args:
        supports: A, the relevance of the supports to the support queries, finite.
        ridge: lambda, at least 0. At 0 the pseudo-inverse is taken, of which a singular A has one too.

    Raises:
        ValueError: if a relevance is missing, or lambda is negative or not finite.
    """

    def __init__(self, supports: Float[Tensor, "S Q"], ridge: float = 0.0) -> None:
        if not (0 <= ridge < float("inf")):
            raise ValueError(f"ridge must be a finite number of at least 0, got {ridge}")
        if num_holes := int((~supports.isfinite()).sum()):
            raise ValueError(
                f"every support must have a relevance to every support query, got {num_holes} that are missing or not"
                " finite: leave out those support queries, or choose other supports"
            )
        self.supports = supports.double()
        self.ridge = ridge
        self.inverse = _inverse(self.supports, ridge)  # [Q, S]

    def combinations(self, relevance: Float[Tensor, "X Q"]) -> Float[Tensor, "X S"]:
        """c_i of each item, also of one that no fit has seen. NaN marks a relevance that is missing.

        Raises:
            ValueError: for an item without any relevance, or one that is infinite.
        """
        relevance = relevance.double()
        is_known = ~relevance.isnan()
        if relevance.isinf().any():
            raise ValueError("a relevance must be finite, or NaN where it is missing, got an infinite one")
        without = (~is_known.any(dim=1)).nonzero().flatten()
        if len(without):
            raise ValueError(
                f"an item must have a relevance to at least one support query, got none for row {int(without[0])}"
            )
        combinations = relevance.nan_to_num(0) @ self.inverse
        if is_known.all():
            return combinations
        patterns, pattern_of = is_known.unique(dim=0, return_inverse=True)
        for number, known in enumerate(patterns):
            if not known.all():
                items = pattern_of == number
                inverse = _inverse(self.supports[:, known], self.ridge)
                combinations[items] = relevance[items][:, known] @ inverse
        return combinations


def _inverse(supports: Float[Tensor, "S Q"], ridge: float) -> Float[Tensor, "Q S"]:
    inverse: Tensor
    if ridge == 0:
        inverse = torch.linalg.pinv(supports)
        return inverse
    gram = supports @ supports.T / supports.shape[1]
    gram.diagonal().add_(ridge)
    inverse = torch.linalg.solve(gram, supports / supports.shape[1]).T
    return inverse
