"""Sentences on the columns of a table that nothing reads, and on how to store those of items."""

import shlex
from collections.abc import Collection, Mapping, Sequence

import pyarrow as pa

from rails_ray.storage.attributes import ATTRIBUTE, check_names, kinds_of
from rails_ray.storage.tables import Table

SHOWN = 10  # names in a sentence


def notes(name: str, table: Table, used: Collection[str], attributes: Mapping[str, str], offers: bool) -> list[str]:
    """Name the columns of a table that nothing reads.

    Args:
        name: that of the table.
        used: the columns that are read; none if the table was not read.
        attributes: columns that become attributes, by the names of these.
        offers: whether to say how further columns do.
    """
    if not used:
        return []
    read = {table.column_in(footer, column) for footer in table.footers for column in (*used, *attributes)}
    unused = [column for column in table.column_names if column not in read]
    kinds = _kinds(table, unused, attributes) if offers else {}
    found, rest = list[str](), [column for column in unused if column not in kinds]
    if rest:
        found.append(f"{name}: {_shown(rest)} {'is' if len(rest) == 1 else 'are'} not stored")
    if kinds:
        are, them = ("is", "it") if len(kinds) == 1 else ("are", "them")
        chosen = [new if new == old else f"{new}={old}" for new, old in attributes.items()]
        option = shlex.quote(",".join([*chosen, *list(kinds)[:SHOWN]]))
        shown = _shown([f"{column} ({kind})" for column, kind in kinds.items()])
        found.append(f"{name}: {shown} {are} not stored: --data.attributes {option} stores {them}")
    return found


def _kinds(table: Table, columns: Sequence[str], attributes: Mapping[str, str]) -> dict[str, str]:
    """The kind that each column would have as an attribute, without those that can be none under their names."""
    found = dict[str, str]()
    for column in columns:
        try:
            check_names([*attributes, *found, column])
            [kind] = table.types({}, {column: ATTRIBUTE}).values()
        except ValueError:
            continue
        if not pa.types.is_null(kind) and not {",", "="} & set(column):
            found |= kinds_of({column: kind})
    return found


def _shown(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN:,} more" * (len(names) > SHOWN)
    return ", ".join(names[:SHOWN]) + more
