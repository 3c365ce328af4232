"""Config -> objects. The only place that chooses an implementation."""

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, assert_never

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from rails_ray import build_chunks
from rails_ray.config import DataConfig, RunConfig, from_json
from rails_ray.cutoffs.calibration import Calibration
from rails_ray.cutoffs.distributions import UNIFORM, Background, BetaDistribution, ExpDistribution, sphere
from rails_ray.data import emoji, features, sequences, text
from rails_ray.data.batch import PairSampler, Sampler, WindowSampler, relevance_of
from rails_ray.data.dataset import SPLITS, DataSet, ItemLists, SparseRows
from rails_ray.data.in_batch import InBatchSampler
from rails_ray.encoders.components import ItemComponents, QueryComponents
from rails_ray.encoders.model import AnyModel, Model
from rails_ray.encoders.sasrec import Sasrec, SasrecConfig
from rails_ray.encoders.solar import USUAL_BUCKETS, SolarConfig
from rails_ray.encoders.text import TextTransformer, TransformerConfig
from rails_ray.encoders.two_tower import TwoTower, TwoTowerConfig
from rails_ray.errors import UnsupportedError
from rails_ray.indexes.inverted import NUM_PROBES, InvertedIndex
from rails_ray.indexes.lookup import LookupIndex
from rails_ray.losses import ScoreLogit
from rails_ray.losses.beta_nce import beta_logit
from rails_ray.losses.exp_nce import exp_logit
from rails_ray.losses.glas import CoOccurrence
from rails_ray.losses.sampled_softmax import scaled_logit
from rails_ray.retrieval import Retriever
from rails_ray.retrieval.approximate import Approximate, Widths
from rails_ray.retrieval.brute_force import BruteForce
from rails_ray.retrieval.look_up import FullLookUp, Inverted
from rails_ray.retrieval.two_pass import TwoPass
from rails_ray.similarities import Similarity
from rails_ray.similarities.dot_product import DotProduct, DotProductConfig
from rails_ray.similarities.look_up import LookUp, LookUpConfig
from rails_ray.similarities.mol import MixtureOfLogits, MixtureOfLogitsConfig
from rails_ray.similarities.states import AnyItems, Codes, Tables
from rails_ray.storage import parquet
from rails_ray.storage.calibrations import StoredCalibration
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.manifest import CONFIG, HISTORIES, ITEMS, Encoded, read_file
from rails_ray.storage.runs import chunk_of
from rails_ray.training import state
from rails_ray.training.contrast import Contrast, Gathered, Streamed, WithinBatch
from rails_ray.training.objectives import Contrastive, MaximumLikelihood, Pointwise
from rails_ray.training.step import TrainingStep

AnySimilarity = Similarity | LookUp
BACKGROUNDS = ("uniform", "sphere", "fitted")
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
METHODS = ("brute_force", "two_pass", "per_embedding", "average", "combined")
METHODS_OF_CODES = ("brute_force", "inverted")
QUERY_FIELD = {"text": "text", "features": "features", "vector": "embedding"}  # what a request calls SOLAR's inputs
QUERY_TYPE = {"text": "string", "features": "map<int64, float>", "vector": "list<float>"}


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
    scored_by: AnySimilarity = version_model(storage, described).similarity
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
    return Calibration(stored.positives, score_distribution(config, stored.background), stored.edges)


@dataclass(frozen=True)
class CodeIndexes:
    """What searches of codes read."""

    full: LookupIndex
    inverted: InvertedIndex


def code_indexes(compared_by: AnySimilarity, items: AnyItems) -> CodeIndexes | None:
    """The indexes of items, made once and ready; None for items that have no codes.

    Raises:
        ValueError: if a code is no bucket.
    """
    if not isinstance(items, Codes):
        return None
    assert isinstance(compared_by, LookUp)
    made = CodeIndexes(LookupIndex(items.codes), InvertedIndex(items.codes, compared_by.num_buckets))
    nothing = torch.zeros(1, items.codes.shape[1], compared_by.num_buckets, device=items.codes.device)
    query = Tables(nothing, torch.ones(1, device=nothing.device))
    for search in (FullLookUp(items, made.full), Inverted(items, made.inverted, 1, 1)):
        search.search(query, 1)  # or the first query would wait for loops to be compiled
    return made


