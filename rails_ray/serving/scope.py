"""Which items of a shard a search may find: those that are not deleted, that its filter passes, and that its query
includes.

The mask of a filter is kept, by the files of the items and the text of the filter. Parts never change, so a kept mask
is never out of date; what was deleted is combined with it afterwards.

Axes: X rows of the shard.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, Union

import numpy as np
import torch
from numpy.typing import NDArray

from rails_ray.item_ids import ItemId
from rails_ray.schema.fields import shortened
from rails_ray.schema.filters import canonical, parse
from rails_ray.schema.requests import SearchRequest
from rails_ray.serving.kept_masks import KeptMasks, LeftRows
from rails_ray.serving.segments import HeldItems, Segment
from rails_ray.serving.vector_queries import VectorQueries
from rails_ray.storage.filtering import passing

if TYPE_CHECKING:
    from pyarrow.compute import Expression

Number = TypeVar("Number", np.int64, np.float64)


@dataclass(frozen=True)
class Scope:
    """The items that a batch of queries may find, in a form that travels.

    filter: its text (`schema.filters.canonical`), or, in the caller's own process, an expression; None for no filter.
    include: ids that alone may be found, of each query; None for all, of one query or of every one.
    """

    filter: Union[str, "Expression", None] = None
    include: Sequence[Sequence[ItemId] | None] | None = None

    def of_queries(self, numbers: Sequence[int]) -> "Scope":
        """The scope of some queries, as a batch of their own."""
        if self.include is None:
            return self
        return Scope(self.filter, [self.include[number] for number in numbers])


EVERYTHING = Scope()


def scope_of(request: SearchRequest, attributes: Mapping[str, str] | None) -> Scope:
    """Which items the queries of a request may find.

    Args:
        attributes: kind of each attribute of the version.

    Raises:
        ValueError: if the request's filter, fields or groups do not fit them.
    """
    attributes = attributes or {}
    named = {f"fields[{number}]": name for number, name in enumerate(request.fields)}
    if request.group_by is not None:
        named["group_by"] = request.group_by
    for where, name in named.items():
        if name not in attributes:
            names = f"be one of the version's attributes, {', '.join(attributes)}"
            must = names if attributes else "be left out for a version whose items have no attributes"
            raise ValueError(f"{where} must {must}, got {shortened(name)}")
    given: Any = request.filter
    if isinstance(given, dict):
        parse(given, attributes)
        given = canonical(given) if given else None
    include = None
    if not isinstance(request.queries, VectorQueries):  # which say nothing of it
        include = [query.include for query in request.queries]
    return Scope(given, None if include is None or include.count(None) == len(include) else include)


@dataclass(frozen=True)
class Group:
    """Queries of a batch that may find the same rows, but for those that each excludes.

    numbers: their numbers in the batch, ascending.
    left: the rows; None for all.
    num_included: how many of the ids that each includes name an item of the shard.
    """

    numbers: Sequence[int]
    left: LeftRows | None
    num_included: int = 0

    def num_searched(self, num_rows: int, excluded: Sequence[Sequence[int]]) -> NDArray[np.int64]:
        """How many items each of its queries could find.

        Args:
            num_rows: rows of the shard.
            excluded: rows that each query of the batch excludes.
        """
        left, out = self.left, [set(excluded[number]) for number in self.numbers]
        if left is None:
            return np.array([num_rows - len(own) for own in out], np.int64)
        return np.array([left.num - int(left.has(np.array([*own], np.int64)).sum()) for own in out], np.int64)


def groups_of(
    held: HeldItems, scope: Scope, num_queries: int, columns: Mapping[str, str], kept: KeptMasks
) -> list[Group]:
    """The queries of a batch by what they may find of a shard.

    Args:
        columns: kind of each attribute of the items.

    Raises:
        ValueError: if a filter does not fit them.
    """
    is_left = held.is_left
    if scope.filter is not None:
        found = [_passing(segment, scope.filter, columns, kept) for segment in held.segments]
        passed = torch.from_numpy(np.concatenate(found))
        is_left = passed if is_left is None else passed & is_left
    left = None if is_left is None else LeftRows(len(held), is_left=is_left)
    if not scope.include:
        return [Group(range(num_queries), left)]
    numbers, groups = dict[tuple[ItemId, ...] | None, list[int]](), list[Group]()
    for number, ids in enumerate(scope.include):
        numbers.setdefault(None if ids is None else tuple(ids), []).append(number)
    for included, own in numbers.items():
        if included is None:
            groups.append(Group(own, left))
            continue
        rows = held.rows(included)
        rows = rows[rows >= 0]
        there = np.unique(rows)
        groups.append(Group(own, LeftRows(len(held), rows=there) if left is None else left.only(there), len(rows)))
    return groups


def of_each(values: Sequence[NDArray[Number]], groups: Sequence[Group]) -> NDArray[Number]:
    """The values of the queries of all groups, in the order of the batch."""
    if len(groups) == 1:
        return values[0]
    found: NDArray[Number] = np.concatenate(values)[np.argsort(np.concatenate([own.numbers for own in groups]))]
    return found


def _passing(
    segment: Segment, filter: Union[str, "Expression"], columns: Mapping[str, str], kept: KeptMasks
) -> NDArray[np.bool_]:
    attributes = segment.items.attributes
    if attributes is None:
        raise ValueError("filter must be left out for a version whose items have no attributes, got one")

    def made() -> NDArray[np.bool_]:
        return passing(parse(json.loads(filter), columns) if isinstance(filter, str) else filter, attributes)

    if not isinstance(filter, str) or not segment.files:
        return made()
    return kept.mask((*segment.files, filter), len(segment), made)
