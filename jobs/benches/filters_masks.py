"""The masks of `filters`: how long does it take to know which items a condition passes?

Ours, made (cold) and kept, and what others take for the same condition over the same columns: pyarrow, whose answer is
a mask too, and DuckDB and LanceDB, which count the rows.
"""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from numpy.typing import NDArray

from jobs.benches.filters_corpus import in_turns, never
from rails_ray.schema.filters import parse
from rails_ray.serving.kept_masks import KeptMasks
from rails_ray.storage.filtering import passing

KINDS = {"lang": "string", "price": "float", "year": "int"}
LANGUAGES = [f"lang-{number}" for number in range(200)]


@dataclass(frozen=True)
class Case:
    """A condition in the language of filters, as an expression, and in SQL."""

    name: str
    filter: dict[str, Any]
    expression: pc.Expression
    sql: str


LANG, PRICE, YEAR = (pc.field(name) for name in KINDS)
HUNDRED = LANGUAGES[:100]
CASES = (
    Case("equality", {"lang": "lang-7"}, LANG == "lang-7", "lang = 'lang-7'"),
    Case(
        "range",
        {"price": {"$gte": 0.25, "$lt": 0.75}},
        (PRICE >= 0.25) & (PRICE < 0.75),
        "price >= 0.25 AND price < 0.75",
    ),
    Case(
        "in of 100",
        {"lang": {"$in": HUNDRED}},
        LANG.isin(HUNDRED),
        f"lang IN {tuple(HUNDRED)}",
    ),
    Case(
        "and of 3",
        {"$and": [{"lang": {"$ne": "lang-7"}}, {"price": {"$lt": 0.5}}, {"year": {"$gte": 2000}}]},
        (LANG != "lang-7") & (PRICE < 0.5) & (YEAR >= 2000),
        "lang != 'lang-7' AND price < 0.5 AND year >= 2000",
    ),
)


def of_masks(num_items: int, repeats: int) -> Iterator[dict[str, Any]]:
    """A row for each condition, with the milliseconds of each."""
    table = columns(num_items)
    with tempfile.TemporaryDirectory(prefix="rails-ray-filters-") as folder:
        others = [own for own in (by_pyarrow(table), by_duckdb(table), by_lancedb(table, folder)) if own is not None]
        for case in CASES:
            condition, kept = parse(case.filter, KINDS), KeptMasks()
            made = kept.mask((case.name,), num_items, partial(passing, condition, table))
            calls = {
                "made_ms": partial(passing, condition, table),
                "kept_ms": partial(kept.mask, (case.name,), num_items, never),
                **{name: partial(judge, case) for name, judge in others},
            }
            for name, judge in others:
                found = judge(case)
                same = found == made.sum() if isinstance(found, int) else np.array_equal(found, made)
                assert same, f"{name} must pass the same items for {case.name}"
            times = dict(zip(calls, in_turns(repeats, *calls.values()), strict=True))
            share = round(float(made.mean()), 4)
            yield {"kind": "mask", "filter": case.name, "num_items": num_items, "share": share, **times}


def columns(num_items: int) -> pa.Table:
    generator = np.random.default_rng(0)
    return pa.table(
        {
            "lang": pa.array(LANGUAGES).take(pa.array(generator.integers(len(LANGUAGES), size=num_items))),
            "price": pa.array(generator.random(num_items)),
            "year": pa.array(generator.integers(1900, 2030, size=num_items)),
        }
    )


Judge = tuple[str, Callable[[Case], NDArray[np.bool_] | int]]


def by_pyarrow(table: pa.Table) -> Judge:
    """pyarrow's engine of expressions."""
    source = ds.dataset(table)

    def judge(case: Case) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = source.to_table(columns={"passes": case.expression})["passes"].to_numpy()
        return found

    return "pyarrow_ms", judge


def by_duckdb(table: pa.Table) -> Judge | None:
    """DuckDB, over a table of its own, where it is installed."""
    if find_spec("duckdb") is None:
        return None
    import duckdb

    connection = duckdb.connect()
    connection.register("given", table)
    connection.execute("CREATE TABLE items AS SELECT * FROM given")

    def judge(case: Case) -> int:
        [(number,)] = connection.execute(f"SELECT count(*) FROM items WHERE {case.sql}").fetchall()
        return int(number)

    return "duckdb_ms", judge


def by_lancedb(table: pa.Table, folder: str) -> Judge | None:
    """LanceDB, from its files, where it is installed."""
    if find_spec("lancedb") is None:
        return None
    import lancedb

    items = lancedb.connect(folder).create_table("items", table)

    def judge(case: Case) -> int:
        return int(items.count_rows(case.sql))

    return "lancedb_ms", judge
