"""The query side of a version: from a request to what is asked of its shards, and from their answers to the response.

Every step is here and none of them waits, so that a server and a caller's own process answer alike.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rails_ray.cutoffs import Cutoff
from rails_ray.errors import renaming
from rails_ray.families.version import Version
from rails_ray.item_ids import ItemId
from rails_ray.reranking.rankers import RankerCandidates
from rails_ray.schema.filters import canonical
from rails_ray.schema.queries import QueryInput
from rails_ray.schema.requests import BudgetInput, CutoffInput, ExplainRequest, SearchRequest
from rails_ray.schema.responses import Coverage, ExplainResponse, QueryResult, SearchResponse
from rails_ray.search.rounds import AskShards, Rounds, check_refusals, search_rounds, unanswered_error
from rails_ray.serving.answers import coverage_of, explained, results_of, with_string_ids
from rails_ray.serving.budgets import KeptScores, Reranking, in_order, unranked
from rails_ray.serving.cutoffs import DEFAULT_K, Cutoffs
from rails_ray.serving.deadlines import Deadline
from rails_ray.serving.encoder import EncodedQueries, QueryEncoder
from rails_ray.serving.grouping import grouped
from rails_ray.serving.paging import is_paged, paged
from rails_ray.serving.popular import Popular
from rails_ray.serving.request_limits import Limits
from rails_ray.serving.scope import Scope, scope_of
from rails_ray.serving.search_defaults import SearchDefaults
from rails_ray.serving.shard_messages import ShardItems, ShardRequest, ShardResponse
from rails_ray.serving.stages import Stages, timed
from rails_ray.serving.vector_queries import VectorQueries
from rails_ray.storage.deltas import delta_facts
from rails_ray.storage.manifest import summary

FEW_PARTS = 500  # so few take less time to write than a thread takes to start


@dataclass(frozen=True)
class Answered:
    """
    head: the answer without its results.
    results: of each query; can be iterated once.
    num_parts: results, and the items that they hold, all counted.
    stages: how long each stage took.
    """

    head: SearchResponse
    results: Iterator[QueryResult]
    num_parts: int
    stages: Stages = field(default_factory=dict)

    @property
    def is_small(self) -> bool:
        """Return whether its results are made sooner here than in a thread."""
        return self.num_parts <= FEW_PARTS


class Engine:
    """
    Args:
        version: a published version.
        cutoff: cut-off for requests that name none; by default the version's.
        calibration: file of the calibration; by default the version's current one.
        filter_calibrations: files of calibrations under filters; by default the version's current ones.
        search: file of the default search; by default the version's current one.
        has_ranker: whether there is a heavy ranker to ask.

    Raises:
        DamagedError: if a file of the version differs from its manifest.
        UnsupportedError: if the version lacks what the cut-off needs.
        ValueError: if the version's config names code that is not allowed.
    """

    def __init__(
        self,
        version: Version,
        *,
        cutoff: CutoffInput | None = None,
        calibration: str | None = None,
        filter_calibrations: Sequence[str] | None = None,
        search: str | None = None,
        limits: Limits = Limits(),
        device: str = "cpu",
        has_ranker: bool = False,
    ) -> None:
        manifest, own = version.manifest, version.family
        self.version, self.given_cutoff = version, cutoff
        self.shard_items = manifest.live_items
        self.cutoffs = Cutoffs.read(
            version, default=cutoff, calibration=calibration, filter_calibrations=filter_calibrations
        )
        self.search_defaults = SearchDefaults.read(version, search)
        self.encoder = QueryEncoder(version, device)
        self.model_facts = own.model_facts(manifest)
        self.ranking = Reranking(
            supports=RankerCandidates.of(self.encoder.supports),
            has_ranker=has_ranker,
            has_texts="text" in manifest.columns,
            has_vectors=own.has_one_vector,
            version=manifest.version,
            kept=KeptScores(),
        )
        takes_budget = has_ranker and self.ranking.has_texts and "text" in manifest.query
        self.excludes_seen = own.config.data.excludes_seen
        self.facts = {
            **summary(manifest),
            **delta_facts(manifest),
            **self.cutoffs.summary(),
            "search": self.search_defaults.summary(),
            "takes_budget": takes_budget,
            "exclude_seen": self.excludes_seen if "history" in manifest.query else None,
        }
        self.limits = limits

    def search(self, request: SearchRequest) -> Rounds[Answered]:
        """The best items for each query, cut to those worth returning, and reranked if there is a budget for it.

        Raises:
            ValueError: if a query, the cut-off, the budget or a number of the request is wrong.
            UnsupportedError: if the version lacks what the cut-off or the budget needs.
            UnavailableError: if too few shards answer, or the heavy ranker fails at every query.
        """
        search = self._search if request.fallback is None else self._with_fallback
        if request.group_by is not None:
            scope_of(request, self.version.described.attributes)  # refuses an attribute that is none
            num = request.k and request.k * request.group_size
            _, _, most_kept, _ = self._checked(request.model_copy(update={"k": num}))
            most = self.limits.max_answered_items // max(len(request.queries), 1)
            rounds = grouped(search, request, request.k or most_kept, max(most, 1))
        else:
            rounds = paged(search, request, DEFAULT_K) if is_paged(request) else search(request)
        answered, stages = yield from timed(rounds)
        return replace(answered, stages=stages)

    def _with_fallback(self, request: SearchRequest) -> Rounds[Answered]:
        """The answer whose unknown queries have the most popular items."""
        popular = self.popular
        cutoffs, cutoff, k, num_listed = self._checked(request)
        given = [query.model_dump() for query in request.queries]
        unknown = self.encoder.unknown(given)
        known = [query for number, query in enumerate(request.queries) if number not in unknown]
        if known:
            answered = yield from self._search(request.model_copy(update={"queries": known}))
        else:
            self._policy(cutoffs, cutoff, k)
            answered = self._unasked(request, cutoff)
        if not unknown:
            return answered
        num, scored = num_listed or min(k, cutoff.top_k or DEFAULT_K), iter(answered.results)
        fields = yield from self._popular_fields(popular, request)

        def results() -> Iterator[QueryResult]:
            for number, query in enumerate(request.queries):
                if number in unknown:
                    found = iter([popular.result(num, query, fields)])
                    yield next(with_string_ids(found) if request.ids == "string" else found)
                else:
                    yield next(scored)

        head = answered.head.model_copy(update={"is_exact": False})
        return Answered(head, results(), answered.num_parts + len(unknown) * (1 + num))

    def _popular_fields(self, popular: Popular, request: SearchRequest) -> Rounds[dict[str, Any] | None]:
        """The attributes that the request names of each popular item that is still there and that its filter passes, by
        id in decimal digits; None if these are all, and it names none.

        Raises:
            UnavailableError: if no shard answers.
        """
        described = self.version.described
        if request.filter is None and not request.fields and described.num_live == described.num_items:
            return None
        scope = Scope(scope_of(request, described.attributes).filter)
        answers = yield AskShards("describe", (list(popular.item_ids), scope, request.fields))
        check_refusals(answers)
        known = [answer for answer in answers if isinstance(answer, ShardItems)]
        if not known:
            raise unanswered_error(answers, f"a shard must answer, got none of {len(answers)}")
        found = dict[str, Any]()
        for answer in known:
            of_items = repeat(None) if answer.fields is None else answer.fields
            found.update(zip(map(str, answer.item_ids), of_items, strict=False))
        return found

    def _unasked(self, request: SearchRequest, cutoff: CutoffInput) -> Answered:
        """The answer to no query, for which no shard is asked."""
        num_shards, num_items = len(self.shard_items), sum(self.shard_items)
        coverage = Coverage(
            shards_answered=num_shards, num_shards=num_shards, items_searched=num_items, num_items=num_items
        )
        return Answered(self._head(request, cutoff, coverage.model_copy(update=self.model_facts), False), iter(()), 0)

    def _head(self, request: SearchRequest, cutoff: CutoffInput, coverage: Coverage, is_exact: bool) -> SearchResponse:
        return SearchResponse(
            version=self.facts["version"],
            method=self.search_defaults.method(request),
            is_exact=is_exact,
            cutoff=cutoff.model_dump(exclude_defaults=True),
            coverage=coverage,
            results=[],
        )

    @cached_property
    def popular(self) -> Popular:
        """The most popular items.

        Raises:
            UnsupportedError: if the version does not store them.
        """
        return Popular.read(self.version)

    def _policy(self, cutoffs: Cutoffs, cutoff: CutoffInput, k: int) -> Cutoff | None:
        """The policy of a cut-off; None if it follows from what the shards say. Raises if the cut-off is wrong."""
        if not cutoff.needs_normaliser:
            return cutoffs.policy(cutoff, k)
        cutoffs.check_logit()
        return None

    def _search(self, request: SearchRequest) -> Rounds[Answered]:
        cutoffs, cutoff, k, num_listed = self._checked(request)
        policy = self._policy(cutoffs, cutoff, k)  # before any work
        scope = scope_of(request, self.version.described.attributes)
        deadline = self._deadline(request.budget)
        is_for_ranker = self.ranking.supports or request.budget is not None
        given: Sequence[Any] = [vars(query) for query in request.queries] if is_for_ranker else request.queries
        if self.ranking.supports:
            self.encoder.check_queries(given)  # before any call is spent on them
        if request.budget is not None:
            self.ranking.check_texts(given)
        supported = yield from self.ranking.supported(given, deadline)
        answered = [number for number, own in enumerate(supported) if own.error is None]
        scores = [supported[number].scores for number in answered]
        queries = request.queries if len(answered) == len(given) else [request.queries[number] for number in answered]
        encoded = self._encoded(queries, scores)
        temperature, exclude = encoded.state.temperature.numpy(), self._excluded(queries, encoded.seen)
        scope = scope.of_queries(answered)

        def plan(log_normaliser: NDArray[np.float64] | None) -> tuple[Cutoff, ShardRequest]:
            decided = policy or cutoffs.policy(cutoff, k, log_normaliser)
            most, floor, least = num_listed or k, None, cutoffs.cutoff_support.least_score
            if cutoff.top_k is None and num_listed is None:
                floor = decided.floor(temperature).astype(np.float32)
            if least is not None:
                floor = np.maximum(
                    np.float32(least) if floor is None else floor, np.full(len(temperature), least, "f4")
                )
            at_least = 0 if floor is None else min(cutoff.min_items, most)
            method, params = self.search_defaults.method(request), self.search_defaults.params(request, most)
            shard_request = ShardRequest(
                method, params, most, floor, at_least, scope=scope, fields=list(dict.fromkeys(request.fields))
            )
            return decided, self._for_ranker(shard_request, request)

        factor = cutoffs.softmax_factor if cutoff.needs_normaliser else None
        rounds = search_rounds(encoded.state, exclude, plan, softmax_factor=factor, scope=scope)
        decided, shard_request, answers = yield from rounds
        coverage = coverage_of(answers, self.shard_items, request.min_coverage).model_copy(update=self.model_facts)
        shards = [answer for answer in answers if isinstance(answer, ShardResponse)]
        wanted = shard_request if request.budget is None else replace(shard_request, k=k)
        results = results_of(
            shards,
            wanted,
            decided,
            temperature,
            coverage,
            encoded.is_known,
            num_excluded=[len(own) for own in exclude],
            is_calibrated=cutoffs.is_calibrated_under(scope.filter, cutoff),
            has_temperature=cutoffs.cutoff_support.has_trained_temperature,
            lists_all=num_listed is not None,
        )
        found, num_items, is_exact = iter(results), results.num_items, results.is_exact
        if request.budget is not None:
            spent = yield from self.ranking.reranked(
                [given[number] for number in answered],
                [supported[number] for number in answered],
                encoded.state,
                exclude,
                shard_request,
                answers,
                request.budget,
                deadline,
            )
            ranked = list(spent.results(found, k))
            found, is_exact = iter(ranked), all(own.certificate.is_exact for own in ranked)
            num_items = sum(len(own.items) for own in ranked)
        elif self.ranking.supports:
            found = unranked(found, [supported[number].calls_used for number in answered])
        if request.ids == "string":
            found = with_string_ids(found)
        head = self._head(request, cutoff, coverage, is_exact and len(answered) == len(given))
        return Answered(head, in_order(found, supported), len(given) + num_items)

    def _encoded(self, queries: Sequence[QueryInput], supports: Sequence[Any]) -> EncodedQueries:
        """The queries for the shards, in one step where all are vectors."""
        vectors = None if self.ranking.supports else VectorQueries.of(queries)
        found = None if vectors is None else self.encoder.of_vectors(vectors.array)
        return self.encoder([vars(query) for query in queries], supports) if found is None else found

    def _excluded(self, queries: Sequence[QueryInput], seen: Sequence[list[ItemId]]) -> list[list[ItemId]]:
        """The items that the answer to each query may not hold."""
        if isinstance(queries, VectorQueries):  # which say nothing of them
            return [[] for _ in queries.array]
        return [
            [*query.exclude, *(own if self._excludes_seen(query) else [])]
            for query, own in zip(queries, seen, strict=True)
        ]

    def embed(self, texts: Sequence[str], *, are_items: bool = False) -> NDArray[np.float32]:
        """The vector of each text as a query, which a search takes as `embedding`, or as an item [B, D].

        Raises:
            ValueError: if there are too many texts, or the model reads none.
            UnsupportedError: if the model makes no such vector.
        """
        if len(texts) > self.limits.max_queries:
            raise ValueError(f"input must have a length of at most {self.limits.max_queries}, got {len(texts)}")
        with renaming(r"queries\[", "input["):
            return self.encoder.represent(texts, are_items=are_items)

    def _cutoffs_for(self, request: SearchRequest) -> Cutoffs:
        """The cut-offs of the items that the request's filter passes."""
        if not self.cutoffs.of_filters or not isinstance(request.filter, dict):
            return self.cutoffs
        return self.cutoffs.under(canonical(request.filter))

    def _checked(self, request: SearchRequest) -> tuple[Cutoffs, CutoffInput, int, int | None]:
        """The cut-offs under the request's filter, the one that it gets, the most items that this keeps, and how many
        are listed whether it keeps them or not: the k of a request that names no cut-off; None for those it keeps."""
        num_queries, most = len(request.queries), self.limits.max_answered_items
        self.limits.check_queries(num_queries)
        named = self._cutoff_of(request)
        cutoffs = self._cutoffs_for(request)
        cutoff = cutoffs.resolve(named, request.k)
        k = cutoffs.limit(cutoff, request.k, max(most // num_queries, 1))
        num_listed = None if named is not None or request.k is None else min(request.k, cutoffs.num_items)
        for name, number in (
            ("k", num_listed or k),
            ("budget.calls", 0 if request.budget is None else request.budget.calls),
        ):
            if num_queries * number > most:
                raise ValueError(
                    f"queries times {name} must be at most {most} items, got {num_queries} x {number}: ask fewer "
                    "queries at once"
                )
        self.ranking.check(request.budget, cutoff, k)
        return cutoffs, cutoff, k, num_listed

    def _excludes_seen(self, query: QueryInput) -> bool:
        """Decide if the search skips the items of a query's history: the request says, or else the version."""
        return self.excludes_seen if query.exclude_seen is None else query.exclude_seen

    def _deadline(self, budget: BudgetInput | None = None) -> Deadline:
        limit_s = self.limits.deadline_s
        return Deadline(budget, self.ranking.clock, None if limit_s is None else 1000 * limit_s)

    def _cutoff_of(self, request: SearchRequest) -> CutoffInput | None:
        """The cut-off of the request. With a budget it is top_k unless the request says otherwise."""
        if request.cutoff is None and request.budget is not None:
            return CutoffInput(top_k=request.k or DEFAULT_K)
        return request.cutoff

    def _for_ranker(self, shard_request: ShardRequest, request: SearchRequest) -> ShardRequest:
        """The question with what the heavy ranker needs: as many items as the budget pays for, and their texts."""
        if request.budget is None:
            return shard_request
        num_items = min(max(shard_request.k, request.budget.calls), sum(self.shard_items))
        params = self.search_defaults.params(request, num_items)
        return replace(
            shard_request, k=num_items, params=params, for_ranker=True, with_vectors=request.budget.rounds > 1
        )

    def explain(self, request: ExplainRequest) -> Rounds[ExplainResponse]:
        """The component cosines and the gates of a query and some items. Raises what `search` does, and ValueError if
        an item is not in the index."""
        with renaming(r"queries\[0\]", "query"):
            return (yield from self._explain(request))

    def _explain(self, request: ExplainRequest) -> Rounds[ExplainResponse]:
        self.ranking.check_ranker()
        deadline, shard_request = self._deadline(), request.query.model_dump()
        self.encoder.check_queries([shard_request])
        [supported] = yield from self.ranking.supported([shard_request], deadline)
        encoded = self.encoder([shard_request], [supported.scores])
        answers: Sequence[Any] = yield AskShards("explain", (encoded.state, request.items))
        return explained(self.facts["version"], answers, request.items, as_strings=request.ids == "string")
