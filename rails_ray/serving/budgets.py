"""Calls of a heavy ranker by the query side of a version: a query's supports before it is encoded, and the best of
what a search found. `reranking.budget` says how a query spends its calls.

Every step yields what to ask, as in `search.rounds`. A query at which the ranker fails is answered with an error;
the others are not affected.
"""

import hashlib
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from threading import Lock
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray

from rails_ray.errors import LateError, UnavailableError, UnsupportedError
from rails_ray.modules.similarities.states import AnyQuery, take
from rails_ray.reranking.budget import FoundItem, Spending, split
from rails_ray.reranking.rankers import Candidate, RankerCandidates
from rails_ray.schema.requests import CUTOFF_KINDS, BudgetInput, CutoffInput
from rails_ray.schema.responses import BudgetResult, CertificateResult, QueryResult
from rails_ray.search.rounds import AskRanker, AskShards, RankerCall, Rounds, check_refusals
from rails_ray.search.sharded import merge
from rails_ray.serving.deadlines import Deadline
from rails_ray.serving.shard_messages import ShardRequest, ShardResponse

NO_BUDGET = "no budget was asked for"
SPENT = "the budget was spent on the supports"
MOST_KEPT = 10_000  # queries whose support scores are kept: some 10 MB of 100 supports


class KeptScores:
    """The support scores of queries that were asked before, the last `most` of them. Threads may share it.

    It keeps digests of the queries in place of their texts, which may be long.
    """

    def __init__(self, most: int = MOST_KEPT) -> None:
        self.most = most
        self._scores: OrderedDict[bytes, Float[ndarray, " S"]] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._scores)

    def get(self, text: str) -> Float[ndarray, " S"] | None:
        key = _digest(text)
        with self._lock:
            if key in self._scores:
                self._scores.move_to_end(key)
            return self._scores.get(key)

    def keep(self, text: str, scores: Float[ndarray, " S"]) -> None:
        key = _digest(text)
        with self._lock:
            self._scores[key] = scores
            self._scores.move_to_end(key)
            if len(self._scores) > self.most:
                self._scores.popitem(last=False)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


@dataclass(frozen=True)
class Supported:
    """State of a query before it is encoded.

    scores: of the supports; None if the version has none, or the ranker failed.
    calls_used: pairs that were scored for it now; 0 if the query was asked before. Equal queries share them.
    error: why there are no scores.
    """

    scores: Float[ndarray, " S"] | None = None
    calls_used: int = 0
    error: str | None = None


