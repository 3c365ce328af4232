"""What a worker does in the proof of cross-device sampling: in a module that a spawned process can import."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, product

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from rails_ray.data.dataset import Texts
from rails_ray.data.in_batch import InBatchSampler
from rails_ray.data.queries import ItemLists, Queries
from rails_ray.families.config import RunConfig
from rails_ray.families.dual_encoder.model import DualEncoder
from rails_ray.families.dual_encoder.train import DualEncoderTraining
from rails_ray.modules.encoders.text import TransformerConfig
from rails_ray.modules.losses.config import ContrastiveConfig, TermsConfig
from rails_ray.modules.losses.mutual_information import mutual_information
from rails_ray.modules.losses.negatives import BatchRelevance, are_copies, roles_among_copies
from rails_ray.modules.similarities.states import concatenate
from rails_ray.training.collectives.gather import gather_constants
from rails_ray.training.collectives.group import device, num_workers, rank
from rails_ray.training.collectives.mean import mean_over_workers
from rails_ray.training.contrast import Contrast, Gathered, PrimaryAndImage, Streamed, WithinBatch
from rails_ray.training.step import TrainingStep, in_one_process
from support.examples import small_config

QUERIES = Texts(
    ["red", "car", "blue hat", "hat", "a car that is blue", "green", "the green tree", "tree", "stone", "pink"]
)
ITEMS = ["red car", "red hat", "blue car", "blue hat", "green tree", "pink stone", "grey stone of some size"]
ANSWERS = ItemLists.of([[0, 1], [0, 2], [3], [1, 3], [2], [4], [4], [4], [5, 6], [5]])
WEIGHTS = np.array([0.5, 3, 0, 1, 7, 2, 0.25, 1, 4, 0, 2, 1, 6, 0.5])  # of the pairs
# Of the 14 pairs an epoch has batches of 8 and of 6: even for two workers and for three; of 5, 5 and 4; of 13 and 1.
BATCHES = {"even": (6, 1), "uneven": (5, 0), "one empty": (13, 1)}

FORMS: dict[str, Contrast] = {
    "gather": Gathered(),
    "image": PrimaryAndImage(),
    "stream": Streamed(2),
}
BASELINES: dict[str, Contrast] = {"in batch": WithinBatch(), "constants": Gathered(gather_constants)}


@dataclass(frozen=True)
class Case:
    model: str
    loss: str = "beta_nce"
    form: str = "gather"
    batch: str = "uneven"
    is_wrapped: bool = True
    precision: torch.dtype = torch.float32
    encode_size: int = 0
    is_weighted: bool = False
    pointwise_weight: float = 0.5  # heavy, so that no wrong gradient could hide behind another loss


def cases() -> Iterator[Case]:
    for form, batch, is_wrapped in product(FORMS, BATCHES, (True, False)):
        yield Case("towers mixture", form=form, batch=batch, is_wrapped=is_wrapped)
    for model, loss, form in product(("towers dot", "transformer mixture"), LOSSES, FORMS):
        yield Case(model, loss=loss, form=form)
    for form, batch in product(FORMS, BATCHES):
        yield Case("towers mixture", form=form, batch=batch, is_weighted=True)
    for form, batch, is_weighted in product(FORMS, BATCHES, (True, False)):  # by a kernel, but for "stream"
        yield Case("towers dot", "sampled_softmax", form, batch, is_weighted=is_weighted, pointwise_weight=0.0)
    for form in BASELINES:
        yield Case("towers mixture", form=form)
    for form in FORMS:
        yield Case("transformer mixture", form=form, encode_size=2)
        yield Case("transformer mixture", form=form, precision=torch.bfloat16)


LOSSES = ("beta_nce", "exp_nce", "sampled_softmax")


def config_of(case: Case) -> RunConfig:
    encoder, similarity = case.model.split()
    config = small_config("mixture" if similarity == "mixture" else "dot product")
    if encoder == "transformer":
        pooling = "aggregation" if similarity == "mixture" else "mean"
        sizes = TransformerConfig(
            width=8, num_heads=2, hidden=16, max_length=8, vocabulary_size=300, pooling=pooling, dropout=0.0
        )
        config = config.with_family(encoder=sizes)
    loss = ContrastiveConfig(kind=case.loss, pointwise_weight=case.pointwise_weight)
    return config.with_family(loss=loss, terms=TermsConfig(mutual_information_weight=1.0))


def model_of(case: Case) -> DualEncoder:
    model = DualEncoderTraining.of(config_of(case)).model()
    if case.model.startswith("transformer"):
        model.encoder.learn([*QUERIES, *ITEMS])
    return model


def sampler_of(case: Case, model: DualEncoder, rank: int = 0, num_workers: int = 1) -> InBatchSampler:
    features = model.query_features(QUERIES), model.item_features(ITEMS)
    size, _ = BATCHES[case.batch]
    answers = replace(ANSWERS, weights=WEIGHTS) if case.is_weighted else ANSWERS
    return InBatchSampler(
        Queries(QUERIES, answers), *features, batch_size=size, seed=0, rank=rank, num_workers=num_workers
    )


def step_of(case: Case, model: DualEncoder, contrast: Contrast, mean: Callable[[Tensor], Tensor]) -> TrainingStep:
    family = DualEncoderTraining.of(config_of(case))
    return TrainingStep(
        model,
        family.objective(model),
        contrast,
        terms=family.terms(mean),
        encode_size=case.encode_size,
        precision=case.precision,
    )


def gradients_of(step: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.cpu() for name, p in step.named_parameters() if p.grad is not None}


def whole(case: Case) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients of one process on the whole batch."""
    model = model_of(case)
    step = step_of(case, model, WithinBatch(), in_one_process)
    loss = step(sampler_of(case, model).batch(BATCHES[case.batch][1]))
    loss.backward()
    return loss.item(), gradients_of(step)


