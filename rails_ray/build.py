"""Config -> objects. The only place that chooses an implementation."""

from collections.abc import Callable
from functools import partial
from typing import assert_never

import torch
from torch import Tensor

from rails_ray.config import DataConfig, RunConfig, from_json
from rails_ray.data import emoji, text
from rails_ray.encoders.components import ItemComponents, QueryComponents
from rails_ray.encoders.model import Model
from rails_ray.encoders.two_tower import TwoTower
from rails_ray.losses import ScoreLogit
from rails_ray.losses.beta_nce import beta_logit
from rails_ray.losses.sampled_softmax import scaled_logit
from rails_ray.retrieval import Retriever
from rails_ray.retrieval.average import Average
from rails_ray.retrieval.brute_force import BruteForce
from rails_ray.similarities import Similarity
from rails_ray.similarities.dot_product import DotProduct, DotProductConfig
from rails_ray.similarities.mol import MixtureOfLogits, MixtureOfLogitsConfig
from rails_ray.similarities.states import ItemState
from rails_ray.storage import parquet
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.manifest import CONFIG, WEIGHTS, Manifest, read_file
from rails_ray.training import state
from rails_ray.training.step import TrainingStep

METHODS = ("brute_force", "average")


def model(config: RunConfig) -> Model:
    """An untrained model on the CPU; its initial weights depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        compared_by = similarity(config)
        num_components = compared_by.num_components
        encoder = TwoTower(config.encoder)
        built = Model(
            encoder,
            QueryComponents(encoder.width, num_components, config.components, config.temperature),
            ItemComponents(encoder.width, num_components, config.components),
            compared_by,
        )
    _start_aligned(built)
    # A loss that does not read tau_q leaves its head without a gradient, which data-parallel training refuses.
    built.query_components.temperature.requires_grad_(has_trained_temperature(config))
    return built


def _start_aligned(built: Model) -> None:
    """Let query and item components begin as the same linear maps, as far as both sides have them.

    With towers that begin equal too, an item begins near the queries whose words it shares, and training improves on
    that instead of finding it (figures: jobs/benches/LOG.md).
    """
    query, item = built.query_components.project, built.item_components.project
    if query.in_features == item.in_features:
        shared = min(query.out_features, item.out_features)
        with torch.no_grad():
            item.weight[:shared] = query.weight[:shared]
            item.bias[:shared] = query.bias[:shared]


def trained_model(config: RunConfig, weights: bytes) -> Model:
    """A stored model, in evaluation mode.

    Raises:
        ValueError: if the weights are not those of such a model.
    """
    stored = model(config).eval()
    state.load(stored, weights)
    return stored


def version_config(storage: Storage, described: Manifest) -> RunConfig:
    """The config of the run that a version comes from."""
    return from_json(read_file(storage, described.version, described.file(CONFIG)))


def version_model(storage: Storage, described: Manifest) -> Model:
    """The model of a version.

    Raises:
        DamagedError: if config or weights are not those of the manifest.
    """
    weights = read_file(storage, described.version, described.file(WEIGHTS))
    return trained_model(version_config(storage, described), weights)


def similarity(config: RunConfig) -> MixtureOfLogits | DotProduct:
    match config.similarity:
        case MixtureOfLogitsConfig():
            return MixtureOfLogits(config.similarity)
        case DotProductConfig():
            return DotProduct(config.similarity)
        case _:
            assert_never(config.similarity)


def training_step(trained: Model, config: RunConfig, mean_over_workers: Callable[[Tensor], Tensor]) -> TrainingStep:
    """What trains `trained` by the losses of a run."""
    return TrainingStep(
        trained,
        logit(config),
        pointwise_weight=config.loss.pointwise_weight,
        mutual_information_weight=config.loss.mutual_information_weight,
        mean_over_workers=mean_over_workers,
    )


def has_trained_temperature(config: RunConfig) -> bool:
    """Whether tau_q means something, so that a cut-off by mass can be offered."""
    return config.loss.kind == "beta_nce"


def logit(config: RunConfig) -> ScoreLogit:
    match config.loss.kind:
        case "beta_nce":
            return beta_logit
        case "sampled_softmax":
            return partial(scaled_logit, tau=config.similarity.temperature)
        case _:
            assert_never(config.loss.kind)


def retriever(method: str, compared_by: Similarity, items: ItemState, num_candidates: int) -> Retriever:
    """Raises:
    ValueError: if the method is not one of `METHODS`.
    """
    match method:
        case "brute_force":
            return BruteForce(compared_by, items)
        case "average":
            return Average(compared_by, items, num_candidates)
        case _:
            raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")


def data(config: DataConfig, storage: Storage) -> text.TextData:
    """The data set of a run: a folder's tables, or the emoji, which are written to storage the first time.

    Raises:
        NotFoundError, ValueError: as `text.read`.
    """
    if config.folder is not None:
        return text.read(Storage(config.folder), ".")
    folder = f"data/emoji-{config.num_valid}-{config.num_test}-{config.split_seed}"
    if not storage.exists(f"{folder}/relevance.parquet"):
        made = emoji.tables(config.num_valid, config.num_test, config.split_seed)
        for name in ("items", "queries", "relevance"):  # the last one says that all are there
            storage.write(f"{folder}/{name}.parquet", parquet.to_bytes(getattr(made, name)))
    return text.read(storage, folder)
