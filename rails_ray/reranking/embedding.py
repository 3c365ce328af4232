"""Relevance-based embeddings: AnnCUR, and a trained prediction of its error.

    f_Q(q) = r || MLP_Q(z || features) || 1,    r = R(S_I, q) / sigma
    f_I(i) = t || MLP_I(z') || c_i,             t = R(i, S_Q) pinv(R(S_I, S_Q))

so that <f_Q(q), f_I(i)> = R~(i, q) / sigma + <MLP_Q, MLP_I> + c_i. z and z' are r and t, each number with mean 0 and
standard deviation 1 over the training queries and over the items; sigma is the standard deviation of the whole
training matrix. Only what the last layer of MLP_Q gives begins at zero: training starts from AnnCUR.

Source: RBE, Appendix C.
Differs from the source: division by sigma, so that the softmax of the loss means the same for every ranker;
standardised inputs; a trained table as an alternative to MLP_I; query features.

Axes: B queries, X items, N new items, S supports, W numbers of a trained part, H hidden, F numbers of query features,
D = S + W + 1.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from rails_ray.reranking.rounding import deviations


@dataclass(frozen=True, kw_only=True)
class RelevanceEmbeddingConfig:
    """
    Args:
        width: numbers of the trained part, W; 27 makes 128 of a vector with 100 supports.
        hidden: width of the hidden layer, H.
        items: the trained part of an item comes from a network (`mlp`), which new items pass too, or from a `table`, in
            which a new item has zeros.
    """

    width: int = 27
    hidden: int = 128
    items: Literal["mlp", "table"] = "mlp"

    def __post_init__(self) -> None:
        for name in ("width", "hidden"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")


class Standardise(nn.Module):
    """Each number with mean 0 and standard deviation 1 over the rows that it was made of."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, rows: Float[Tensor, "N D"]) -> None:
        super().__init__()
        self.register_buffer("mean", rows.mean(dim=0))
        self.register_buffer("deviation", deviations(rows))

    def forward(self, rows: Float[Tensor, "N D"]) -> Float[Tensor, "N D"]:
        return (rows - self.mean) / self.deviation


class RelevanceEmbedding(nn.Module):
    """Vectors of queries and items whose inner product predicts the heavy ranker's score, divided by sigma.

    Args:
        supports: R(S_I, q) of the training queries, a row each.
        combinations: t of the training items, as `AnnCur.combinations` gives them.
        sigma: the standard deviation of the training matrix, above 0.
        features: of the training queries, joined to what MLP_Q sees; None if there are none.

    Raises:
        ValueError: unless sigma is above 0.
    """

    sigma: Tensor

    def __init__(
        self,
        config: RelevanceEmbeddingConfig,
        supports: Float[Tensor, "B S"],
        combinations: Float[Tensor, "X S"],
        sigma: float,
        features: Float[Tensor, "B F"] | None = None,
    ) -> None:
        super().__init__()
        if not 0 < sigma < float("inf"):
            raise ValueError(f"relevances must differ from each other, got a matrix of standard deviation {sigma}")
        self.register_buffer("sigma", torch.tensor(sigma))
        self.of_queries = Standardise(self._joined(supports / sigma, features))
        self.of_items = Standardise(combinations)
        self.query_network = _network(self.of_queries.mean.shape[0], config.hidden, config.width)
        last = self.query_network[-1]
        assert isinstance(last, nn.Linear)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        num_items, num_supports = combinations.shape
        self.item_network = _network(num_supports, config.hidden, config.width) if config.items == "mlp" else None
        self.table = (
            nn.Parameter(torch.randn(num_items, config.width) / config.width) if config.items == "table" else None
        )
        self.bias = nn.Parameter(torch.zeros(num_items))
        self.width = config.width

    @staticmethod
    def _joined(scaled: Float[Tensor, "B S"], features: Float[Tensor, "B F"] | None) -> Float[Tensor, "B _"]:
        return scaled if features is None else torch.cat([scaled, features], dim=1)

    def queries(
        self, supports: Float[Tensor, "B S"], features: Float[Tensor, "B F"] | None = None
    ) -> Float[Tensor, "B D"]:
        """f_Q of queries by the heavy ranker's scores of the supports."""
        scaled = supports / self.sigma
        trained = self.query_network(self.of_queries(self._joined(scaled, features)))
        return torch.cat([scaled, trained, scaled.new_ones(len(scaled), 1)], dim=1)

    def items(
        self, combinations: Float[Tensor, "X S"], rows: Int[Tensor, " X"] | slice = slice(None)
    ) -> Float[Tensor, "X D"]:
        """f_I of training items.

        Args:
            rows: which of the training items these are; by default all, in their order.
        """
        trained = self.table[rows] if self.table is not None else self._by_network(combinations)
        return torch.cat([combinations, trained, self.bias[rows][:, None]], dim=1)

    def new_items(self, combinations: Float[Tensor, "N S"]) -> Float[Tensor, "N D"]:
        """f_I of items that training has not seen. c_i is the mean of the trained ones; a table has zeros for them."""
        num_items = len(combinations)
        trained = combinations.new_zeros(num_items, self.width)
        if self.table is None:
            trained = self._by_network(combinations)
        return torch.cat([combinations, trained, self.bias.mean().expand(num_items, 1)], dim=1)

    def _by_network(self, combinations: Float[Tensor, "X S"]) -> Float[Tensor, "X W"]:
        assert self.item_network is not None
        trained: Tensor = self.item_network(self.of_items(combinations))
        return trained


def _network(width_in: int, hidden: int, width_out: int) -> nn.Sequential:
    """A perceptron of two layers."""
    return nn.Sequential(nn.Linear(width_in, hidden), nn.ELU(), nn.Linear(hidden, width_out))


def on_sphere(items: Float[Tensor, "X D"], radius: float | Float[Tensor, ""]) -> Float[Tensor, "X _"]:
    """Vectors of length 1 whose inner products order items as the given vectors do, for indexes of cosines.

    An item x becomes (x / r, sqrt(1 - |x|^2 / r^2)); with a query (r q, 0) it has the inner product <q, x>. An item
    that is longer than r keeps its inner products, not length 1.

    Source: RBE, Corollary A.1.
    Differs from the source: one number more in place of two, and queries of any length, as no order depends on it.

    Args:
        radius: r, the length of the longest item.
    """
    scaled = items / radius
    height = (1 - scaled.square().sum(dim=1, keepdim=True)).clamp(min=0).sqrt()
    return torch.cat([scaled, height], dim=1)
