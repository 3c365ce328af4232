"""What a process of a gloo group does in a test: in a module that a spawned process can import."""

from itertools import product
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from rails_ray.families.config import RunConfig
from rails_ray.families.dual_encoder.train import DualEncoderTraining
from rails_ray.modules.losses.config import TermsConfig
from rails_ray.training.collectives.each import from_each
from rails_ray.training.collectives.first import from_first
from rails_ray.training.collectives.group import rank
from rails_ray.training.collectives.mean import mean_over_workers
from support.examples import batches_of, small_config, small_history_config

NUM_WORKERS = 2
CASES = tuple(product(("texts", "histories"), ("mixture", "dot product")))


def config_of(inputs: str, similarity: str) -> RunConfig:
    made = small_config(similarity) if inputs == "texts" else small_history_config(similarity)
    # A heavy weight, so that a wrong gradient of the mean gates could not hide behind the other losses.
    return made.with_family(terms=TermsConfig(mutual_information_weight=5.0))


def work() -> dict[str, Any]:
    """Loss and gradients of one step of each case, and what the collectives gave."""
    results = {}
    for case in CASES:
        config = config_of(*case)
        model = DualEncoderTraining.of(config).model()
        step = DistributedDataParallel(DualEncoderTraining.of(config).training_step(model, mean_over_workers).double())
        batch = batches_of(model, rank=rank(), num_workers=NUM_WORKERS).batch(0)
        loss = step(batch)
        loss.backward()
        gradients = {name: p.grad for name, p in step.module.named_parameters() if p.grad is not None}
        results[case] = {"loss": loss.detach(), "gradients": gradients, "num_queries": len(batch.positive)}
    own = torch.tensor(1.0 + rank(), requires_grad=True)
    mean = mean_over_workers(own)
    (mean * 10 ** rank()).backward()  # of which each worker makes something else
    return {
        "steps": results,
        "first": from_first(["said by", rank(), b"\x00"]),
        "each": from_each(0.5 + rank()),
        "mean": mean.item(),
        "slope": own.grad,
    }
