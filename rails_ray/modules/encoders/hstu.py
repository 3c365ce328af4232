"""HSTU: a history by pointwise attention, whose weights are not shared out among the positions but stay what they are.

    U, V, Q, K   = silu(W_1 LayerNorm(h^l))                          each head has a part of them
    A_ij         = silu(<Q_i, K_j> + b[i - j] + c[bucket(s_i - s_j)]) / T     j <= i; s: time in seconds, if it is known
    h^{l+1}      = h^l + W_2 (LayerNorm(A V) * U)                    dropout before W_2
    query        = LayerNorm(h^L_t),   item x = E[x]

with h_t^0 = E[x_t] * sqrt(D) + P[t] as in SASRec, and bucket(s) = min(log(max(s, 1)) / log 2, the last bucket).

Source: Zhai et al., Actions Speak Louder than Words (RAILS, Section 5.1, takes it as a backbone), Equations 2 and 3.
Differs from the source: the time bias reads the time of the position that asks, not of the item that is asked for; the
last hidden state is normalised, as SASRec's is; T is `max_length`, whatever a batch holds.

Axes: B histories, T positions, D width, H heads.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from rails_ray.allowed_code import AllowedCode
from rails_ray.modules.encoders.config import InputFacts
from rails_ray.modules.encoders.histories import INITIAL_STD, Histories, HistoryConfig, HistoryEncoder
from rails_ray.modules.encoders.transformer import dropped
from rails_ray.schema.times import UNKNOWN_TIME


@dataclass(frozen=True, kw_only=True)
class HstuConfig(HistoryConfig):
    """Sizes of HSTU; see `HistoryConfig`.

    Args:
        num_time_buckets: buckets of the time between two positions, each twice as long as the one before; 0 for a model
            that reads no time. Training sets it to 0 for data without timestamps.
    """

    kind: Literal["hstu"] = "hstu"
    num_time_buckets: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_time_buckets < 0:
            raise ValueError(f"num_time_buckets must be at least 0, got {self.num_time_buckets}")

    def make(self, num_components: tuple[int, int], width: int, allowed: AllowedCode) -> "Hstu":
        return Hstu(self, width)

    def for_inputs(self, facts: InputFacts, place: str, allowed: AllowedCode) -> "HstuConfig":
        return self if facts.has_times else replace(self, num_time_buckets=0)


class Hstu(HistoryEncoder):
    """Histories by pointwise attention."""

    def __init__(self, config: HstuConfig, own_width: int = 0) -> None:
        super().__init__(config, own_width)
        self.num_time_buckets = config.num_time_buckets
        self.blocks = nn.ModuleList(PointwiseAttention(config) for _ in range(config.num_blocks))
        self.norm = nn.LayerNorm(config.width)

    def hidden(self, inputs: Float[Tensor, "B T D"], features: Histories) -> Float[Tensor, "B T D"]:
        length = inputs.shape[1]
        position = torch.arange(length, device=inputs.device)
        behind = (position[:, None] - position).clamp(min=0)  # [T, T]
        is_after = position[:, None] < position
        buckets = None
        if features.times is not None and self.num_time_buckets:
            buckets = _buckets(features.times, self.num_time_buckets)
        for block in self.blocks:
            inputs = block(inputs, behind, is_after, buckets)
        found: Tensor = self.norm(inputs)
        return found


class PointwiseAttention(nn.Module):
    """One block."""

    def __init__(self, config: HstuConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.longest = config.max_length
        self.dropout = config.dropout
        self.norm = nn.LayerNorm(config.width)
        self.project = nn.Linear(config.width, 4 * config.width)
        self.attended_norm = nn.LayerNorm(config.width)
        self.out = nn.Linear(config.width, config.width)
        self.position_bias = nn.Parameter(torch.empty(config.max_length).normal_(std=INITIAL_STD))
        of_time = torch.empty(config.num_time_buckets).normal_(std=INITIAL_STD)
        self.time_bias = nn.Parameter(of_time) if config.num_time_buckets else None

    def forward(
        self,
        inputs: Float[Tensor, "B T D"],
        behind: Int[Tensor, "T T"],
        is_after: Tensor,
        buckets: Int[Tensor, "B T T"] | None,
    ) -> Float[Tensor, "B T D"]:
        """
        Args:
            behind: how many positions the second lies before the first; 0 if it lies after it.
            is_after: whether it lies after it, and is not seen.
            buckets: bucket of the time between them, -1 where it is not known; None if it never is.
        """
        u, value, query, key = F.silu(self.project(self.norm(inputs))).chunk(4, dim=2)
        query, key, value = (part.unflatten(2, (self.num_heads, -1)).transpose(1, 2) for part in (query, key, value))
        bias = self.position_bias[behind]
        if buckets is not None and self.time_bias is not None:
            of_time = self.time_bias[buckets.clamp(min=0)] * (buckets >= 0)
            bias = (bias + of_time).unsqueeze(1)  # [B, 1, T, T]
        weights = F.silu(query @ key.transpose(2, 3) + bias) / self.longest  # [B, H, T, T]
        attended = (weights.masked_fill(is_after, 0.0) @ value).transpose(1, 2).flatten(2)
        gated = dropped(self.attended_norm(attended) * u, self.dropout, self.training)
        found: Tensor = inputs + self.out(gated)
        return found


def _buckets(times: Int[Tensor, "B T"], num_buckets: int) -> Int[Tensor, "B T T"]:
    """The bucket of the time from the second position to the first: 0 for less than two seconds, each twice as long as
    the one before; -1 where a time is not known."""
    seconds = (times[:, :, None] - times[:, None, :]).clamp(min=1)
    found = seconds.double().log2().long().clamp(max=num_buckets - 1)
    is_known = times > UNKNOWN_TIME
    return found.masked_fill(~(is_known[:, :, None] & is_known[:, None, :]), -1)
