"""The codes of a batch's items, in a training step: what takes the items' place, and what is added to the loss.

Codewords that no recent item chose are moved onto random items, the same ones on all workers.

Axes: B queries, X items of a worker's batch.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rails_ray.data.batch import weighted_sum
from rails_ray.modules.quantizers.learned import Assigned, LearnedQuantizer, Matched, Method, Quantized
from rails_ray.modules.similarities.states import ItemState
from rails_ray.training.terms import Compared

REVIVE_EVERY = 100  # steps; at 512 pairs each, some 50,000 items have then passed a dead codeword by


class Quantizing(nn.Module):
    """Quantises the components of a batch's items by codebooks that the step trains.

    Args:
        revive_every: steps between two looks at codewords that no item has; 0 for none.
        mean_over_workers: averages a tensor over all workers.
        from_first: gives the first worker's value to all.
    """

    def __init__(
        self,
        method: Method,
        learned: LearnedQuantizer,
        *,
        revive_every: int = REVIVE_EVERY,
        mean_over_workers: Callable[[Tensor], Tensor] = lambda tensor: tensor,
        from_first: Callable[[Tensor | None], Tensor | None] = lambda drawn: drawn,
    ) -> None:
        super().__init__()
        self.method = method
        self.learned = learned
        self.revive_every = revive_every
        self.mean_over_workers = mean_over_workers
        self.from_first = from_first
        self.num_steps: Tensor
        self.register_buffer("num_steps", torch.zeros((), dtype=torch.int64))
        self.num_revived: Tensor
        self.register_buffer("num_revived", torch.zeros((), dtype=torch.int64))

    def forward(self, items: ItemState) -> Quantized:
        """The codewords of a batch's items."""
        vectors = items.components.flatten(start_dim=1)
        if self.training and self.revive_every:
            if self.num_steps > 0 and self.num_steps % self.revive_every == 0:
                self.num_revived += self.learned.revive(vectors.detach(), self.from_first)
            self.num_steps += 1
        assigned: Assigned = self.learned(vectors)
        if self.training and self.revive_every:
            self.learned.count(assigned.codes, self.mean_over_workers)
        return Quantized(vectors, assigned, self.learned.soft(assigned), items.num_components)

    def compared(self, items: ItemState, quantized: Quantized) -> ItemState:
        """The items that queries are compared with."""
        components = self.method.compared(quantized).unflatten(1, (quantized.num_components, -1))
        return replace(items, components=components)


@dataclass(frozen=True)
class MethodTerm:
    """The contract of `Term`: what a method adds to the loss of each query. It reads the items of its own worker, also
    where the softmax over scores has those of all.

    tau: temperature of the softmax over scores.
    """

    method: Method
    tau: float

    def __call__(self, compared: Compared) -> Float[Tensor, ""]:
        quantized, batch = compared.quantized, compared.batch
        assert quantized is not None
        loss = self.method.loss(Matched(compared.query.components, quantized, batch.roles(), self.tau))
        return weighted_sum(loss, batch.weights) * batch.weight
