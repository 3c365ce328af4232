"""AXN: a query's estimated scores, corrected by the scores of the heavy ranker as they come.

    u = u0 + E v,   v = argmin_v |E_A v - (s_A - u0_A)|^2 + lambda |v|^2

u0 are the scores that any embedding gives, E the item vectors, A the items whose scores s_A are known. Each round asks
for the best items outside A, and A grows.

Source: Yadav et al., 2024, as RBE has it in Section 2 and Tables 3 to 6.
Differs from the source: v is not fitted afresh in each round. v = E_A^T (E_A E_A^T + lambda)^-1 (s_A - u0_A), and the
Cholesky factor of that matrix grows by the rows of the new items. Where u0 is in other units than s, as a dual
encoder's is, its level and its scale are fitted too, without a penalty, and the order is that of u0 + E v / b:

    a, b, v = argmin |a + b u0_A + E_A v - s_A|^2 + lambda |v|^2

If this b is not above 0, b is the deviation of s_A over that of u0_A, or 1 if all of u0_A are equal.

Axes: B queries, X items, D numbers of an item, A items whose score is known, N items of one round.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rails_ray.kernels.top_k import TopK, select
from rails_ray.reranking.rounding import ROUNDING


class Correction:
    """v of B queries, which grows more accurate with the scores that are learned.

    Where u0 is the inner product of a query's vector with an item's, the order of u is that of the query's vector plus
    v.

    Args:
        num_queries: B.
        width: D.
        ridge: lambda, above 0.
        has_units: whether u0 is in the units of the ranker's scores; otherwise a and b are fitted, and v is v / b.

    Raises:
        ValueError: unless lambda is above 0 and finite.
    """

    def __init__(self, num_queries: int, width: int, ridge: float = 1.0, *, has_units: bool = True) -> None:
        if not (0 < ridge < float("inf")):
            raise ValueError(f"ridge must be a finite number above 0, got {ridge}")
        self.ridge = ridge
        self.has_units = has_units
        self.vectors = torch.zeros(num_queries, 0, width, dtype=torch.float64)  # E_A
        self.start = torch.zeros(num_queries, 0, dtype=torch.float64)  # u0_A
        self.answers = torch.zeros(num_queries, 0, dtype=torch.float64)  # s_A
        self._factor = torch.zeros(num_queries, 0, 0, dtype=torch.float64)

    def learn(
        self, vectors: Float[Tensor, "B N D"], start: Float[Tensor, "B N"], answers: Float[Tensor, "B N"]
    ) -> None:
        """Takes new items: their vectors, u0, and what the heavy ranker says of them."""
        new = vectors.double()
        below = torch.linalg.solve_triangular(self._factor, self.vectors @ new.mT, upper=False).mT  # [B, N, A]
        corner = new @ new.mT - below @ below.mT
        corner.diagonal(dim1=1, dim2=2).add_(self.ridge)
        above = self._factor.new_zeros(len(below), self._factor.shape[1], new.shape[1])
        self._factor = torch.cat(
            [torch.cat([self._factor, above], dim=2), torch.cat([below, torch.linalg.cholesky(corner)], dim=2)], dim=1
        )
        self.vectors = torch.cat([self.vectors, new], dim=1)
        self.start = torch.cat([self.start, start.double()], dim=1)
        self.answers = torch.cat([self.answers, answers.double()], dim=1)

    def vector(self) -> Float[Tensor, "B D"]:
        """v, or v / b; zeros before any score is learned."""
        if not self.answers.shape[1]:
            return self.vectors.new_zeros(len(self.vectors), self.vectors.shape[2])
        if self.has_units:
            return self._of(self.answers - self.start)
        start, answers = self.start - self.start[:, :1], self.answers - self.answers[:, :1]  # equal ones become 0
        is_flat = start.abs().amax(dim=1) <= ROUNDING * self.start.abs().amax(dim=1)
        start = start.masked_fill(is_flat[:, None], 0)
        columns = torch.stack([torch.ones_like(start), start, answers], dim=2)  # [B, A, 3]
        gram = columns.mT @ torch.cholesky_solve(columns, self._factor)
        (ones, of_start, of_answers), (_, squares, products) = gram[:, 0].T, gram[:, 1].T
        scale = (products * ones - of_start * of_answers) / (squares * ones - of_start.square())
        spread = start.std(dim=1, correction=0)
        other = torch.where(spread > 0, answers.std(dim=1, correction=0) / spread, 1.0)
        scale = torch.where(scale.isfinite() & (scale > 0), scale, other)  # 0 if the ranker tells no items apart
        level = (of_answers - scale * of_start) / ones
        found = self._of(answers - level[:, None] - scale[:, None] * start)
        return found / torch.where(scale > 0, scale, 1.0)[:, None]

    def _of(self, residual: Float[Tensor, "B A"]) -> Float[Tensor, "B D"]:
        """v that fits a residual."""
        weights = torch.cholesky_solve(residual[:, :, None], self._factor)  # [B, A, 1]
        found: Tensor = (self.vectors.mT @ weights)[:, :, 0]
        return found


class Axn:
    """The scores of B queries, round after round. All ask for equally many items.

    Args:
        vectors: E.
        scores: u0.
        ridge: lambda, above 0.

    Raises:
        ValueError: unless lambda is above 0 and finite.
    """

    def __init__(self, vectors: Float[Tensor, "X D"], scores: Float[Tensor, "B X"], ridge: float = 1.0) -> None:
        self.vectors = vectors.double()
        self.start = scores.double()
        self.item_rows = torch.zeros(len(scores), 0, dtype=torch.long)  # A
        self.answers = self.start.new_zeros(len(scores), 0)  # s_A
        self.correction = Correction(len(scores), vectors.shape[1], ridge)

    def learn(self, item_rows: Int[Tensor, "B N"], answers: Float[Tensor, "B N"]) -> None:
        """Takes what the heavy ranker says of items.

        Raises:
            ValueError: for a score that is not finite, or an item that is known already.
        """
        if not answers.isfinite().all():
            raise ValueError("a score of the heavy ranker must be finite, got one that is not")
        both = torch.cat([self.item_rows, item_rows], dim=1).sort(dim=1).values
        if (both[:, 1:] == both[:, :-1]).any():
            raise ValueError("an item must be scored once for a query, got one that is known already")
        self.correction.learn(self.vectors[item_rows], self.start.gather(1, item_rows), answers)
        self.item_rows = torch.cat([self.item_rows, item_rows], dim=1)
        self.answers = torch.cat([self.answers, answers.double()], dim=1)

    def scores(self) -> Float[Tensor, "B X"]:
        """u; an item whose score is known has that score."""
        estimated = self.start + self.correction.vector() @ self.vectors.T
        return estimated.scatter(1, self.item_rows, self.answers)

    def ask(self, num_items: int) -> Int[Tensor, "B N"]:
        """The best items whose score is not known: min(num_items, those that are left)."""
        left = self.scores().scatter(1, self.item_rows, -torch.inf)
        return select(left, min(num_items, left.shape[1] - self.item_rows.shape[1])).item_rows

    def found(self, k: int) -> TopK:
        """The k best of the items whose score is known, by that score."""
        return select(self.answers, k, self.item_rows)