def by_slices(case: Case, num_slices: int) -> tuple[float, dict[str, Tensor]]:
    """One process again, which in bfloat16 rounds as workers do: its encoder sees one worker's slice at a time, and
    what is passed back is larger by their number.
    """
    model = model_of(case)
    step = step_of(case, model, WithinBatch(), in_one_process)
    slices = [sampler_of(case, model, part, num_slices).batch(BATCHES[case.batch][1]) for part in range(num_slices)]
    query = concatenate([model.encode_queries(part.queries, case.precision) for part in slices])
    items = concatenate([model.encode_items(part.items, case.precision) for part in slices])
    rows = torch.cat([part.item_rows for part in slices])
    first_item = accumulate((len(part.item_rows) for part in slices), initial=0)
    first_query = accumulate((len(part.positive) for part in slices), initial=0)
    positive = torch.cat([part.positive + first for part, first in zip(slices, first_item, strict=False)])
    relevance = BatchRelevance(
        torch.cat([part.relevance.query + first for part, first in zip(slices, first_query, strict=False)]),
        torch.cat([part.relevance.item_row for part in slices]),
    )
    scores, gates = model.score(query, items)
    roles = roles_among_copies(rows, are_copies(rows), positive, rows[positive], relevance)
    loss = step.objective(scores, query, roles).mean()
    if gates is not None:
        own = gates[torch.arange(len(query)), positive]
        loss = loss + mutual_information(own, own.mean(dim=0), 1 / len(query))  # of weight 1
    (loss * num_slices).backward()
    return loss.item(), {name: gradient / num_slices for name, gradient in gradients_of(step).items()}


def shared(case: Case) -> tuple[float, dict[str, Tensor]]:
    """The same on one of several workers: its part of the loss, and the gradients on which all agree."""
    model = model_of(case)
    step = step_of(case, model, {**FORMS, **BASELINES}[case.form], mean_over_workers)
    batch = sampler_of(case, model, rank(), num_workers()).batch(BATCHES[case.batch][1]).to(device())
    step.to(device())
    wrapped = DistributedDataParallel(step) if case.is_wrapped else step
    loss = wrapped(batch)
    loss.backward()
    if not case.is_wrapped:  # what the wrapper does, by hand: without it the mean of gradients is still to be taken
        for parameter in step.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad /= num_workers()
    return loss.item(), gradients_of(step)


def descend(form: str, is_clipped: bool) -> dict[str, Tensor]:
    """The weights after some steps of plain gradient descent, with or without clipping, of one worker or of several."""
    case = Case("towers mixture", batch="even")
    model = model_of(case)
    contrast = FORMS[form] if num_workers() > 1 else WithinBatch()
    step = step_of(case, model, contrast, mean_over_workers).double().to(device())
    wrapped = DistributedDataParallel(step) if num_workers() > 1 else step
    optimizer = torch.optim.SGD(step.parameters(), lr=0.05)
    sampler = sampler_of(case, model, rank(), num_workers())
    for number in range(4):
        optimizer.zero_grad()
        wrapped(sampler.batch(number).to(device())).backward()
        if is_clipped:
            norm = torch.nn.utils.clip_grad_norm_(step.parameters(), 0.5)
            assert norm > 0.5
        optimizer.step()
    return {name: parameter.detach().cpu() for name, parameter in step.named_parameters()}


@dataclass(frozen=True)
class Proof:
    """What one worker leaves behind: loss and gradients of each case, and weights by form and whether clipped."""

    gradients: dict[Case, tuple[float, dict[str, Tensor]]]
    weights: dict[tuple[str, bool], dict[str, Tensor]]


def prove() -> Proof:
    return Proof(
        {case: shared(case) for case in cases()},
        {(form, is_clipped): descend(form, is_clipped) for form in FORMS for is_clipped in (False, True)},
    )
