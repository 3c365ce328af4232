"""The models that `jobs.benches.pebr` compares cut-offs on: trained once, ranked once, kept in a folder."""

import dataclasses
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from rails_ray.data.dataset import DataSet
from rails_ray.data.encoding import encode_items
from rails_ray.families.config import RunConfig
from rails_ray.families.data import for_data
from rails_ray.families.dual_encoder.model import DualEncoder
from rails_ray.families.dual_encoder.train import DualEncoderTraining
from rails_ray.families.recipes import by_name
from rails_ray.families.training_family import training_family
from rails_ray.modules import weight_files
from rails_ray.modules.encoders.two_tower import TwoTowerConfig
from rails_ray.modules.losses.config import ContrastiveConfig, MaximumLikelihoodConfig, PointwiseConfig
from rails_ray.training.evaluation.ranking import Ranking, rank_all
from rails_ray.training.loop import train
from rails_ray.training.step import in_one_process

LOSSES = {
    "softmax": ContrastiveConfig(kind="sampled_softmax", pointwise_weight=0.0),
    "beta": ContrastiveConfig(kind="beta_nce"),
    "exp": ContrastiveConfig(kind="exp_nce"),
    "beta-pure": ContrastiveConfig(kind="beta_nce", pointwise_weight=0.0),
    "exp-pure": ContrastiveConfig(kind="exp_nce", pointwise_weight=0.0),
    "pointwise": PointwiseConfig(),
    "likelihood": MaximumLikelihoodConfig(),
}
LONGEST_LIST = 3000


def config_of(data: str, loss: str, seed: int, similarity: str = "dot") -> RunConfig:
    """The run of one model."""
    if data == "emoji":
        base = by_name(f"emoji-{similarity}")
        training = replace(base.training, num_steps=800)
    elif data == "wordnet":
        base = by_name(f"text-{similarity}")
        base = base.with_family(encoder=TwoTowerConfig(width=64, hidden=128, num_buckets=2**16))
        training = replace(base.training, num_steps=3000, batch_size=256)
    else:
        base = by_name("ml1m-sasrec" if similarity == "dot" else "ml1m-sasrec-mol")
        size = {"ml-1m": (2000, 32), "amazon-beauty": (1500, 64)}[data]
        training = replace(base.training, num_steps=size[0], batch_size=size[1], validate_every=0, patience=0)
    return replace(base, name=f"{data}-{loss}", seed=seed, training=training).with_family(loss=LOSSES[loss])


def rankings(
    config: RunConfig, data: DataSet, storage: Path, on_step: Callable[[int, int, str], None]
) -> dict[str, Ranking]:
    """Of the splits "valid" and "test", from the folder or else from a model that is trained now."""
    path = storage / f"{config.name}-{config.seed}.npz"
    if not path.exists():
        model = trained(config, data, on_step)
        made = {}
        items = encode_items(model, model.item_features(data.item_inputs))
        for split in ("valid", "test"):
            on_step(0, 1, f"rank {split}")
            k = min(LONGEST_LIST, len(data.item_ids))
            ranking = rank_all(model, items, data.queries[split], k, training_family(config).cutoff_support.logit)
            made |= {f"{split}.{name}": value for name, value in dataclasses.asdict(ranking).items()}
        storage.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".safetensors").write_bytes(weight_files.to_bytes(model))
        np.savez(path, **made)
    stored = np.load(path)
    names = [field.name for field in dataclasses.fields(Ranking)]
    return {split: Ranking(**{name: stored[f"{split}.{name}"] for name in names}) for split in ("valid", "test")}


def kept_model(
    config: RunConfig, data: DataSet, storage: Path, on_step: Callable[[int, int, str], None]
) -> DualEncoder:
    """The model that `rankings` ranks with, from the folder or else trained now."""
    path = storage / f"{config.name}-{config.seed}.safetensors"
    if not path.exists():
        storage.mkdir(parents=True, exist_ok=True)
        path.write_bytes(weight_files.to_bytes(trained(config, data, on_step)))
    model = DualEncoderTraining.of(for_data(config, data)).model()
    weight_files.load(model, path.read_bytes())
    return model.eval()


def trained(config: RunConfig, data: DataSet, on_step: Callable[[int, int, str], None]) -> DualEncoder:
    config = for_data(config, data)
    model = DualEncoderTraining.of(config).model()

    def report(done: int, loss: float) -> None:
        on_step(done, config.training.num_steps, f"loss {loss:.3f}")

    step = DualEncoderTraining.of(config).training_step(model, in_one_process)
    sampler = DualEncoderTraining.of(config).sampler(model, data)
    train(step, sampler.batch, config.training, seed=[config.seed, 0], report=report)
    return model
