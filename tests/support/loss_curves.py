"""Losses of a run that one process trains, with which those of several are compared."""

from rails_ray.families.config import RunConfig
from rails_ray.families.data import read_data
from rails_ray.families.dual_encoder.train import DualEncoderTraining
from rails_ray.storage.filesystem import Storage
from rails_ray.training.loop import train
from rails_ray.training.step import in_one_process


def curve_of(run_config: RunConfig, storage: Storage) -> list[float]:
    """The losses of a run in this process."""
    data = read_data(run_config, storage)
    model = DualEncoderTraining.of(run_config).model()
    step = DualEncoderTraining.of(run_config).training_step(model, in_one_process)
    sampler = DualEncoderTraining.of(run_config).sampler(model, data)
    return train(step, sampler.batch, run_config.training, seed=[0, 0], report=lambda *_: None).losses
