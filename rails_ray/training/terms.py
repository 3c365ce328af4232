"""Terms that a training step adds to the losses of its queries: a list of terms, each one number for the whole batch.

| member              | paper                                                            |
|---------------------|------------------------------------------------------------------|
| `MutualInformation` | RAILS, Equation 3: every pair of components used, few by each    |
| `Glas`              | SOLAR, Appendix D: items that answer other queries are far apart |

Axes: B queries, P pairs of components.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from rails_ray.data.batch import TrainingBatch
from rails_ray.modules.losses.glas import glas
from rails_ray.modules.losses.mutual_information import mutual_information
from rails_ray.modules.quantizers.learned import Quantized
from rails_ray.modules.similarities.states import ItemState, QueryState


class Compared(NamedTuple):
    """Tensors that a step has computed when it comes to its terms.

    quantized: the items' codewords; None if they are not quantised.
    own_gates: gates of each query and its positive, and after them those of as many others; None if the similarity has
        no gates.
    """

    query: QueryState
    items: ItemState
    own_gates: Float[Tensor, "_ P"] | None
    batch: TrainingBatch
    quantized: Quantized | None = None


@runtime_checkable
class Term(Protocol):
    """A number that is added to the loss of a batch."""

    def __call__(self, compared: Compared) -> Float[Tensor, ""]:
        """This worker's part; the mean over workers is the term of the whole batch."""


@dataclass(frozen=True)
class MutualInformation:
    """L_MI of the gates of the positives.

    Args:
        mean_over_workers: the differentiable mean of a tensor over all workers.
    """

    weight: float
    mean_over_workers: Callable[[Tensor], Tensor]

    def __call__(self, compared: Compared) -> Float[Tensor, ""]:
        gates, weight = compared.own_gates, compared.batch.weight
        if gates is None:
            return compared.items.components.new_zeros(())
        weight, of_each = weight * len(compared.query) / max(len(gates), 1), compared.batch.weights
        if of_each is not None and len(of_each):
            of_each = of_each.repeat(len(gates) // len(of_each))
        total = gates if of_each is None else gates * of_each[:, None]
        mean_gates = self.mean_over_workers(total.sum(dim=0) * weight)
        return self.weight * mutual_information(gates, mean_gates, weight, of_each)


@dataclass(frozen=True)
class Glas:
    """GLaS of the items of a batch, which must have `glas_targets` and one component each."""

    weight: float

    def __call__(self, compared: Compared) -> Float[Tensor, ""]:
        targets = compared.batch.glas_targets
        assert targets is not None
        return self.weight * glas(compared.items.components.squeeze(1), targets)
