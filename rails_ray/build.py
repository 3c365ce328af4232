"""Config -> objects: models, what trains them and how their answers are cut.

With `build_data` (what is read), `build_search` (how it is searched) and `build_chunks` (SOLAR) the only place that
chooses an implementation.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, assert_never

import torch
from torch import Tensor

from rails_ray import build_chunks
from rails_ray.config import RunConfig, from_json
from rails_ray.cutoffs.calibration import Calibration
from rails_ray.cutoffs.distributions import UNIFORM, Background, BetaDistribution, ExpDistribution, sphere
from rails_ray.data.batch import PairSampler, Sampler, WindowSampler, relevance_of
from rails_ray.data.dataset import DataSet, ItemLists
from rails_ray.data.in_batch import InBatchSampler
from rails_ray.encoders.components import ItemComponents, QueryComponents
from rails_ray.encoders.model import AnyModel, Model
from rails_ray.encoders.sasrec import Sasrec, SasrecConfig
from rails_ray.encoders.solar import SolarConfig
from rails_ray.encoders.text import TextTransformer, TransformerConfig
from rails_ray.encoders.two_tower import TwoTower, TwoTowerConfig
from rails_ray.errors import UnsupportedError
from rails_ray.losses import ScoreLogit
from rails_ray.losses.beta_nce import beta_logit
from rails_ray.losses.exp_nce import exp_logit
from rails_ray.losses.glas import CoOccurrence
from rails_ray.losses.sampled_softmax import scaled_logit
from rails_ray.similarities.dot_product import DotProduct, DotProductConfig
from rails_ray.similarities.look_up import LookUp, LookUpConfig
from rails_ray.similarities.mol import MixtureOfLogits, MixtureOfLogitsConfig
from rails_ray.storage.calibrations import StoredCalibration
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.manifest import CONFIG, Encoded, read_file
from rails_ray.storage.runs import chunk_of
from rails_ray.training import state
from rails_ray.training.contrast import Contrast, Gathered, Streamed, WithinBatch
from rails_ray.training.objectives import Contrastive, MaximumLikelihood, Pointwise
from rails_ray.training.step import TrainingStep

BACKGROUNDS = ("uniform", "sphere", "fitted")
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def model(config: RunConfig) -> Model:
    """An untrained model on the CPU; its initial weights depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        compared_by = similarity(config)
        num_components = compared_by.num_components
        encoded_by = encoder(config, num_components)
        built = Model(
            encoded_by,
            QueryComponents(encoded_by.query_width, num_components, config.components, config.temperature),
            ItemComponents(encoded_by.item_width, num_components, config.components),
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


def learn_tokens(
    built: Model,
    read: DataSet,
    *,
    is_first: bool = True,
    from_first: Callable[[Tensor], Tensor] = lambda tokens: tokens,
) -> None:
    """Let a model whose encoder has tokens learn them from all texts that training sees, before it trains.

    Args:
        is_first: of the workers of a run; the others take its tokens.
        from_first: the first worker's tensor, on every worker.
    """
    if not isinstance(built.encoder, TextTransformer):
        return
    if is_first:
        queries = read.queries["train"].inputs
        assert isinstance(read.item_inputs, list)
        assert isinstance(queries, list)
        built.encoder.learn([*read.item_inputs, *queries])
    built.encoder.set_extra_state(from_first(built.encoder.get_extra_state()))


def trained_model(config: RunConfig, weights: Iterable[tuple[str, bytes]]) -> AnyModel:
    """A stored model, in evaluation mode.

    Args:
        weights: each file with its path, those of one chunk a file where the model is in chunks.

    Raises:
        ValueError: if the weights are not those of such a model.
    """
    if isinstance(config.encoder, SolarConfig):
        chunks = {}
        for path, data in weights:
            number = chunk_of(path)
            chunks[number] = build_chunks.chunk(config, number)
            state.load(chunks[number], data)
        return build_chunks.solar(config, chunks)
    [(_, data)] = weights
    stored = model(config).eval()
    state.load(stored, data)
    return stored


def version_config(storage: Storage, described: Encoded) -> RunConfig:
    """The config of the run that a version comes from."""
    return from_json(read_file(storage, described.version, described.file(CONFIG)))


def version_model(storage: Storage, described: Encoded) -> AnyModel:
    """The model of a version.

    Raises:
        DamagedError: if config or weights are not those of the manifest.
    """
    weights = ((entry.path, read_file(storage, described.version, entry)) for entry in described.weights)
    return trained_model(version_config(storage, described), weights)


def version_similarity(storage: Storage, described: Encoded) -> Any:
    """What scores the items of a version, without what encodes queries if it can be had so."""
    config = version_config(storage, described)
    if isinstance(config.encoder, SolarConfig):
        return LookUp(config.encoder.num_buckets)
    scored_by: Any = version_model(storage, described).similarity
    return scored_by


def encoder(config: RunConfig, num_components: tuple[int, int]) -> TwoTower | TextTransformer | Sasrec:
    """
    Args:
        num_components: (P_Q, P_X) of the similarity.
    """
    match config.encoder:
        case TransformerConfig():
            return TextTransformer(config.encoder, num_components)
        case TwoTowerConfig():
            return TwoTower(config.encoder)
        case SasrecConfig():
            return Sasrec(config.encoder)
        case SolarConfig():
            raise AssertionError("SOLAR is built chunk by chunk")
        case _:
            assert_never(config.encoder)


def similarity(config: RunConfig) -> MixtureOfLogits | DotProduct:
    match config.similarity:
        case MixtureOfLogitsConfig():
            return MixtureOfLogits(config.similarity)
        case DotProductConfig():
            return DotProduct(config.similarity)
        case LookUpConfig():
            raise AssertionError("SOLAR is built chunk by chunk")
        case _:
            assert_never(config.similarity)


def training_step(trained: Model, config: RunConfig, mean_over_workers: Callable[[Tensor], Tensor]) -> TrainingStep:
    """What trains `trained` by the losses of a run."""
    return TrainingStep(
        trained,
        objective(config),
        contrast(config),
        mutual_information_weight=config.loss.mutual_information_weight,
        glas_weight=config.loss.glas_weight,
        mean_over_workers=mean_over_workers,
        encode_size=config.training.encode_size,
        precision=PRECISIONS[config.training.precision],
    )


def contrast(config: RunConfig) -> Contrast:
    """Which items a query is compared with."""
    match config.training.negatives:
        case "uniform" | "in_batch":
            return WithinBatch()
        case "cross_device":
            return Streamed(config.training.block_size) if config.training.block_size else Gathered()
        case _:
            assert_never(config.training.negatives)


def objective(config: RunConfig) -> Contrastive | Pointwise | MaximumLikelihood:
    """What the scores of a batch are trained by; its own initial weights depend on the seed alone."""
    match config.loss.kind:
        case "beta_nce" | "exp_nce" | "sampled_softmax":
            return Contrastive(logit(config), config.loss.pointwise_weight)
        case "pointwise":
            return Pointwise(logit(config))
        case "maximum_likelihood":
            num_query_components, _ = similarity(config).num_components
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(config.seed)
                return MaximumLikelihood(num_query_components * config.components.width)
        case "bucket_cross_entropy":
            raise AssertionError("SOLAR's chunks are trained by BucketStep")
        case _:
            assert_never(config.loss.kind)


def has_trained_temperature(config: RunConfig) -> bool:
    """Whether tau_q means something, so that a cut-off by mass can be offered."""
    return config.loss.kind in ("beta_nce", "exp_nce")


def logit(config: RunConfig) -> ScoreLogit:
    """The logit of a score that the run's loss compares; score / tau where the loss has none of its own."""
    match config.loss.kind:
        case "beta_nce":
            return beta_logit
        case "exp_nce":
            return exp_logit
        case "sampled_softmax" | "pointwise" | "maximum_likelihood":
            assert not isinstance(config.similarity, LookUpConfig)
            return partial(scaled_logit, tau=config.similarity.temperature)
        case "bucket_cross_entropy":
            raise UnsupportedError(
                "cut-offs nucleus and probability need a model that was trained by a softmax over items, got SOLAR: "
                "take coverage, score or top_k"
            )
        case _:
            assert_never(config.loss.kind)


def score_distribution(config: RunConfig, background: Background = UNIFORM) -> BetaDistribution | ExpDistribution:
    """The score of a relevant item that the run's loss believes in; of a loss without tau_q, one that orders alike."""
    return ExpDistribution(background) if config.loss.kind == "exp_nce" else BetaDistribution(background)


def has_bounded_scores(config: RunConfig) -> bool:
    """Whether scores are in [-1, 1], where distributions of them are."""
    return not isinstance(config.similarity, LookUpConfig) or config.similarity.values == "probability"


def background(config: RunConfig, name: str, fitted: Background | None) -> Background:
    """The scores of any item, by name.

    Args:
        fitted: the one of the version's own scores, where that is asked for.

    Raises:
        ValueError: if there is no such background.
    """
    match name:
        case "uniform":
            return UNIFORM
        case "sphere":
            return sphere(config.components.width)
        case "fitted":
            assert fitted is not None
            return fitted
        case _:
            raise ValueError(f"background must be one of {', '.join(BACKGROUNDS)}, got {name!r}")


def calibration(config: RunConfig, stored: StoredCalibration) -> Calibration:
    """Of a version, ready to cut."""
    return Calibration(stored.positives, score_distribution(config, stored.background), stored.num_segments)


def sampler(config: RunConfig, trained: Model, read: DataSet, rank: int = 0, num_workers: int = 1) -> Sampler:
    """The training batches of a worker."""
    queries = read.queries["train"]
    sizes = config.training
    match config.encoder:
        case TwoTowerConfig() | TransformerConfig():
            features = trained.query_features(queries.inputs), trained.item_features(read.item_inputs)
            if sizes.negatives == "uniform":
                co_occurrence = None
                if config.loss.glas_weight:
                    co_occurrence = CoOccurrence(relevance_of(queries.relevant), len(read.item_ids))
                return PairSampler(
                    queries,
                    *features,
                    batch_size=sizes.batch_size,
                    num_items=sizes.num_items,
                    seed=config.seed,
                    rank=rank,
                    num_workers=num_workers,
                    co_occurrence=co_occurrence,
                )
            return InBatchSampler(
                queries,
                *features,
                batch_size=sizes.batch_size,
                seed=config.seed,
                rank=rank,
                num_workers=num_workers,
            )
        case SasrecConfig():
            assert isinstance(queries.inputs, ItemLists)
            return WindowSampler(
                queries.inputs,
                queries.relevant.rows,
                num_corpus_items=len(read.item_ids),
                max_length=config.encoder.max_length,
                batch_size=sizes.batch_size,
                num_items=sizes.num_items,
                seed=config.seed,
                rank=rank,
                num_workers=num_workers,
            )
        case SolarConfig():
            raise AssertionError("SOLAR's batches are those of a chunk")
        case _:
            assert_never(config.encoder)
