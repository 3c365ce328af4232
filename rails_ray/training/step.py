"""One training step: encode the batch, score its queries against its items, and take the loss.

    L = objective(scores) + weight * L_MI

A module, so that a data-parallel wrapper sees one forward pass. The mean of the workers' gradients is the gradient of
the whole batch: objectives are means over queries, weighted where a slice holds more of them than others, and
the mean gates of L_MI are averaged over workers before their entropy is taken.

Source: RAILS, Equation 4; pEBR, Section 2.4.

Axes: B queries, N items, P pairs of components.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from rails_ray.data.batch import TrainingBatch
from rails_ray.encoders.model import Model
from rails_ray.losses.mutual_information import mutual_information
from rails_ray.similarities.states import ItemState, QueryState, take
from rails_ray.training.objectives import Objective


class TrainingStep(nn.Module):
    """Loss of a model on a batch.

    Args:
        objective: of the scores; a module where it learns something of its own.
        mutual_information_weight: of L_MI; of no effect on a similarity without gates.
        mean_over_workers: the differentiable mean of a tensor over all workers; the tensor itself in a single process.
    """

    def __init__(
        self,
        model: Model,
        objective: Objective,
        *,
        mutual_information_weight: float,
        mean_over_workers: Callable[[Tensor], Tensor],
    ) -> None:
        super().__init__()
        self.model = model
        self.objective = objective
        self.mutual_information_weight = mutual_information_weight
        self.mean_over_workers = mean_over_workers

    def forward(self, batch: TrainingBatch) -> Float[Tensor, ""]:
        query = self.model.encode_queries(batch.queries)
        items = self.model.encode_items(batch.items)
        scores, own_gates, positive = self._scores(query, items, batch)
        loss = self.objective(scores, query, positive, batch.is_hidden) * batch.weight
        if own_gates is not None and self.mutual_information_weight:
            mean_gates = self.mean_over_workers(own_gates.mean(dim=0) * batch.weight)
            loss = loss + self.mutual_information_weight * mutual_information(own_gates, mean_gates, batch.weight)
        return loss

    def _scores(
        self, query: QueryState, items: ItemState, batch: TrainingBatch
    ) -> tuple[Float[Tensor, "B N"], Float[Tensor, "B P"] | None, Int[Tensor, " B"]]:
        """Scores of each query's candidates, the gates of its positive, and the column where that stands."""
        if batch.num_shared is None:
            scores, gates = self.model.score(query, items)
            own = (torch.arange(len(query), device=scores.device), batch.positive)
            return scores, None if gates is None else gates[own], batch.positive
        shared = self.model.score(query, take(items, slice(batch.num_shared)))
        alone = self.model.score(query, take(items, batch.positive.unsqueeze(1)))
        return (
            torch.cat([shared.scores, alone.scores], dim=1),
            None if alone.gates is None else alone.gates.squeeze(1),
            torch.full_like(batch.positive, batch.num_shared),
        )


def in_one_process(tensor: Tensor) -> Tensor:
    """The mean over workers where there is one."""
    return tensor
