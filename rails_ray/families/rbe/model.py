"""RBE as a model: a query becomes what a heavy ranker says of the supports, an item what it says of it to the support
queries, both changed by trained networks. A score estimates the ranker's.

    score(q, x) = sigma <f_Q(q), f_I(x)>

An item that training knew is taken from the training matrix. A new one is scored against all support queries, by the
ranker, which takes |S_Q| calls.

Source: RBE, Section 3.5 and Appendix C.

Axes: B queries, X items, N new items, S supports, Q support queries, F query features, D = S + W + 1, and one more on a
sphere.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from rails_ray.allowed_code import OURS_ALONE, AllowedCode
from rails_ray.errors import UnavailableError
from rails_ray.modules.encoders.frozen import FrozenText
from rails_ray.modules.encoders.words import is_blank
from rails_ray.modules.similarities.dot_product import DotProduct, DotProductConfig
from rails_ray.modules.similarities.states import ItemState, QueryState
from rails_ray.reranking.anncur import AnnCur
from rails_ray.reranking.embedding import RelevanceEmbedding, RelevanceEmbeddingConfig, on_sphere
from rails_ray.reranking.rankers import TEXT, Candidate, HeavyRanker, RankerCandidates
from rails_ray.reranking.rankers.calling import ranker_of, score_all, scores_of
from rails_ray.reranking.scored import ScoredQueries, SupportScores
from rails_ray.schema.ranker import RankerConfig


@dataclass(frozen=True)
class Combinations:
    """The features of items.

    rows: which training item each is; -1 for a new one.
    combinations: t, of the supports.
    """

    rows: Int[Tensor, " X"]
    combinations: Float[Tensor, "X S"]

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, rows: Any) -> "Combinations":
        return Combinations(self.rows[rows], self.combinations[rows])

    def to(self, device: torch.device | str) -> "Combinations":
        return Combinations(self.rows.to(device), self.combinations.to(device))


@dataclass(frozen=True, kw_only=True)
class RbeSizes:
    """Sizes of a model's tensors.

    num_items, num_supports, num_queries: training items, supports and support queries.
    num_features: numbers of query features; 0 for none.
    """

    num_items: int
    num_supports: int
    num_queries: int
    num_features: int = 0


class Rbe(nn.Module):
    """The contract of `Model`, untrained and of any support; `learn` and the stored state fill it.

    Args:
        ranker: what scores supports and new items where nobody else has; made at the first call.
        allowed: what may be imported for it beside our own rankers.
        reads: gives the features of texts; None if the model joins none.
        ridge: lambda of AnnCUR, as a share of the mean square of R(S_I, S_Q).
    """

    form = "scored_text"
    representation_width = None
    finds_zeros_last = False
    vector_width = None
    support_relevance: Tensor
    combinations: Tensor

    def __init__(
        self,
        config: RelevanceEmbeddingConfig,
        sizes: RbeSizes,
        ranker: RankerConfig,
        *,
        reads: FrozenText | None = None,
        ridge: float = 0.0,
        allowed: AllowedCode = OURS_ALONE,
    ) -> None:
        super().__init__()
        self.config, self.ranker, self.reads, self.ridge, self.allowed = config, ranker, reads, ridge, allowed
        self.similarity: Any = DotProduct(DotProductConfig(temperature=1.0), has_bounded_vectors=False)
        features = torch.zeros(1, sizes.num_features) if sizes.num_features else None
        self.register_buffer("support_relevance", torch.zeros(sizes.num_supports, sizes.num_queries))
        self.register_buffer("combinations", torch.zeros(sizes.num_items, sizes.num_supports))
        self.embedding = RelevanceEmbedding(
            config, torch.zeros(1, sizes.num_supports), self.combinations, 1.0, features
        )
        self.supports: list[Candidate] = []
        self.support_queries: list[str] = []
        self.items: dict[Any, tuple[int, str]] = {}  # row and text of each training item
        self.radius: Tensor | None = None  # of the sphere that items lie on, if they do
        self._made: HeavyRanker | None = None

    def learn(
        self,
        items: Sequence[Candidate],
        support_rows: Int[Tensor, " S"],
        support_queries: Sequence[str],
        relevance: Float[Tensor, "X Q"],
        supports_of_queries: Float[Tensor, "B S"],
        sigma: float,
        features: Float[Tensor, "B F"] | None = None,
    ) -> None:
        """Begin as AnnCUR. An item without any score gets the mean combination.

        Args:
            items: the training items.
            relevance: R(I, S_Q), NaN for holes.
            supports_of_queries: R(S_I, q) of the training queries.
            sigma: standard deviation of the training matrix.
            features: of the training queries.
        """
        self.supports = [items[row] for row in support_rows.tolist()]
        self.support_queries = list(support_queries)
        self.items = {item.item_id: (row, str(item.fields[TEXT])) for row, item in enumerate(items)}
        self.support_relevance = relevance[support_rows]
        is_known = ~relevance.isnan().all(dim=1)
        known = self._anncur().combinations(relevance[is_known]).float()
        self.combinations = known.mean(dim=0).repeat(len(relevance), 1)
        self.combinations[is_known] = known
        self.embedding = RelevanceEmbedding(self.config, supports_of_queries, self.combinations, sigma, features)

    @torch.no_grad()
    def lay_on_sphere(self) -> None:
        """Give all training items vectors of one length from now on, with the scores that they have."""
        self.radius = self.embedding.items(self.combinations).norm(dim=1).max()

    def _anncur(self) -> AnnCur:
        supports = self.support_relevance.cpu()  # rankers' scores come as arrays
        return AnnCur(supports, self.ridge * float(supports.double().square().mean()))

    def get_extra_state(self) -> Tensor:
        fields = {
            "supports": [support.item_id for support in self.supports],
            "queries": self.support_queries,
            "items": [[item_id, text] for item_id, (_, text) in self.items.items()],
        }
        return torch.frombuffer(bytearray(json.dumps(fields).encode()), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        fields = json.loads(state.numpy(force=True).tobytes())
        self.items = {item_id: (row, text) for row, (item_id, text) in enumerate(fields["items"])}
        self.supports = [Candidate(item_id, {TEXT: self.items[item_id][1]}) for item_id in fields["supports"]]
        self.support_queries = fields["queries"]

    # Queries

    def query_features(self, inputs: Any) -> SupportScores:
        """From queries that are scored already, or from texts, whose supports the ranker scores here.

        Raises:
            UnavailableError: if the ranker fails.
        """
        scores = self._known(inputs) if isinstance(inputs, ScoredQueries) else self._asked(inputs)
        features = None
        if self.reads is not None:
            texts = [inputs[number] for number in range(len(inputs))]
            features = self.reads.queries(self.reads.query_features(texts))
        return SupportScores(scores, features)

    def _known(self, inputs: ScoredQueries) -> Float[Tensor, "B S"]:
        column_of = {item_id: column for column, item_id in enumerate(inputs.item_ids)}
        columns = [column_of.get(support.item_id, -1) for support in self.supports]
        if -1 in columns:
            return self._asked(inputs)
        return torch.from_numpy(inputs.scores[:, columns]).float()

    def _asked(self, inputs: Any) -> Float[Tensor, "B S"]:
        supports = RankerCandidates.of(self.supports)
        scores = [scores_of(self._ranker(), {TEXT: inputs[number]}, supports) for number in range(len(inputs))]
        return torch.from_numpy(np.stack(scores)).float() if scores else torch.zeros(0, len(self.supports))

    def encode_queries(self, features: SupportScores) -> QueryState:
        """sigma f_Q(q); zeros for a query with a hole, of which nothing is known."""
        is_there = features.scores.isfinite().all(dim=1, keepdim=True)
        found = self.embedding.queries(features.scores.nan_to_num(0), features.features) * self.embedding.sigma
        vectors = torch.where(is_there, found, 0.0)
        if self.radius is not None:
            vectors = torch.cat([vectors * self.radius.to(vectors.device), vectors.new_zeros(len(vectors), 1)], dim=1)
        return QueryState(vectors[:, None], None, torch.ones(len(vectors), device=vectors.device))

    def represent(self, features: Any, *, are_items: bool = False) -> Float[Tensor, "B D"]:
        raise ValueError("a query must have one representation, got a model of RBE")

    def query_state(self, representation: Float[Tensor, "B D"]) -> QueryState:
        raise ValueError("a query of RBE must be a text, got a representation")

    def is_blank(self, query: str) -> bool:
        return is_blank(query)

    def are_known(self, inputs: Any) -> list[None]:
        return [None] * len(inputs)

    # Items

    def item_features(self, inputs: Sequence[Candidate]) -> Combinations:
        """
        Raises:
            UnavailableError: if no support query has a score for a new item.
        """
        known = [self._row_of(item) for item in inputs]
        rows = torch.tensor(known, dtype=torch.long)
        combinations = self.combinations.cpu()[rows.clamp(min=0)]
        is_new = rows < 0
        if is_new.any():
            combinations[is_new] = self._of_new([item for item, row in zip(inputs, known, strict=True) if row < 0])
        return Combinations(rows, combinations)

    def _row_of(self, item: Candidate) -> int:
        """The row of a training item; -1 for another, or if its text has changed."""
        row, text = self.items.get(item.item_id, (-1, ""))
        return row if row >= 0 and text == item.fields[TEXT] else -1

    def _of_new(self, items: Sequence[Candidate]) -> Float[Tensor, "N S"]:
        items = RankerCandidates.of(items)
        scored = [score_all(self._ranker(), {TEXT: query}, items) for query in self.support_queries]
        relevance = torch.from_numpy(np.stack([own.scores for own in scored], axis=1)).float()  # [N, Q]
        without = relevance.isnan().all(dim=1).nonzero().flatten()
        if len(without):
            raise UnavailableError(
                f"item {items[int(without[0])].item_id!r} must be scored for at least one support query, got none: "
                f"{scored[-1].reason}"
            )
        return self._anncur().combinations(relevance).float().cpu()

    def encode_items(self, features: Combinations) -> ItemState:
        """f_I(x); a new item gets the mean bias, and its trained part from the network, if there is one."""
        is_new = features.rows < 0
        vectors = features.combinations.new_empty(len(features), len(self.support_relevance) + self.embedding.width + 1)
        vectors[~is_new] = self.embedding.items(features.combinations[~is_new], features.rows[~is_new])
        vectors[is_new] = self.embedding.new_items(features.combinations[is_new])
        if self.radius is not None:
            vectors = on_sphere(vectors, self.radius.to(vectors.device))
        return ItemState(vectors[:, None], None, vectors)

    def _ranker(self) -> HeavyRanker:
        if self._made is None:
            self._made = ranker_of(self.ranker, self.allowed)
        return self._made

    def __getstate__(self) -> dict[str, Any]:  # the loaded ranker stays where it is
        return {**self.__dict__, "_made": None}
