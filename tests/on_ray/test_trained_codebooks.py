"""Codebooks that a run trains on two workers, over frozen queries and items or with the encoder, and what is encoded by
them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from rails_ray import on_ray
from rails_ray.errors import TrainingError
from rails_ray.families import recipes
from rails_ray.families.config import DataConfig, RunConfig
from rails_ray.families.data import read_data
from rails_ray.families.dual_encoder.negatives import CrossDeviceNegatives
from rails_ray.families.training_family import training_family
from rails_ray.families.vector_items.storing import PqItems, TrainedConfig
from rails_ray.modules import weight_files
from rails_ray.modules.schedule import TrainingConfig
from rails_ray.storage import quantizers, runs
from rails_ray.storage.filesystem import Storage
from rails_ray.training import checkpoints
from rails_ray.training.piece import Given, fit
from support.data_folders import write_text_data, write_vector_data
from support.examples import small_config, small_vector_config, trained_items
from support.untrained_runs import of, published, write_runs

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("ray_cluster")]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, ray_cluster: None) -> Path:
    """Storage with a run of an untrained mixture."""
    folder = tmp_path_factory.mktemp("codebooks")
    write_runs(folder)
    return folder


def over_mixture(root: Path, **how: Any) -> RunConfig:
    """A run of codebooks that begins with the encoder of the untrained run."""
    return of(small_config(), root / "texts").with_family(
        items=trained_items(encoder_of="mixture", **how), negatives=CrossDeviceNegatives()
    )


def weights_of(root: Path, run: str) -> dict[str, dict[str, torch.Tensor]]:
    store = Storage(str(root))
    return {path: safetensors.torch.load(data) for path, data in runs.weights(store, runs.read(store, run))}


def codebooks(root: Path, version: str) -> torch.Tensor:
    return quantizers.from_bytes(Storage(str(root)).read(f"versions/{version}/{quantizers.NAME}"))[0].codebooks


@pytest.mark.long
def test_two_workers_train_what_one_process_trains(root: Path) -> None:
    """Cross-device negatives: the gradient is that of the whole batch."""
    store, config = Storage(str(root)), over_mixture(root)
    run = on_ray.train(config, str(root), run="after", num_workers=2)
    assert run.training["pieces"][1].keys() >= {"reconstruction_loss", "num_dead_codewords", "num_revived"}
    weights = weights_of(root, "after")
    [untrained] = weights_of(root, "mixture").values()
    assert all(torch.equal(weights["encoder/model.safetensors"][name], tensor) for name, tensor in untrained.items())
    _, piece = training_family(config).pieces()
    alone = fit(piece, Given(read=read_data(config, store), storage=store, run="after"))
    assert alone is not None
    expected = safetensors.torch.load(alone.weights)
    for name, tensor in weights["quantizer/model.safetensors"].items():
        if name == "quantizer.num_chosen":  # an item of both workers counts twice
            continue
        assert torch.allclose(tensor, expected[name], atol=1e-4), name
    published(root, "after", "of-after")
    assert torch.equal(codebooks(root, "of-after"), weights["quantizer/model.safetensors"]["quantizer.codebooks"])
    assert on_ray.evaluate(str(root), version="of-after", split="valid").mrr == pytest.approx(run.validation["mrr"])


def test_an_encoder_that_is_trained_with_them_encodes_whatever_items_are_stored_as(root: Path) -> None:
    on_ray.train(over_mixture(root, when="jointly"), str(root), run="jointly", num_workers=1)
    weights = weights_of(root, "jointly")
    [untrained] = weights_of(root, "mixture").values()
    trained = {
        name.removeprefix("model."): tensor
        for name, tensor in weights["quantizer/model.safetensors"].items()
        if name.startswith("model.")
    }
    assert trained.keys() == untrained.keys()
    moved = {name for name, tensor in untrained.items() if not torch.equal(trained[name], tensor)}
    assert moved >= {"item_components.project.weight", "query_components.project.weight"}
    version = published(root, "jointly", "of-jointly")
    assert torch.equal(codebooks(root, "of-jointly"), weights["quantizer/model.safetensors"]["quantizer.codebooks"])
    fitted = published(root, "jointly", "fitted", items=PqItems(num_subspaces=2, num_codewords=4, has_vectors=True))
    own = training_family(of(small_config(), root / "texts"))
    store = Storage(str(root))
    model = own.trained_model(runs.weights(store, runs.read(store, "jointly")))
    assert torch.equal(
        weight_files.copy(model)["item_components.project.weight"], trained["item_components.project.weight"]
    )
    beside = published(root, "jointly", "beside", keep_vectors=True, code_lists=3)
    assert torch.equal(codebooks(root, "beside"), codebooks(root, "of-jointly"))
    assert set(beside.manifest.state.shapes) >= {"codes", "components", "lists"}
    few = write_text_data(root / "few", num_items=3)
    on_ray.encode(str(root), "jointly", version="few", num_shards=1, data=DataConfig(folder=str(few)))
    with pytest.raises(ValueError, match=r"codes must be left out for run .*, whose own codebooks are trained"):
        on_ray.encode(str(root), "jointly", stored={"codes": (2, 4)})
    for one in (version, fitted, beside):
        assert one.search(["red car"], 3, cutoff={"top_k": 3}).results[0].items


def test_codebooks_over_vectors_that_are_brought(root: Path) -> None:
    """Nothing else is trained."""
    config = of(small_vector_config("cosine"), root / "vectors")
    items = replace(trained_items(), num_subspaces=7)
    run = on_ray.train(config.with_family(items=items), str(root), run="brought", num_workers=1)
    assert [piece["piece"] for piece in run.training["pieces"]] == ["encoder", "quantizer"]
    version = published(root, "brought", "of-brought")
    assert version.search(np.ones((1, 7)).tolist(), 3, method="lookup", cutoff={"top_k": 3}).results[0].items


def test_a_loss_that_is_no_number_stops_and_keeps_the_last_checkpoint(root: Path) -> None:
    items = trained_items(encoder_of="mixture")
    assert isinstance(items.quantizer, TrainedConfig)
    fast = replace(items.quantizer, training=replace(items.quantizer.training, learning_rate=1e30, validate_every=0))
    config = over_mixture(root).with_family(items=replace(items, quantizer=fast))
    with pytest.raises(
        TrainingError, match=r"the loss must stay finite, got nan in step \d+: lower training.learning_rate"
    ):
        on_ray.train(config, str(root), run="broken", num_workers=1, checkpoint_s=0.0, timeout_s=5)
    store = Storage(str(root))
    checkpoint = runs.read_checkpoint(store, "broken/quantizer")
    assert checkpoint is not None
    assert checkpoints.steps_done(checkpoint) >= 1
    assert all(tensor.isfinite().all() for tensor in safetensors.torch.load(checkpoint).values())
    assert not runs.is_finished(store, "broken")


def test_an_encoder_that_encodes_in_another_way(root: Path) -> None:
    config = over_mixture(root)
    other = config.with_family(encoder=replace(config.family.encoder, ngram_sizes=(2,)))
    with pytest.raises(TrainingError, match=r"encoder_of must name a run whose encoder is .*, got 'mixture' with"):
        on_ray.train(other, str(root), run="other")


def test_fewer_items_than_codewords_are_refused_before_anything_is_trained(root: Path) -> None:
    items = replace(trained_items(), num_codewords=256)
    with pytest.raises(
        ValueError, match=r"as many codewords as there are items, 60, got 256: .*, --items\.num-codewords 32$"
    ):
        on_ray.train(of(small_config(), root / "texts").with_family(items=items), str(root), run="too-few")
    assert not Storage(str(root)).exists("runs/too-few")


def test_fewer_items_than_they_are_wide(root: Path) -> None:
    """OPQ begins the codebooks. Of 40 vectors of 64 numbers, FAISS would write beyond its memory."""
    folder = write_vector_data(root / "wide", num_items=40, width=64)
    config = of(recipes.by_name("vector-mopq"), folder)
    items = PqItems(num_codewords=16, quantizer=TrainedConfig(training=TrainingConfig(num_steps=2, batch_size=8)))
    run = on_ray.train(config.with_family(items=items), str(root), run="wide", num_workers=1)
    assert run.training["pieces"][1]["reconstruction_loss"] < 1


def test_an_encoder_that_is_not_there(root: Path) -> None:
    with pytest.raises(TrainingError, match=r"run must be one of .*mixture.*, got 'nowhere'"):
        on_ray.train(over_mixture(root).with_family(items=trained_items(encoder_of="nowhere")), str(root), run="lost")
