"""One training step: encode the batch, score its queries against items, and take the loss.

    L = weight * sum_q w_q objective_q(scores) + sum of the terms (L_MI, GLaS)

with w_q the weight of q's pair, of mean 1 over the global batch. L_MI and what a quantizer's method adds are weighed by
it; GLaS, which compares items, is not. An item whose pair weighs 0 may still be a negative.

It is a module so that a data-parallel wrapper sees one forward pass. The mean of the workers' gradients is the gradient
of the whole batch: each query has the same weight on any worker, and the mean gates of L_MI are averaged over workers
before their entropy is taken; l_GLaS is the same on all workers, which have the same items.

Gradient caching encodes `encode_size` inputs at a time, forgets their activations and computes them again in the
backward pass, so that memory holds the activations of one such part beside the embeddings of all.

Source: RAILS, Equation 4; pEBR, Section 2.4; MoPQ, Section 3; SOLAR, Appendix D. Gradient caching: Gao et al.,
Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup.

Axes: B queries, N items, P pairs of components.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rails_ray.data.batch import TrainingBatch
from rails_ray.modules.model import PairModel
from rails_ray.modules.similarities.states import ItemState, QueryState, State, concatenate, take, tensors_of
from rails_ray.training.collectives.group import place_of
from rails_ray.training.contrast import Contrast
from rails_ray.training.objectives import Objective
from rails_ray.training.quantizing import Quantizing
from rails_ray.training.randomness import drawing, new_seed
from rails_ray.training.terms import Compared, Term


class TrainingStep(nn.Module):
    """Loss of a dual encoder on a batch. SOLAR's chunks, which encode no items, have a step of their own: `BucketStep`.

    Args:
        objective: turns scores into losses; a module if it learns something of its own.
        contrast: which items a query is compared with.
        terms: what is added to the loss of the queries.
        quantizing: replaces the items of a batch by what their codes stand for; None to compare vectors.
        has_gates_of_others: whether terms read the gates of each query and an item of the batch at random, too.
        encode_size: inputs that are encoded at once; 0 for all.
        precision: dtype of the encoder's products, None for bfloat16 on GPUs and float32 elsewhere; similarities and
            losses are computed in the weights' dtype.
    """

    def __init__(
        self,
        model: PairModel,
        objective: Objective,
        contrast: Contrast,
        *,
        terms: Sequence[Term] = (),
        quantizing: Quantizing | None = None,
        has_gates_of_others: bool = False,
        encode_size: int = 0,
        precision: torch.dtype | None = torch.float32,
    ) -> None:
        super().__init__()
        self.model = model
        self.objective = objective
        self.contrast = contrast
        self.terms = terms
        self.quantizing = quantizing
        self.has_gates_of_others = has_gates_of_others
        self.encode_size = encode_size
        self.precision = precision
        self.mining: nn.Module | None = None

    def forward(self, batch: TrainingBatch) -> Float[Tensor, ""]:
        """This worker's part, in nats; the mean over workers is the loss of the whole batch.

        Raises:
            ValueError, FloatingPointError, LostWorkerError: as `group.place_of` of the embeddings.
        """
        query = self._encoded(self.model.encode_queries, batch.queries)
        place_of(tensors_of(query), "embeddings of queries")  # all workers stop here if one's are not finite
        items = replace(self._encoded(self.model.encode_items, batch.items), average=None)  # no score reads it
        quantized, compared = None, items
        if self.quantizing is not None:
            quantized = self.quantizing(items)
            compared = self.quantizing.compared(items, quantized)
        loss, own_gates = self.contrast(self.model, self.objective, query, compared, batch)
        if self.has_gates_of_others and own_gates is not None and len(query):
            own_gates = torch.cat([own_gates, self._gates_of_others(query, compared)])
        loss = loss * batch.weight
        for term in self.terms:
            loss = loss + term(Compared(query, items, own_gates, batch, quantized))
        return loss

    def _gates_of_others(self, query: QueryState, items: ItemState) -> Float[Tensor, "B P"]:
        columns = torch.randint(len(items), (len(query), 1)).to(query.temperature.device)
        gates = self.model.score(query, take(items, columns)).gates
        assert gates is not None
        others: Tensor = gates.squeeze(1)
        return others

    def _encoded(self, encode: Callable[..., State], features: Any) -> State:
        precision = precision_on(next(self.parameters()).device, self.precision)
        if not self.encode_size or len(features) <= self.encode_size:
            encoded: State = encode(features, precision)
            return encoded
        rows = torch.arange(len(features)).split(self.encode_size)
        parts: list[State] = [
            checkpoint(_encoded_by_seed, encode, features.take(part), precision, new_seed(), use_reentrant=False)
            for part in rows
        ]
        return concatenate(parts)


def _encoded_by_seed(encode: Callable[..., State], features: Any, precision: torch.dtype, seed: int) -> State:
    # A checkpoint would restore a GPU's generator only for tensors that it can see among the arguments.
    with drawing(seed, features.device):
        encoded: State = encode(features, precision)
    return encoded


def precision_on(device: torch.device, precision: torch.dtype | None) -> torch.dtype:
    """The precision of products; if it is None, the device decides."""
    return precision or (torch.bfloat16 if device.type == "cuda" else torch.float32)


def in_one_process(tensor: Tensor) -> Tensor:
    """The mean over workers if there is only one."""
    return tensor
