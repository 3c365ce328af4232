"""The query side of a version: from a request to what is asked of its shards, and from their answers to the response.

Every step is here and none of them waits, so that a server and a caller's own process answer alike.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rails_ray.answering.answers import coverage_of, explained, results_of
from rails_ray.answering.cutoffs import Cutoffs
from rails_ray.answering.encoder import QueryEncoder
from rails_ray.answering.schemas import (
    CutoffInput,
    ExplainRequest,
    ExplainResponse,
    QueryResult,
    SearchRequest,
    SearchResponse,
)
from rails_ray.answering.shards import Asked, ShardAnswer
from rails_ray.build.version import version_family
from rails_ray.cutoffs import Cutoff
from rails_ray.retrieval.rounds import AskShards, Rounds, search_rounds
from rails_ray.retrieval.searchable import DEFAULT_WIDTHS, Widths
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.manifest import Manifest, summary


@dataclass(frozen=True, kw_only=True)
class Limits:
    """
    max_queries: most queries in a request.
    max_answered_items: most queries times k in a request.
    """

    max_queries: int = 1024
    max_answered_items: int = 100_000


Answered = tuple[SearchResponse, Iterator[QueryResult]]
"""The answer without its results, and the results apart."""


class Engine:
    """
    Args:
        cutoff: cut-off for requests that name none; by default the version's.
        calibration: file of the calibration; by default the version's current one.

    Raises:
        DamagedError: if a file of the version differs from its manifest.
        UnsupportedError: if the version lacks what the cut-off needs.
    """

    def __init__(
        self,
        store: Storage,
        manifest: Manifest,
        *,
        cutoff: CutoffInput | None = None,
        calibration: str | None = None,
        limits: Limits = Limits(),
        device: str = "cpu",
    ) -> None:
        self.shard_items = manifest.shard_items
        self.cutoffs = Cutoffs.read(store, manifest, default=cutoff, calibration=calibration)
        self.facts = {**summary(manifest), **self.cutoffs.summary()}
        self.encoder = QueryEncoder(store, manifest, device)
        self.model_facts = version_family(store, manifest).model_facts(manifest)
        self.limits = limits

    def search(self, request: SearchRequest) -> Rounds[Answered]:
        """The best items for each query, cut to those worth returning.

        Raises:
            ValueError: if a query, the cut-off or a number of the request is wrong.
            UnsupportedError: if the version lacks what the cut-off needs.
            UnavailableError: if too few shards answer.
        """
        num_queries, most = len(request.queries), self.limits.max_answered_items
        if num_queries > self.limits.max_queries:
            raise ValueError(f"queries must have a length of at most {self.limits.max_queries}, got {num_queries}")
        cutoff = self.cutoffs.resolve(request.cutoff, request.k)
        k = self.cutoffs.limit(cutoff, request.k, max(most // num_queries, 1))
        if num_queries * k > most:
            raise ValueError(
                f"queries times k must be at most {most} items, got {num_queries} x {k}: ask fewer queries at once"
            )
        policy: Cutoff | None = None
        if cutoff.needs_normaliser:
            self.cutoffs.check_logit()
        else:
            policy = self.cutoffs.policy(cutoff, k)  # raises before any work if the cut-off is wrong
        encoded = self.encoder([query.model_dump() for query in request.queries])
        temperature = encoded.state.temperature.numpy()
        exclude = [
            [*query.exclude, *(seen if query.exclude_seen else [])]
            for query, seen in zip(request.queries, encoded.seen, strict=True)
        ]

        def plan(log_normaliser: NDArray[np.float64] | None) -> tuple[Cutoff, Asked]:
            decided = policy or self.cutoffs.policy(cutoff, k, log_normaliser)
            floor = None if cutoff.top_k is not None else decided.floor(temperature).astype(np.float32)
            return decided, Asked(request.method, _widths(request, k), k, floor, min(cutoff.min_items, k))

        rounds = search_rounds(encoded.state, exclude, plan, needs_normaliser=cutoff.needs_normaliser)
        decided, asked, answers = yield from rounds
        coverage = coverage_of(answers, self.shard_items, request.min_coverage).model_copy(update=self.model_facts)
        answered = [answer for answer in answers if isinstance(answer, ShardAnswer)]
        results = results_of(answered, asked, decided, temperature, coverage, encoded.is_known)
        head = SearchResponse(
            version=self.facts["version"],
            method=request.method,
            is_exact=results.is_exact,
            cutoff=cutoff.model_dump(exclude_defaults=True),
            coverage=coverage,
            results=[],
        )
        return head, iter(results)

    def explain(self, request: ExplainRequest) -> Rounds[ExplainResponse]:
        """The component cosines and the gates of a query and some items. Raises what `search` does, and ValueError if
        an item is not in the index."""
        encoded = self.encoder([request.query.model_dump()])
        answers: Sequence[Any] = yield AskShards("explain", (encoded.state, request.items))
        return explained(self.facts["version"], answers, request.items)


def _widths(request: SearchRequest, k: int) -> Widths:
    """The widths of the request; by default the usual ones, or k if that is more."""
    return Widths(
        num_candidates=request.num_candidates or max(DEFAULT_WIDTHS.num_candidates, k),
        num_per_embedding=request.num_per_embedding or max(DEFAULT_WIDTHS.num_per_embedding, k),
        num_probes=request.num_probes,
        nprobe=request.nprobe,
        ef_search=request.ef_search,
    )
