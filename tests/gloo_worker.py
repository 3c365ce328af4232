"""What a process of a gloo group does in a test: in a module that a spawned process can import."""

from dataclasses import replace

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from examples import sampler_of, small_config
from rails_ray import build
from rails_ray.collectives.mean import mean_over_workers
from rails_ray.config import LossConfig, RunConfig

NUM_WORKERS = 2


def config_of(similarity: str) -> RunConfig:
    # A heavy weight, so that a wrong gradient of the mean gates could not hide behind the other losses.
    return replace(small_config(similarity), loss=LossConfig(mutual_information_weight=5.0))


def one_step(rank: int, folder: str, similarity: str) -> None:
    """Leave the loss and the gradients of one step in `folder`."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=NUM_WORKERS)
    config = config_of(similarity)
    model = build.model(config)
    step = DistributedDataParallel(build.training_step(model, config, mean_over_workers))
    loss = step(sampler_of(model, rank=rank, num_workers=NUM_WORKERS).batch(0))
    loss.backward()
    gradients = {name: p.grad for name, p in step.module.named_parameters() if p.grad is not None}
    torch.save({"loss": loss.detach(), "gradients": gradients}, f"{folder}/{rank}.pt")
    dist.destroy_process_group()