def retriever(
    method: str,
    compared_by: AnySimilarity,
    items: AnyItems,
    num_candidates: int,
    num_per_embedding: int,
    num_probes: int | None = None,
    indexes: CodeIndexes | None = None,
) -> Retriever[Any]:
    """
    Args:
        num_candidates: items by the average component, of `average` and `combined`; by posted buckets, of `inverted`.
        num_per_embedding: items by each pair of components, of `per_embedding`, `combined` and `two_pass`.
        num_probes: buckets of each chunk, of `inverted`; by default NUM_PROBES, or all if that is fewer.
        indexes: of the items' codes; else they are made anew.

    Raises:
        ValueError: if the method is not one of `METHODS`, or of `METHODS_OF_CODES` for items that are found by codes,
            a width is below 1 or above what there is, or the items lack what it needs.
    """
    if isinstance(items, Codes):
        assert isinstance(compared_by, LookUp)
        match method:
            case "brute_force":
                return FullLookUp(items, indexes.full if indexes else LookupIndex(items.codes))
            case "inverted":
                index = indexes.inverted if indexes else InvertedIndex(items.codes, compared_by.num_buckets)
                probes = min(NUM_PROBES, compared_by.num_buckets) if num_probes is None else num_probes
                return Inverted(items, index, probes, num_candidates)
            case _:
                known = ", ".join(METHODS_OF_CODES)
                raise ValueError(
                    f"method must be one of {known} for items that are found by their codes, got {method!r}"
                )
    assert not isinstance(compared_by, LookUp)
    match method:
        case "brute_force":
            return BruteForce(compared_by, items)
        case "two_pass":
            return TwoPass(compared_by, items, num_per_embedding)
        case "per_embedding":
            return Approximate(compared_by, items, Widths(num_per_embedding=num_per_embedding))
        case "average":
            return Approximate(compared_by, items, Widths(num_by_average=num_candidates))
        case "combined":
            widths = Widths(num_per_embedding=num_per_embedding, num_by_average=num_candidates)
            return Approximate(compared_by, items, widths)
        case _:
            raise ValueError(
                f"method must be one of {', '.join(METHODS)} for items that have components, got {method!r}"
            )


def data(config: RunConfig, storage: Storage) -> DataSet:
    """The data set of a run: a folder's tables, or the emoji, which are written to storage the first time.

    Raises:
        NotFoundError, ValueError: as `text.read`, `sequences.read` and `features.read`.
    """
    match config.encoder:
        case TwoTowerConfig() | TransformerConfig() | SolarConfig(input="text"):
            return text.read(_text_folder(config, storage))
        case SasrecConfig():
            if config.data.folder is None:
                raise ValueError(
                    f"recipe {config.name} needs --data.folder, with items.parquet and interactions.parquet, got none"
                )
            return sequences.read(Storage(config.data.folder))
        case SolarConfig():
            return features.read(_numbers_folder(config))
        case _:
            assert_never(config.encoder)


def _numbers_folder(config: RunConfig) -> Storage:
    if config.data.folder is None:
        raise ValueError(
            f"recipe {config.name} needs --data.folder, with items.parquet, queries.parquet and relevance.parquet, got "
            "none"
        )
    return Storage(config.data.folder)


def _text_folder(config: RunConfig, storage: Storage) -> Storage:
    if config.data.folder is not None:
        return Storage(config.data.folder)
    sizes = (config.data.num_valid, config.data.num_test, config.data.split_seed)
    folder = Storage(f"{storage}/data/emoji-{'-'.join(map(str, sizes))}")
    if not folder.exists("relevance.parquet"):
        made = emoji.tables(*sizes)
        for name in ("items", "queries", "relevance"):  # the last one says that all are there
            folder.write(f"{name}.parquet", parquet.to_bytes(getattr(made, name)))
    return folder


@dataclass(frozen=True)
class Corpus:
    """
    items: item_id, input (what the item encoder reads) and, if the data set has them, title, by item row.
    query: what a query may be, with the type of its ids or its text.
    files: that the query encoder needs beside the model, by name.
    """

    items: pa.Table
    query: dict[str, str]
    files: dict[str, bytes]


