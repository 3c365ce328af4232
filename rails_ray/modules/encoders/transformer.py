"""Blocks of a pre-normalised transformer, for histories of items and for texts.

    h' = h + Attention(LayerNorm(h))        h'' = h' + W_2 act(W_1 LayerNorm(h'))        dropout on both additions

Axes: B sequences, T positions, D width.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn


class Block(nn.Module):
    """Attention, then a small network at each position.

    Args:
        hidden: width of the network's hidden layer.
        activation: the function between its two layers.
        dropout: share of attention's and network's outputs dropped in training.
    """

    def __init__(self, width: int, num_heads: int, hidden: int, activation: nn.Module, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        self.attention_norm = nn.LayerNorm(width)
        self.attention_in = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.network_norm = nn.LayerNorm(width)
        self.network: nn.Module = nn.Sequential(nn.Linear(width, hidden), activation, nn.Linear(hidden, width))

    def forward(
        self, inputs: Float[Tensor, "B T D"], is_read: Bool[Tensor, "B T"] | None = None
    ) -> Float[Tensor, "B T D"]:
        """
        Args:
            is_read: the positions that the others see; by default each position sees itself and those before it.
        """
        hidden = inputs + self.attended(inputs, is_read)
        return hidden + dropped(self.network(self.network_norm(hidden)), self.dropout, self.training)

    def attended(
        self, inputs: Float[Tensor, "B T D"], is_read: Bool[Tensor, "B T"] | None = None
    ) -> Float[Tensor, "B T D"]:
        """Return what attention adds at each position, after dropout."""
        parts = self.attention_in(self.attention_norm(inputs)).unflatten(2, (3, self.num_heads, -1))
        query, key, value = parts.permute(2, 0, 3, 1, 4)  # each [B, heads, T, D / heads]
        mask = None if is_read is None else is_read[:, None, None, :]
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=is_read is None)
        return dropped(self.attention_out(attended.transpose(1, 2).flatten(2)), self.dropout, self.training)


class LigrBlock(Block):
    """Block whose two additions are gated by its input, with a SwiGLU as its network.

        h' = h + sigmoid(G_1 h) * Attention(LayerNorm(h))
        h'' = h' + sigmoid(G_2 h') * W_2 (silu(a) * b),   (a, b) = W_1 LayerNorm(h')

    Source: Borisyuk et al., From Features to Transformers (LiGR); eSASRec, whose network has no biases either.
    Differs from the source: attention weights are not dropped.
    """

    def __init__(self, width: int, num_heads: int, hidden: int, dropout: float) -> None:
        super().__init__(width, num_heads, hidden, nn.SiLU(), dropout)
        self.attention_gate = nn.Linear(width, width)
        self.network_gate = nn.Linear(width, width)
        self.network = SwiGlu(width, hidden, dropout)

    def forward(
        self, inputs: Float[Tensor, "B T D"], is_read: Bool[Tensor, "B T"] | None = None
    ) -> Float[Tensor, "B T D"]:
        """
        Args:
            is_read: as in `Block`.
        """
        hidden = inputs + self.attention_gate(inputs).sigmoid() * self.attended(inputs, is_read)
        added = dropped(self.network(self.network_norm(hidden)), self.dropout, self.training)
        found: Tensor = hidden + self.network_gate(hidden).sigmoid() * added
        return found


class SwiGlu(nn.Module):
    """Two layers without biases, between them half of the hidden numbers gated by the silu of the others.

    Source: Shazeer, GLU Variants Improve Transformer.
    """

    def __init__(self, width: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.into = nn.Linear(width, 2 * hidden, bias=False)
        self.out = nn.Linear(hidden, width, bias=False)

    def forward(self, inputs: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        gate, value = self.into(inputs).chunk(2, dim=2)
        found: Tensor = self.out(dropped(F.silu(gate) * value, self.dropout, self.training))
        return found


def dropped(inputs: Float[Tensor, "*shape"], share: float, training: bool) -> Float[Tensor, "*shape"]:
    """Dropout. On a CPU uniform numbers are drawn twice as fast as the mask of torch's own."""
    if not (training and share):
        return inputs
    return inputs * (torch.rand_like(inputs) >= share) / (1 - share)
