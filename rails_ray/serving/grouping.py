"""Groups: at most so many items of each group in a list, the groups in the order of their best items.

The k best groups are those of the shortest list of best items that has k of them, and their best items are in it too
once it has `group_size` of each. So a list is searched again, longer, until it has, or has all items: grouped lists are
exact where lists are. An item without a value is a group of its own.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rails_ray.schema.requests import SearchRequest
from rails_ray.schema.responses import CertificateResult, QueryResult
from rails_ray.search.rounds import Rounds
from rails_ray.serving.paging import is_paged

if TYPE_CHECKING:
    from rails_ray.serving.engine import Answered

FIRST, FACTOR = 4, 4  # length of the first list for each item that is wanted, and of each next one for the former
UNSEEN = "groups of items beyond the longest list that a request may have were not looked at"


def grouped(
    search: Callable[[SearchRequest], "Rounds[Answered]"], request: SearchRequest, k: int, most: int
) -> "Rounds[Answered]":
    """Search for groups.

    Args:
        search: answers a request that asks for no groups.
        k: most groups of a query.
        most: most items of a list.

    Raises:
        ValueError: if the request has a budget, or asks for a page.
    """
    assert request.group_by is not None
    if request.budget is not None or is_paged(request):
        other = "a budget" if request.budget is not None else "pages (offset, after)"
        raise ValueError(f"group_by must be left out of a request with {other}, got both")
    name, size, num = request.group_by, request.group_size, min(FIRST * k * request.group_size, most)
    fields = [*request.fields, *([] if name in request.fields else [name])]
    while True:
        wanted = request.model_copy(update={"group_by": None, "fields": fields, "k": num})
        answered = yield from search(wanted)
        results = list(answered.results)
        if num >= most or all(_is_complete(own, name, k, size, num) for own in results):
            break
        num = min(FACTOR * num, most)
    is_cut = request.cutoff is not None or request.k is None  # and not the k best, whatever they score
    lists = [
        _grouped(own, name, k, size, is_whole=_is_complete(own, name, k, size, num), is_cut=is_cut) for own in results
    ]
    shown = [own if name in request.fields else _without(own, name, request.fields) for own in lists]
    is_exact = answered.head.is_exact and all(own.certificate.is_exact for own in shown)
    return replace(answered, head=answered.head.model_copy(update={"is_exact": is_exact}), results=iter(shown))


def _values(result: QueryResult, name: str) -> list[Any]:
    """The group of each item; an object of its own where there is no value."""
    values = [own.get(name) for own in result.fields or []]
    return [object() if value is None else tuple(value) if isinstance(value, list) else value for value in values]


def _is_complete(result: QueryResult, name: str, k: int, size: int, num: int) -> bool:
    """Decide whether a longer list would change nothing."""
    if len(result.items) < num:
        return True
    counts = dict[Any, int]()
    for value in _values(result, name):
        if value in counts or len(counts) < k:
            counts[value] = counts.get(value, 0) + 1
    return len(counts) == k and min(counts.values()) >= size


def _grouped(result: QueryResult, name: str, k: int, size: int, *, is_whole: bool, is_cut: bool) -> QueryResult:
    """
    is_cut: whether a cut-off ends the list, of which `is_truncated` then says whether k may have left out groups.
    """
    counts, places = dict[Any, int](), list[int]()
    for place, value in enumerate(_values(result, name)):
        if value not in counts and len(counts) == k:
            continue
        counts[value] = counts.get(value, 0) + 1
        if counts[value] <= size:
            places.append(place)
    has_more = len(counts) == k and (result.is_truncated or len(set(_values(result, name))) > k)
    certificate = result.certificate
    if not is_whole:
        certificate = CertificateResult(is_exact=False, gap=None, reason=UNSEEN)
    return result.model_copy(
        update={
            "items": [result.items[place] for place in places],
            "scores": [result.scores[place] for place in places],
            "titles": None if result.titles is None else [result.titles[place] for place in places],
            "fields": [(result.fields or [])[place] for place in places],
            "num_kept": sum(place < result.num_kept for place in places),
            "is_truncated": is_cut and has_more,
            "certificate": certificate,
        }
    )


def _without(result: QueryResult, name: str, fields: list[str]) -> QueryResult:
    """The result without an attribute that was read for its groups alone."""
    kept = [{key: value for key, value in own.items() if key != name} for own in result.fields or []]
    return result.model_copy(update={"fields": kept if fields else None})
