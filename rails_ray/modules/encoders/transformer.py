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
        self.network = nn.Sequential(nn.Linear(width, hidden), activation, nn.Linear(hidden, width))

    def forward(
        self, inputs: Float[Tensor, "B T D"], is_read: Bool[Tensor, "B T"] | None = None
    ) -> Float[Tensor, "B T D"]:
        """
        Args:
            is_read: the positions that the others see; by default each position sees itself and those before it.
        """
        parts = self.attention_in(self.attention_norm(inputs)).unflatten(2, (3, self.num_heads, -1))
        query, key, value = parts.permute(2, 0, 3, 1, 4)  # each [B, heads, T, D / heads]
        mask = None if is_read is None else is_read[:, None, None, :]
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=is_read is None)
        hidden = inputs + dropped(self.attention_out(attended.transpose(1, 2).flatten(2)), self.dropout, self.training)
        return hidden + dropped(self.network(self.network_norm(hidden)), self.dropout, self.training)


def dropped(inputs: Float[Tensor, "*shape"], share: float, training: bool) -> Float[Tensor, "*shape"]:
    """Dropout. On a CPU uniform numbers are drawn twice as fast as the mask of torch's own."""
    if not (training and share):
        return inputs
    return inputs * (torch.rand_like(inputs) >= share) / (1 - share)