@dataclass(frozen=True)
class Reranking:
    """
    supports: what must be scored before a query can be encoded; nothing for most models.
    has_ranker: whether the deployment has a heavy ranker.
    has_texts: whether the version keeps its items' texts.
    has_vectors: whether an item is one vector, and its score an inner product.
    """

    supports: Sequence[Candidate]
    has_ranker: bool
    has_texts: bool
    has_vectors: bool
    version: str
    kept: KeptScores
    clock: Callable[[], float] = time.monotonic

    def check_ranker(self, budget: BudgetInput | None = None) -> None:
        """Raises:
        UnsupportedError: if a ranker is needed, and the deployment has none.
        """
        if (self.supports or budget is not None) and not self.has_ranker:
            needs = "a budget" if budget is not None else f"version {self.version}"
            raise UnsupportedError(f"{needs} needs a heavy ranker, got none: name one (--ranker.path)")

    def check(self, budget: BudgetInput | None, cutoff: CutoffInput, k: int) -> None:
        """Raises:
        ValueError: if a budget does not suit the request or the version.
        UnsupportedError: if the deployment has no ranker, or the version lacks what it reads.
        """
        self.check_ranker(budget)
        if budget is None:
            return
        least = len(self.supports)
        if budget.calls < max(least, 1):
            raise ValueError(
                f"budget.calls must be at least {max(least, 1)}, which a query of version {self.version} spends on its "
                f"supports, got {budget.calls}"
            )
        if not self.has_texts:
            raise UnsupportedError(
                f"a budget needs a version that keeps its items' texts, got version {self.version} without: encode one "
                "with --keep-texts"
            )
        if cutoff.top_k is None:
            name = next(name for name in CUTOFF_KINDS if getattr(cutoff, name) is not None)
            raise ValueError(f"cutoff must be top_k beside a budget, as scores become the ranker's, got {name}")
        calls = budget.calls - least
        if 0 < calls < k:
            raise ValueError(f"k must be at most the {calls} items that the budget can rerank, got {k}")
        if budget.rounds > 1 and not self.has_vectors:
            raise ValueError(
                f"budget.rounds must be 1 for version {self.version}, whose items are not one vector each, got "
                f"{budget.rounds}"
            )
        if budget.rounds > max(calls, 1):
            raise ValueError(f"budget.rounds must be at most the {calls} calls left for them, got {budget.rounds}")

    @staticmethod
    def check_texts(queries: Sequence[Mapping[str, Any]]) -> None:
        """Raises:
        ValueError: unless each query is a text, which the ranker reads.
        """
        for number, query in enumerate(queries):
            if not isinstance(query.get("text"), str):
                given = next((name for name, value in query.items() if value is not None), "none")
                raise ValueError(f"queries[{number}] must be given by text beside a budget, got {given}")

    def supported(self, queries: Sequence[Mapping[str, Any]], deadline: Deadline) -> Rounds[list[Supported]]:
        """Ask the ranker for the scores of the supports for each query.

        Raises:
            UnavailableError: if it fails at every query.
        """
        if not self.supports:
            return [Supported()] * len(queries)
        texts = [query["text"] for query in queries]
        known = {text: self.kept.get(text) for text in texts}
        request = [text for text, scores in known.items() if scores is None]
        found = {text: Supported(scores) for text, scores in known.items()}
        if request:
            answers = yield AskRanker([RankerCall({"text": text}, self.supports) for text in request], deadline.left())
            for text, answer in zip(request, answers, strict=True):
                if isinstance(answer, BaseException):
                    where = f"queries[{texts.index(text)}]"
                    reason = deadline.reason(answer)
                    found[text] = Supported(error=f"{where} must have its supports scored, got: {reason}")
                else:
                    self.kept.keep(text, answer)
                    found[text] = Supported(answer, len(self.supports))
        errors = [own.error for own in found.values() if own.error is not None]
        if len(errors) == len(found):
            raise UnavailableError(errors[0])
        return [found[text] for text in texts]

    def reranked(
        self,
        queries: Sequence[Mapping[str, Any]],
        supported: Sequence[Supported],
        state: AnyQuery,
        exclude: Sequence[Sequence[Any]],
        request: ShardRequest,
        answers: Sequence[Any],
        budget: BudgetInput,
        deadline: Deadline,
    ) -> Rounds["Spent"]:
        """How each query spent its budget.

        Args:
            asked, answers: the search of the first round.
        """
        ids = [support.item_id for support in self.supports]
        spent = [
            Spending(
                left=budget.calls - len(ids),
                used=own.calls_used,
                supports={} if own.scores is None else dict(zip(ids, own.scores.tolist(), strict=True)),
                has_units=bool(ids),  # estimates from supports are of the ranker's scores
            )
            for own in supported
        ]
        sizes = split(budget.calls - len(ids), budget.rounds)
        num_shards = len([answer for answer in answers if isinstance(answer, ShardResponse)])
        active, found = list(range(len(spent))), found_items(answers, request, state)
        for spending, items in zip(spent, found, strict=True):
            spending.found = items
        for number, num_calls in enumerate(sizes):
            if number:
                active = [query for query in active if not spent[query].is_over]
                if not active:
                    break
                answers = yield from self._searched_again(spent, active, state, exclude, request, deadline)
                if len([answer for answer in answers if isinstance(answer, ShardResponse)]) < num_shards:
                    lost = LateError("a shard did not answer the search of a later round")
                    for query in active:
                        spent[query].stop(deadline.reason(lost))
                    break
                found = found_items(answers, request, take(state, active))
            chosen = [spent[query].choose(own, num_calls) for query, own in zip(active, found, strict=True)]
            nothing = [query for query, own in zip(active, chosen, strict=True) if not own]
            for query in nothing:  # every item left is a support, or there is none
                spent[query].learn([], np.zeros(0))
            chosen, active = [own for own in chosen if own], [query for query in active if query not in nothing]
            if not active:
                break
            if deadline.has_passed:
                for query in active:
                    spent[query].stop(deadline.reason())
                break
            asked_for = [
                (queries[query]["text"], tuple(item.item_id for item in own))
                for query, own in zip(active, chosen, strict=True)
            ]
            calls = {  # equal queries share one
                (text, ids): RankerCall({"text": text}, RankerCandidates(ids, [item.text for item in own]))
                for (text, ids), own in zip(asked_for, chosen, strict=True)
            }
            scores = dict(zip(calls, (yield AskRanker(list(calls.values()), deadline.left())), strict=True))
            for query, own, call in zip(active, chosen, asked_for, strict=True):
                answer = scores[call]
                if isinstance(answer, BaseException):
                    spent[query].stop(deadline.reason(answer))
                else:
                    spent[query].learn(own, answer)
        return Spent(spent, not sizes)

    def _searched_again(
        self,
        spent: Sequence[Spending],
        active: Sequence[int],
        state: AnyQuery,
        exclude: Sequence[Sequence[Any]],
        request: ShardRequest,
        deadline: Deadline,
    ) -> Rounds[Sequence[Any]]:
        """A search by corrected vectors among what is not scored yet."""
        own = take(state, list(active))
        vectors = own.vectors().clone()
        for line, query in enumerate(active):
            correction = spent[query].correction()
            if correction is not None:
                vectors[line] += vectors.new_tensor(correction)
        scored = [[one.item.item_id for one in spent[query].ranked] for query in active]
        left_out = [[*exclude[query], *done] for query, done in zip(active, scored, strict=True)]
        some = request.of_queries(active)
        answers = yield AskShards("search", (own.by_vectors(vectors), some, left_out), deadline.left())
        check_refusals(answers)
        return answers


