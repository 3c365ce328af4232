"""Pages of a list: a search that goes on where another ended, also if items have come and gone between the two.

    place(q) = the place after the last item of the page before or, if that is gone or scores otherwise now, after all
               that score more and those that were shown of equal ones
    page(q)  = list(q)[place .. place + k - 1], of a search for place + k items

A cursor holds the last item, its score, its place and the items shown before it that scored the same. No item is on two
pages, and none is left out that was there all the time, as long as its score does not change: items that come before
the place move it, whatever version answers.
"""

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from rails_ray.item_ids import ItemId
from rails_ray.schema.fields import shortened
from rails_ray.schema.requests import SearchRequest
from rails_ray.schema.responses import QueryResult
from rails_ray.search.rounds import Rounds

if TYPE_CHECKING:
    from rails_ray.serving.engine import Answered

SPARE = 16  # items more than the place needs, as some may have come since
ROUNDING = 1e-6  # of a score, or of 1: two searches of other sizes may differ by as much
MOST_TIES = 100  # whose ids a cursor holds
DEEPEST = 2**30  # place in a list


class Cursor(NamedTuple):
    """
    item: the last item of a page.
    place: number of items up to and including it.
    ties: the items before it whose score is the same, but for rounding.
    """

    item: ItemId
    score: float
    place: int
    ties: Sequence[ItemId] = ()

    @property
    def text(self) -> str:
        """The cursor as requests give it back."""
        return base64.urlsafe_b64encode(json.dumps([*self[:3], *self.ties]).encode()).decode().rstrip("=")

    @classmethod
    def read(cls, text: str, where: str) -> "Cursor":
        """Raises:
        ValueError: if no answer gave this text.
        """
        try:
            padded = f"{text}{'=' * (-len(text) % 4)}".encode()
            item, score, place, *ties = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
        except (ValueError, TypeError, binascii.Error, RecursionError):
            item, score, place, ties = None, None, None, []
        is_read = isinstance(score, float | int) and type(place) is int
        if not is_read or not all(type(own) in (str, int) for own in [item, *ties]) or not 1 <= place <= DEEPEST:
            raise ValueError(f"{where} must be the `next` of an answer, got {shortened(text)}")
        return cls(item, float(score), place, ties)


def is_paged(request: SearchRequest) -> bool:
    """Decide whether a request asks for pages."""
    return request.offset is not None or any(query.after is not None for query in _single(request))


def paged(
    search: Callable[[SearchRequest], "Rounds[Answered]"], request: SearchRequest, most: int
) -> "Rounds[Answered]":
    """Search for a page of each query.

    Args:
        search: answers a request that asks for no page.
        most: most items of a page, for a request that does not say.

    Raises:
        ValueError: if a cursor is none, or the request has a budget.
    """
    if request.budget is not None:
        raise ValueError("offset and after must be left out of a request with a budget, got one of them")
    offset, k = request.offset or 0, request.k or most
    if offset > DEEPEST:
        raise ValueError(f"offset must be at most {DEEPEST}, got {offset}")
    cursors = [
        None if query.after is None else Cursor.read(query.after, f"queries[{number}].after")
        for number, query in enumerate(_single(request))
    ] or [None] * len(request.queries)
    plain = [query.model_copy(update={"after": None}) for query in _single(request)] or request.queries
    deepest = max([offset, *(cursor.place + SPARE for cursor in cursors if cursor is not None)])
    while True:
        num = deepest + k + 1  # the last tells whether the list goes on
        wanted = request.model_copy(update={"queries": plain, "offset": None, "k": num})
        answered = yield from search(wanted)
        results: Sequence[QueryResult] = list(answered.results)
        places = [
            offset if cursor is None else _place(result, cursor)
            for result, cursor in zip(results, cursors, strict=True)
        ]
        further = [
            place
            for result, place in zip(results, places, strict=True)
            if num <= len(result.items) < result.num_searched and len(result.items) <= place + k
        ]
        if not further:
            break
        deepest = max(2 * deepest, *further)
    pages = [_page(result, place, k) for result, place in zip(results, places, strict=True)]
    return replace(answered, results=iter(pages))


def _single(request: SearchRequest) -> Sequence[Any]:
    """The queries of a request, each with its fields; none for an array of vectors, which has no cursors."""
    return request.queries if isinstance(request.queries, list) else []


def _place(result: QueryResult, cursor: Cursor) -> int:
    items, reach = [str(own) for own in result.items], _rounding(cursor.score)  # ids may be asked for as strings
    if str(cursor.item) in items:
        place = items.index(str(cursor.item))
        if abs(result.scores[place] - cursor.score) <= reach:
            return place + 1
    shown = {str(own) for own in cursor.ties}
    return sum(
        score > cursor.score + reach or (own in shown and score >= cursor.score - reach)
        for own, score in zip(items, result.scores, strict=True)
    )


def _rounding(score: float) -> float:
    return ROUNDING * max(1.0, abs(score))


def _cursor(result: QueryResult, end: int) -> Cursor:
    """The cursor of a page that ends before a place."""
    last, score = result.items[end - 1], result.scores[end - 1]
    first = end - 1
    while first > max(end - 1 - MOST_TIES, 0) and result.scores[first - 1] <= score + _rounding(score):
        first -= 1
    return Cursor(last, score, end, result.items[first : end - 1])


def _page(result: QueryResult, place: int, k: int) -> QueryResult:
    """Some items of a list, and the cursor of those that follow."""
    end = min(place + k, len(result.items))
    has_more = len(result.items) > end > place
    cursor = _cursor(result, end).text if has_more else None
    return result.model_copy(
        update={
            "items": result.items[place:end],
            "scores": result.scores[place:end],
            "titles": None if result.titles is None else result.titles[place:end],
            "fields": None if result.fields is None else result.fields[place:end],
            "num_kept": max(min(result.num_kept, end) - place, 0),
            "is_truncated": has_more,
            "next": cursor,
        }
    )
