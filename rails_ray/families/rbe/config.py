"""RBE: embeddings that are made of a heavy ranker's own scores of a few supports."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

import tyro
from pydantic import Field

from rails_ray.families.vector_items.storing import FullItems, IndexOf, Items, PqItems, TrainedConfig
from rails_ray.modules.encoders.frozen import FunctionConfig, SentenceTransformerConfig
from rails_ray.reranking.embedding import RelevanceEmbeddingConfig
from rails_ray.reranking.supports import L2GreedySupports, SupportsConfig
from rails_ray.schema.ranker import RankerConfig
from rails_ray.search.indexes.faiss_index import IndexConfig
from rails_ray.search.indexes.flat import FlatConfig


@dataclass(frozen=True, kw_only=True)
class NoFeatures:
    """A query is its support scores alone."""

    kind: Literal["none"] = "none"


@dataclass(frozen=True, kw_only=True)
class DistilledConfig:
    """The estimates' softmax is compared with the ranker's own.

    Args:
        temperature: T, above 0, in units of the matrix's standard deviation; the lower, the more the best count.
    """

    kind: Literal["distilled"] = "distilled"
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.temperature < float("inf"):
            raise ValueError(f"temperature must be a finite number above 0, got {self.temperature}")


@dataclass(frozen=True, kw_only=True)
class TopShareConfig:
    """The share of the estimates' softmax that falls on the num_best best items, the source's loss."""

    kind: Literal["top_share"] = "top_share"


RbeLoss = DistilledConfig | TopShareConfig
QueryFeatures = NoFeatures | SentenceTransformerConfig | FunctionConfig


@dataclass(frozen=True, kw_only=True)
class RbeConfig:
    """Config of RBE.

    A field with a `kind` is a union; these are its kinds:

        supports     l2_greedy, random, first, popular, clusters, most_diverse
        features     none; sentence_transformer, function (of a query's text)
        loss         distilled, top_share
        items        full, pq
        index        flat, ivf, hnsw

    Args:
        ranker: the heavy ranker that the training matrix comes from. Queries and new items call it.
        num_supports: |S_I|, calls that every query spends on its embedding.
        supports: how supports are chosen.
        num_candidates: items drawn at random that supports are chosen from; 0 for all.
        num_support_queries: |S_Q|, training queries that every new item is scored against; 0 for all,
            without those whose holes leave too few items that can be supports.
        ridge: lambda of AnnCUR as a share of the mean square of the supports' scores; 0 for the pseudo-inverse. On
            molecules and MovieLens .001 found more than none and than ten times as much.
        embedding: the trained part.
        features: what is joined to the support scores of a query.
        loss: what training lowers.
        num_best: K, items of a query that validation looks for among K found, and that `top_share` wants on top.
        num_items: training items; 0 for the data's.
        is_on_sphere: whether items get one number more, so that all vectors are of one length (Corollary A.1), for
            indexes of cosines. Scores stay as they are.
        items: how an index stores its items.
        index: what finds candidates.
        index_of: as in `DualEncoderConfig`; there is one vector.
        has_texts: whether an index keeps its items' texts, for the ranker.
    """

    kind: Annotated[Literal["rbe"], tyro.conf.Suppress] = "rbe"
    ranker: RankerConfig = field(default_factory=RankerConfig)
    num_supports: int = 100
    supports: Annotated[SupportsConfig, Field(discriminator="kind")] = field(default_factory=L2GreedySupports)
    num_candidates: int = 0
    num_support_queries: int = 0
    ridge: float = 0.001
    embedding: RelevanceEmbeddingConfig = field(default_factory=RelevanceEmbeddingConfig)
    features: Annotated[QueryFeatures, Field(discriminator="kind")] = field(default_factory=NoFeatures)
    loss: Annotated[RbeLoss, Field(discriminator="kind")] = field(default_factory=DistilledConfig)
    num_best: int = 100
    num_items: int = 0
    is_on_sphere: bool = False
    items: Annotated[Items, Field(discriminator="kind")] = field(default_factory=FullItems)
    index: Annotated[IndexConfig, Field(discriminator="kind")] = field(default_factory=FlatConfig)
    index_of: IndexOf = "average"
    has_texts: bool = True

    trained_quantizer = None
    """No codebooks are trained."""

    def __post_init__(self) -> None:
        for name, least in LEAST.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if not 0 <= self.ridge < float("inf"):
            raise ValueError(f"ridge must be a finite number of at least 0, got {self.ridge}")
        if isinstance(self.items, PqItems):
            self._check_quantized(self.items)

    @property
    def width(self) -> int:
        """Numbers of a vector."""
        return self.num_supports + self.embedding.width + 1 + self.is_on_sphere

    def _check_quantized(self, items: PqItems) -> None:
        if isinstance(items.quantizer, TrainedConfig):
            raise ValueError("items.quantizer.kind must be pq or opq for RBE, got trained")
        if self.width % items.num_subspaces:
            raise ValueError(
                f"items.num_subspaces must divide the {self.width} numbers of a vector (num_supports + embedding.width "
                f"+ 1{' + 1 on a sphere' * self.is_on_sphere}), got {items.num_subspaces}"
            )
        if self.index != FlatConfig() and not items.has_vectors:
            raise ValueError(
                f"index.kind must be flat in fp32 for items.kind pq, got {self.index.kind} in {self.index.storage}: "
                "for an index of vectors set items.has_vectors"
            )


LEAST = {"num_supports": 1, "num_candidates": 0, "num_support_queries": 0, "num_best": 1, "num_items": 0}
