"""The tree of small configs that describes one run; its JSON lies beside every artefact of the run."""

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any, Literal

from rails_ray.encoders.components import ComponentsConfig
from rails_ray.encoders.sasrec import SasrecConfig
from rails_ray.encoders.solar import SolarConfig
from rails_ray.encoders.temperature import TemperatureConfig
from rails_ray.encoders.text import TransformerConfig
from rails_ray.encoders.two_tower import TwoTowerConfig
from rails_ray.similarities.dot_product import DotProductConfig
from rails_ray.similarities.look_up import LookUpConfig
from rails_ray.similarities.mol import MixtureOfLogitsConfig
from rails_ray.training.loop import TrainingConfig


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where queries and items come from.

    Args:
        folder: a local one or s3://bucket/prefix, with items.parquet, queries.parquet and relevance.parquet, as
            `rails_ray.data.text` says, or `rails_ray.data.features` for queries that are numbers; or for a model of
            histories items.parquet and interactions.parquet, as `rails_ray.data.sequences` says; by default the
            packaged emoji.
        num_valid: held-out queries of the emoji for validation; a folder's tables name their own.
        num_test: held-out queries of the emoji for the last measurement.
        split_seed: of the emoji's split.
    """

    folder: str | None = None
    num_valid: int = 2000
    num_test: int = 2000
    split_seed: int = 0

    def __post_init__(self) -> None:
        for name in ("num_valid", "num_test"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """What training minimises.

    Args:
        kind: `beta_nce` and `exp_nce` train tau_q, which cut-offs by mass need; `sampled_softmax` (pair-wise),
            `pointwise` and `maximum_likelihood` do not; `bucket_cross_entropy` is SOLAR's.
        pointwise_weight: of the point-wise loss beside one of the first three, which teaches tau_q where to cut; at
            least 0.
        mutual_information_weight: of L_MI; at least 0; of no effect with a dot product.
        glas_weight: of the GLaS regulariser of item embeddings, a baseline for dot products of texts; at least 0.
        num_sampled_buckets: that stand for all negative buckets in a step of SOLAR; 0 for all of them.
    """

    kind: Literal[
        "beta_nce", "exp_nce", "sampled_softmax", "pointwise", "maximum_likelihood", "bucket_cross_entropy"
    ] = "beta_nce"
    pointwise_weight: float = 0.3
    mutual_information_weight: float = 0.001
    glas_weight: float = 0.0
    num_sampled_buckets: int = 0

    def __post_init__(self) -> None:
        if self.num_sampled_buckets < 0:
            raise ValueError(f"num_sampled_buckets must be at least 0, got {self.num_sampled_buckets}")
        for name in ("pointwise_weight", "mutual_information_weight", "glas_weight"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """All that decides what a run computes. Of SOLAR, which has no components, their sizes and tau_q decide nothing.

    Args:
        name: of the recipe; runs are called by it and the time.
        seed: of initial weights, batches and dropout.
    """

    name: str
    seed: int = 0
    data: DataConfig = field(default_factory=DataConfig)
    encoder: TwoTowerConfig | TransformerConfig | SasrecConfig | SolarConfig = field(default_factory=TwoTowerConfig)
    components: ComponentsConfig = field(default_factory=ComponentsConfig)
    temperature: TemperatureConfig = field(default_factory=TemperatureConfig)
    similarity: MixtureOfLogitsConfig | DotProductConfig | LookUpConfig = field(default_factory=MixtureOfLogitsConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)

    def __post_init__(self) -> None:
        training = self.training
        _check_solar(self)
        if isinstance(self.encoder, SasrecConfig):
            if training.negatives != "uniform":
                raise ValueError(
                    f"training.negatives must be uniform for a model of histories, got {training.negatives!r}"
                )
            if training.encode_size:
                raise ValueError(f"training.encode_size must be 0 for a model of histories, got {training.encode_size}")
            if self.loss.glas_weight:
                raise ValueError(f"loss.glas_weight must be 0 for a model of histories, got {self.loss.glas_weight}")
        if self.loss.glas_weight and not isinstance(self.similarity, DotProductConfig):
            raise ValueError(f"loss.glas_weight must be 0 without a dot product, got {self.loss.glas_weight}")
        if self.loss.glas_weight and training.negatives != "uniform":
            raise ValueError(
                f"training.negatives must be uniform for loss.glas_weight {self.loss.glas_weight}, "
                f"got {training.negatives!r}: all workers must have the same items"
            )
        if training.block_size and self.loss.kind in ("pointwise", "maximum_likelihood"):
            raise ValueError(
                f"training.block_size must be 0 for loss.kind {self.loss.kind}, got {training.block_size}: "
                "beta_nce, exp_nce and sampled_softmax can be had block by block"
            )


def _check_solar(config: RunConfig) -> None:
    """Raises:
    ValueError: if some parts of a config are SOLAR's and others are not, or what has no meaning for it is asked for.
    """
    is_solar = isinstance(config.encoder, SolarConfig)
    others = {
        "similarity": (type(config.similarity).__name__, LookUpConfig.__name__),
        "loss.kind": (config.loss.kind, "bucket_cross_entropy"),
    }
    for name, (came, its) in others.items():
        if (came == its) != is_solar:
            raise ValueError(
                f"{name} must be {its} for SOLAR and for nothing else, got {came} with {type(config.encoder).__name__}"
            )
    if not is_solar and config.training.precision == "auto":
        raise ValueError("training.precision must be float32 or bfloat16 for a model that is not SOLAR, got auto")
    if is_solar and (config.training.negatives != "uniform" or config.training.encode_size):
        raise ValueError(
            "training.negatives must be uniform and training.encode_size 0 for SOLAR, whose negatives are buckets, got "
            f"{config.training.negatives} and {config.training.encode_size}"
        )


def to_json(config: RunConfig) -> bytes:
    return json.dumps(dataclasses.asdict(config), indent=1).encode()


def from_json(data: bytes) -> RunConfig:
    """Raises:
    ValueError: if a field is missing, unknown or out of range.
    """
    try:
        values: dict[str, Any] = json.loads(data)
        similarity = values.pop("similarity")
        encoder = values.pop("encoder")
        return RunConfig(
            data=DataConfig(**values.pop("data")),
            encoder=_encoder(encoder),
            components=ComponentsConfig(**values.pop("components")),
            temperature=TemperatureConfig(**values.pop("temperature")),
            similarity=_similarity(similarity),
            loss=LossConfig(**values.pop("loss")),
            training=TrainingConfig(**values.pop("training")),
            **values,
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"a run's config must have the fields of RunConfig, got: {error}") from None


def _similarity(values: dict[str, Any]) -> MixtureOfLogitsConfig | DotProductConfig | LookUpConfig:
    """Each kind of similarity is known by a field that the others lack."""
    if "num_query_components" in values:
        return MixtureOfLogitsConfig(**values)
    return LookUpConfig(**values) if "values" in values else DotProductConfig(**values)


def _encoder(values: dict[str, Any]) -> TwoTowerConfig | TransformerConfig | SasrecConfig | SolarConfig:
    """Each kind of encoder is known by a field that the others lack."""
    if "num_chunks" in values:
        return SolarConfig(**{**values, "ngram_sizes": tuple(values["ngram_sizes"])})
    if "ngram_sizes" in values:
        return TwoTowerConfig(**{**values, "ngram_sizes": tuple(values["ngram_sizes"])})
    return TransformerConfig(**values) if "vocabulary_size" in values else SasrecConfig(**values)
