"""The dual encoder: a query and an item each become components, which a similarity compares."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

import tyro
from pydantic import Field

from rails_ray.families.dual_encoder.negatives import DrawnNegatives, Negatives, UniformNegatives
from rails_ray.families.vector_items.storing import FullItems, IndexOf, Items, PqItems, TrainedConfig
from rails_ray.modules.encoders.components import ComponentsConfig
from rails_ray.modules.encoders.frozen import FunctionConfig, SentenceTransformerConfig
from rails_ray.modules.encoders.histories import HistoryConfig
from rails_ray.modules.encoders.hstu import HstuConfig
from rails_ray.modules.encoders.named_vectors import NamedVectorsConfig
from rails_ray.modules.encoders.sasrec import SasrecConfig
from rails_ray.modules.encoders.temperature import TemperatureConfig
from rails_ray.modules.encoders.text import TransformerConfig
from rails_ray.modules.encoders.two_tower import TwoTowerConfig
from rails_ray.modules.encoders.vectors import VectorsConfig
from rails_ray.modules.losses.config import (
    ContrastiveConfig,
    MaximumLikelihoodConfig,
    NoneConfig,
    PointwiseConfig,
    TermsConfig,
)
from rails_ray.modules.similarities.dot_product import DotProductConfig
from rails_ray.modules.similarities.mol import MixtureOfLogitsConfig
from rails_ray.reranking.surrogate import SurrogateConfig
from rails_ray.search.indexes.faiss_index import IndexConfig
from rails_ray.search.indexes.flat import FlatConfig

Encoder = (
    TwoTowerConfig
    | TransformerConfig
    | SasrecConfig
    | HstuConfig
    | VectorsConfig
    | NamedVectorsConfig
    | SentenceTransformerConfig
    | FunctionConfig
)
Similarity = MixtureOfLogitsConfig | DotProductConfig
Loss = ContrastiveConfig | PointwiseConfig | MaximumLikelihoodConfig | NoneConfig


@dataclass(frozen=True, kw_only=True)
class DualEncoderConfig:
    """Config of a dual encoder.

    A field with a `kind` is a union; these are its kinds:

        encoder      two_tower, transformer, sentence_transformer, function (texts); sasrec, hstu (histories);
                     vectors, named_vectors
        similarity   mixture_of_logits, dot_product
        loss         beta_nce, exp_nce, sampled_softmax, pointwise, maximum_likelihood; none trains nothing
        negatives    uniform, popularity, mixed, hard, in_batch, cross_device
        items        full, pq
        index        flat, ivf, hnsw

    Args:
        items: how an index stores its items.
        index: what finds candidates.
        index_of: which vectors of an item it holds: its mean component, or each of its components.
        surrogate: vectors that find candidates for the mixture, stored beside the components.
        negatives: the items that a query is trained against.
        encode_size: queries or items that a worker encodes at once in training (gradient caching); 0 for all.
        compile_blocks: whether training compiles the blocks of a transformer, sasrec or hstu (`torch.compile`), which
            needs a C++ compiler and, before the first steps, minutes. Dropout is drawn otherwise.
        has_texts: whether an index keeps its items' texts, for heavy rankers.
    """

    kind: Annotated[Literal["dual_encoder"], tyro.conf.Suppress] = "dual_encoder"
    encoder: Annotated[Encoder, Field(discriminator="kind")] = field(default_factory=TwoTowerConfig)
    components: ComponentsConfig = field(default_factory=ComponentsConfig)
    temperature: TemperatureConfig = field(default_factory=TemperatureConfig)
    similarity: Annotated[Similarity, Field(discriminator="kind")] = field(default_factory=MixtureOfLogitsConfig)
    items: Annotated[Items, Field(discriminator="kind")] = field(default_factory=FullItems)
    index: Annotated[IndexConfig, Field(discriminator="kind")] = field(default_factory=FlatConfig)
    index_of: IndexOf = "average"
    surrogate: SurrogateConfig = field(default_factory=SurrogateConfig)
    loss: Annotated[Loss, Field(discriminator="kind")] = field(default_factory=ContrastiveConfig)
    terms: TermsConfig = field(default_factory=TermsConfig)
    negatives: Annotated[Negatives, Field(discriminator="kind")] = field(default_factory=UniformNegatives)
    encode_size: int = 0
    compile_blocks: bool = False
    has_texts: bool = False

    @property
    def trained_quantizer(self) -> TrainedConfig | None:
        """How codebooks are trained; None if none are."""
        if isinstance(self.items, PqItems) and isinstance(self.items.quantizer, TrainedConfig):
            return self.items.quantizer
        return None

    @property
    def numbers_of_item(self) -> int:
        """Numbers that an index holds of an item: its vector; of a mixture its components, the mean of several, and its
        part of the gate."""
        if self.similarity.kind == "dot_product":
            return self.component_width
        num_query, num_item = self.num_components
        has_mean = num_item > 1
        return (num_item + has_mean) * self.component_width + num_query * num_item

    @property
    def component_width(self) -> int:
        """d; of a component that is a history's representation itself, the encoder's width."""
        if isinstance(self.encoder, HistoryConfig) and self.components.items == "given":
            return self.encoder.width
        return self.components.width

    def __post_init__(self) -> None:
        if self.encode_size < 0:
            raise ValueError(f"encode_size must be at least 0, got {self.encode_size}")
        if self.compile_blocks and self.encoder.kind not in OF_BLOCKS:
            raise ValueError(
                f"encoder.kind must be one of {', '.join(OF_BLOCKS)} for compile_blocks, got {self.encoder.kind!r}"
            )
        if isinstance(self.encoder, HistoryConfig):
            self._check_histories(self.encoder)
        elif isinstance(self.negatives, DrawnNegatives) and self.negatives.shared_by != "batch":
            raise ValueError(
                f"negatives.shared_by must be batch without histories, got {self.negatives.shared_by}: a step would "
                "encode other items for each query"
            )
        self._check_pairs()
        self._check_given()
        self._check_quantized()
        if self.surrogate.kind != "none":
            self._check_surrogate()
        if self.terms.glas_weight:
            self._check_glas()
        if self.negatives.kind == "cross_device" and self.negatives.block_size and self.loss.kind in WHOLE_LOSSES:
            raise ValueError(
                f"negatives.block_size must be 0 for loss.kind {self.loss.kind}, got {self.negatives.block_size}: "
                "only beta_nce, exp_nce and sampled_softmax can be computed block by block"
            )

    def _check_pairs(self) -> None:
        """A gate weighs two pairs of components at least. Named vectors say how many components there are, and are
        weighed as they are."""
        similarity, encoder, components = self.similarity, self.encoder, self.components
        if isinstance(encoder, NamedVectorsConfig) and (
            similarity.kind != "mixture_of_logits" or {components.queries, components.items} != {"given"}
        ):
            raise ValueError(
                "encoder.kind named_vectors must have components.queries and components.items given under "
                f"similarity.kind mixture_of_logits, got {components.queries} and {components.items} under "
                f"{similarity.kind}"
            )
        if similarity.kind != "mixture_of_logits":
            return
        sides = {"num_query_components": "query_columns", "num_item_components": "item_columns"}
        for name, columns in sides.items():
            number = getattr(similarity, name)
            if not isinstance(encoder, NamedVectorsConfig):
                if number < 1:
                    raise ValueError(
                        f"similarity.{name} must be at least 1 for encoder.kind {encoder.kind}, got {number}"
                    )
            elif number not in (0, num_columns := len(getattr(encoder, columns))):
                raise ValueError(
                    f"similarity.{name} must be the {num_columns} of encoder.{columns}, or 0 for as many, got {number}"
                )
        num_query, num_item = self.num_components
        if num_query * num_item == 1:
            raise ValueError(
                "similarity.kind mixture_of_logits must have at least 2 pairs of components to weigh, got 1 x 1: take "
                "dot_product" + (", with encoder.kind vectors" if isinstance(encoder, NamedVectorsConfig) else "")
            )

    @property
    def num_components(self) -> tuple[int, int]:
        """(P_Q, P_X)."""
        similarity, encoder = self.similarity, self.encoder
        if similarity.kind == "dot_product":
            return 1, 1
        if isinstance(encoder, NamedVectorsConfig):
            return len(encoder.query_columns), len(encoder.item_columns)
        return similarity.num_query_components, similarity.num_item_components

    def _check_given(self) -> None:
        """Frozen vectors are components as they are, and can do without training. Embeddings of the items of histories
        are too, but are trained."""
        components, is_history = self.components, isinstance(self.encoder, HistoryConfig)
        if components.items == "given" and components.lengths != "one" and not is_history:
            raise ValueError(
                f"components.lengths must be one for vectors as they are, got {components.lengths}: they are compared "
                "by cosines"
            )
        if isinstance(self.encoder, NamedVectorsConfig):
            if self.loss.kind == "none":
                raise ValueError(
                    "loss.kind must not be none for encoder.kind named_vectors, whose gate is trained, got none"
                )
            return
        if self.components.items == "given" and not self.encoder.is_frozen and not is_history:
            raise ValueError(
                f"components.items must be projected for encoder.kind {self.encoder.kind}, got given: only frozen "
                "vectors and histories are components as they are"
            )
        if self.components.queries == "given" and self.similarity.kind != "dot_product":
            with_items = " and components.items" * (is_history and self.similarity.num_item_components != 1)
            raise ValueError(
                f"components.queries{with_items} must be projected for similarity.kind {self.similarity.kind}, got "
                "given"
            )
        if isinstance(self.encoder, HistoryConfig):
            self._check_given_histories(self.encoder)
            return
        if (self.loss.kind == "none") != (self.components.queries == "given"):
            raise ValueError(
                "loss.kind must be none if components.queries is given, as nothing is then trained, and another loss "
                f"if it is projected, got loss.kind {self.loss.kind} and components.queries {self.components.queries}"
            )

    def _check_given_histories(self, encoder: HistoryConfig) -> None:
        """Where an item's component is its embedding, a dot product takes a history's representation as it is, and a
        mixture projects it."""
        components, similarity = self.components, self.similarity
        if self.loss.kind == "none":
            raise ValueError("loss.kind must not be none for a model of histories, which is trained, got none")
        if components.items == "projected":
            return
        if similarity.kind == "mixture_of_logits" and similarity.num_item_components != 1:
            raise ValueError(
                "similarity.num_item_components must be 1 where components.items are given for a model of histories, "
                f"got {similarity.num_item_components}: an item has one embedding; or set components.items to projected"
            )
        if similarity.kind == "dot_product" and components.queries == "projected":
            raise ValueError(
                "components.queries must be given where components.items are given for a dot product of histories, "
                "got projected"
            )
        if components.queries == "given" and self.loss.kind in WITH_TEMPERATURE:
            raise ValueError(
                f"components.queries and components.items must be projected for loss.kind {self.loss.kind}, got given: "
                "each query has a tau_q of its own"
            )
        if components.width not in (ComponentsConfig().width, encoder.width):
            raise ValueError(
                f"components.width must be left out, or the {encoder.width} of encoder.width, where components are "
                f"given for a model of histories, got {components.width}: set encoder.width"
            )

    def _check_quantized(self) -> None:
        """Codes are an index of their own, and cut components into equal parts."""
        if self.items.kind != "pq":
            return
        if self._knows_width and self.component_width % self.items.num_subspaces:
            raise ValueError(
                f"items.num_subspaces must divide the {self.component_width} numbers of a component, got "
                f"{self.items.num_subspaces}"
            )
        if self.trained_quantizer is not None:
            self._check_trained(self.trained_quantizer)
        if self.index != FlatConfig() and not self.items.has_vectors:
            raise ValueError(
                f"index.kind must be flat in fp32 for items.kind pq, got {self.index.kind} in {self.index.storage}: "
                "codes are searched as they are, or in lists (items.nlist); for an index of vectors set "
                "items.has_vectors"
            )

    def _check_surrogate(self) -> None:
        """A surrogate stands for scores that no inner product of stored vectors gives."""
        if self.similarity.kind == "dot_product":
            raise ValueError(
                "surrogate must stand for a mixture of several components, got dot_product, whose score is an "
                "inner product of the vectors as they are"
            )
        if self.items.kind == "pq":
            raise ValueError(
                "surrogate.kind must be none for codes, got items.kind pq: leave out the codes or the surrogate"
            )

    @property
    def _knows_width(self) -> bool:
        """Return whether the config knows a component's width before any vectors are read."""
        if self.components.items == "projected" or isinstance(self.encoder, HistoryConfig):
            return True
        return self.encoder.shapes is not None

    def _check_trained(self, quantizer: TrainedConfig) -> None:
        """Codebooks are trained by pairs of a query and an item, and an encoder only where it has a loss."""
        if isinstance(self.encoder, HistoryConfig):
            raise ValueError("items.quantizer.kind must be pq or opq for a model of histories, got trained")
        if self.loss.kind == "none" and quantizer.when == "jointly":
            raise ValueError(
                "items.quantizer.when must be after for loss.kind none, got jointly: nothing of the encoder is trained"
            )
        if self.terms.glas_weight and quantizer.when == "jointly":
            raise ValueError(
                f"items.quantizer.when must be after for terms.glas_weight {self.terms.glas_weight}, got jointly: "
                "pairs that train codebooks have no co-occurrence"
            )

    def _check_histories(self, encoder: HistoryConfig) -> None:
        """Every position of a history is a query: a batch cannot be split into parts or give in-batch negatives."""
        if encoder.num_users and (
            self.similarity.kind == "dot_product" or self.similarity.num_query_components < LEAST_WITH_USERS
        ):
            raise ValueError(
                f"encoder.num_users must be 0 without a mixture of at least {LEAST_WITH_USERS} query components, got "
                f"{encoder.num_users}: the user is one of them"
            )
        if self.negatives.kind not in OF_HISTORIES:
            raise ValueError(
                f"negatives.kind must be one of {', '.join(OF_HISTORIES)} for a model of histories, got "
                f"{self.negatives.kind!r}"
            )
        if self.encode_size:
            raise ValueError(f"encode_size must be 0 for a model of histories, got {self.encode_size}")
        if self.terms.glas_weight:
            raise ValueError(f"terms.glas_weight must be 0 for a model of histories, got {self.terms.glas_weight}")

    def _check_glas(self) -> None:
        if self.similarity.kind != "dot_product" or self.components.lengths != "one":
            raise ValueError(
                "terms.glas_weight must be 0 without a dot product of vectors of length 1, got "
                f"{self.terms.glas_weight}"
            )
        if self.negatives.kind != "uniform":
            raise ValueError(
                f"negatives.kind must be uniform for terms.glas_weight {self.terms.glas_weight}, "
                f"got {self.negatives.kind!r}: all workers must have the same items"
            )


OF_HISTORIES = ("uniform", "popularity", "mixed")  # a search for the hard negatives of each position takes too long
OF_BLOCKS = ("transformer", "sasrec", "hstu")
LEAST_WITH_USERS = 2  # query components: the user's, and one of the history
WHOLE_LOSSES = ("pointwise", "maximum_likelihood")  # they need the scores of all items at once
WITH_TEMPERATURE = ("beta_nce", "exp_nce")  # losses that train tau_q