def found_items(answers: Sequence[Any], request: ShardRequest, state: AnyQuery) -> list[list[FoundItem]]:
    """Merge what the shards that answered found for each query, best first; estimates are by the query's own vector."""
    parts = [answer for answer in answers if isinstance(answer, ShardResponse)]
    num_left = torch.from_numpy(np.sum([part.num_searched for part in parts], axis=0))
    merged = merge([part.found for part in parts], request.spec(), num_left)
    rows_of = [part.found.item_rows.tolist() for part in parts]  # a number of a tensor costs a microsecond
    lists = []
    for number, (rows, scores) in enumerate(zip(merged.item_rows.tolist(), merged.scores.tolist(), strict=True)):
        fields = dict[int, tuple[Any, str | None, str, Any, Any]]()
        for part, of_part in zip(parts, rows_of, strict=True):
            assert part.texts is not None
            titles = repeat(None) if part.titles is None else part.titles[number]
            vectors = repeat(None) if part.vectors is None else part.vectors[number]
            attributes = repeat(None) if part.fields is None else part.fields[number]
            own = zip(part.item_ids[number], titles, part.texts[number], vectors, attributes, strict=False)
            fields.update(zip(of_part[number], own, strict=False))  # places that hold no item come last
        own_vector = None if parts[0].vectors is None else state.vectors()[number].numpy()
        items = list[FoundItem]()
        for row, score in zip(rows, scores, strict=True):
            if score == -math.inf:
                break
            item_id, title, text, vector, own_fields = fields[row]
            estimated = score if own_vector is None else float(np.dot(own_vector, vector))
            items.append(FoundItem(row, item_id, title, text, estimated, vector, own_fields))
        lists.append(items)
    return lists


@dataclass(frozen=True)
class Spent:
    """Return what became of each query's budget.

    is_supports_only: whether nothing was left to rerank with.
    """

    queries: Sequence[Spending]
    is_supports_only: bool

    def results(self, plain: Iterable[QueryResult], k: int) -> Iterator[QueryResult]:
        """The results of a search with their lists in the ranker's order.

        Args:
            plain: the results of the first search, cut to any length.
        """
        for own, result in zip(self.queries, plain, strict=True):
            ranked, is_reranked = own.answer(k)
            reason = own.reason or (SPENT if self.is_supports_only else None)
            yield result.model_copy(
                update={
                    "items": [one.item.item_id for one in ranked],
                    "titles": None if result.titles is None else [one.item.title for one in ranked],
                    "fields": None if result.fields is None else [one.item.fields for one in ranked],
                    "scores": [one.score for one in ranked],
                    "num_kept": len(ranked),
                    "is_truncated": result.num_searched > len(ranked),
                    "certificate": _certificate(own, result) if is_reranked else result.certificate,
                    "budget": BudgetResult(calls_used=own.used, is_reranked=is_reranked, reason=reason),
                }
            )


def _certificate(spent: Spending, result: QueryResult) -> CertificateResult:
    """A reranked list is exact if the ranker scored every item."""
    if len(spent.ranked) == result.num_searched and result.certificate.reason is None:
        return CertificateResult(is_exact=True, gap=0.0, reason=None)
    reason = result.certificate.reason or f"the heavy ranker scored {len(spent.ranked)} of {result.num_searched} items"
    return CertificateResult(is_exact=False, gap=None, reason=reason)


def unranked(plain: Iterable[QueryResult], calls_used: Sequence[int]) -> Iterator[QueryResult]:
    """Results of queries whose supports alone were scored."""
    for result, used in zip(plain, calls_used, strict=True):
        own = BudgetResult(calls_used=used, is_reranked=False, reason=NO_BUDGET)
        yield result.model_copy(update={"budget": own})


def in_order(answered: Iterable[QueryResult], supported: Sequence[Supported]) -> Iterator[QueryResult]:
    """The results of all queries of a request, those at which the ranker failed among them."""
    found = iter(answered)
    for own in supported:
        yield next(found) if own.error is None else _failed(own.error)


def _failed(error: str) -> QueryResult:
    """The result of a query at which the ranker failed."""
    return QueryResult(
        items=[],
        titles=None,
        scores=[],
        threshold=None,
        num_kept=0,
        num_searched=0,
        num_scored=0,
        certificate=CertificateResult(is_exact=False, gap=None, reason="the heavy ranker failed"),
        is_truncated=False,
        error=error,
    )