def corpus(config: RunConfig, storage: Storage) -> Corpus:
    """What is to be encoded, and what answers need beside it.

    Raises:
        NotFoundError, ValueError: as `data`.
    """
    match config.encoder:
        case TwoTowerConfig() | TransformerConfig() | SolarConfig(input="text"):
            table = text.read_items(_text_folder(config, storage))
            items = pa.table({"item_id": table["item_id"], "input": text.item_texts(table)})
            query, files = {"text": "string"}, {}
            titles = table["title"] if "title" in table.column_names else None
        case SasrecConfig():
            read = data(config, storage)
            assert isinstance(read, sequences.SequenceData)
            for_data(config, read)  # says if a row is another item now
            items = pa.table({"item_id": pa.array(read.item_ids), "input": pa.array(read.item_inputs)})
            histories = sequences.histories_table(read)
            query = {"history": str(items["item_id"].type), "user_id": str(histories["user_id"].type)}
            files = {ITEMS: parquet.to_bytes(items.select(["item_id"])), HISTORIES: parquet.to_bytes(histories)}
            titles = None if read.titles is None else pa.array(read.titles)
        case SolarConfig():
            table = features.read_items(_numbers_folder(config))
            items = pa.table({"item_id": table["item_id"], "input": pa.array(np.arange(table.num_rows))})
            query, files = {QUERY_FIELD[config.encoder.input]: QUERY_TYPE[config.encoder.input]}, {}
            titles = table["title"] if "title" in table.column_names else None
        case _:
            assert_never(config.encoder)
    return Corpus(items if titles is None else items.append_column("title", titles), query, files)


def item_inputs(items: pa.Table) -> list[str] | NDArray[np.int64]:
    """What the item encoder reads, of some items of a `corpus`."""
    is_rows = pa.types.is_integer(items["input"].type)
    inputs: list[str] | NDArray[np.int64] = items["input"].to_numpy() if is_rows else items["input"].to_pylist()
    return inputs


def with_data(config: RunConfig, data: DataConfig) -> RunConfig:
    """The config of a run with these data, wherever it is read: workers run in folders of their own."""
    if data.folder is not None and "://" not in data.folder:
        data = replace(data, folder=str(Path(data.folder).expanduser().resolve()))
    return replace(config, data=data)


def for_data(config: RunConfig, read: DataSet) -> RunConfig:
    """The config of a run with what it leaves to its data set filled in, so that it says all by itself.

    Raises:
        ValueError: if it names another number of items, or was filled in from other items.
    """
    config = with_data(config, config.data)
    if isinstance(config.encoder, SasrecConfig):
        num_items = len(read.item_ids)
        if config.encoder.num_items not in (0, num_items):
            raise ValueError(
                f"encoder.num_items must be the {num_items} items of {config.data.folder}, or 0, "
                f"got {config.encoder.num_items}"
            )
        corpus = hashlib.sha256(json.dumps(read.item_ids).encode()).hexdigest()[:16]
        if config.encoder.corpus not in ("", corpus):
            raise ValueError(
                f"{config.data.folder} must hold the items that the run was trained on, in their order, got others: "
                "train a new run"
            )
        config = replace(config, encoder=replace(config.encoder, num_items=num_items, corpus=corpus))
    if isinstance(config.encoder, SolarConfig):
        num_buckets = config.encoder.num_buckets or min(USUAL_BUCKETS, len(read.item_ids))
        encoder = replace(config.encoder, num_buckets=num_buckets)
        config = replace(config, encoder=_of_width(encoder, read, config.data.folder))
    return config


def _of_width(encoder: SolarConfig, read: DataSet, folder: str | None) -> SolarConfig:
    """The same with the width of the data set's queries.

    Raises:
        ValueError: if the queries are not what the encoder reads, or wider than it says.
    """
    inputs = [read.queries[split].inputs for split in SPLITS]
    if encoder.input == "text":
        return encoder
    if any(isinstance(of_split, SparseRows) != (encoder.input == "features") for of_split in inputs):
        came = "features" if encoder.input == "vector" else "vectors"
        raise ValueError(f"queries of {folder} must be of encoder.input {encoder.input}, got {came}")
    widths = [of_split.width if isinstance(of_split, SparseRows) else len(of_split[0]) for of_split in inputs]
    width = max(widths)
    if encoder.width and (encoder.width < width or (encoder.input == "vector" and encoder.width != width)):
        raise ValueError(f"encoder.width must be the {width} of the queries of {folder}, or 0, got {encoder.width}")
    return replace(encoder, width=encoder.width or width)


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
