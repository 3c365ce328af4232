"""All tables of a folder that another tool has written.

| format    | its files                                                                                              |
|-----------|--------------------------------------------------------------------------------------------------------|
| BEIR      | `corpus.jsonl`, `queries.jsonl`, `qrels/{train,dev,test}.tsv`                                          |
| RecBole   | `NAME.inter`, perhaps `NAME.item` and `NAME.user`: tabs, and a type behind each column's name          |
| MovieLens | `ratings.dat` and `movies.dat` (`::`), `ratings.csv` and `movies.csv`, or `u.data` and `u.item`        |
| sequences | one `.txt`: a user and their items in time order in each line, all without spaces                      |

A data set without a table of items has those that interactions name, in the order in which they first occur. Items
keep their other columns, of which `--data.attributes` stores some: of BEIR those that are no objects, of RecBole all,
of MovieLens the genres.

Source: https://github.com/beir-cellar/beir, https://recbole.io/docs/user_guide/data/atomic_files.html,
https://grouplens.org/datasets/movielens.
"""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rails_ray.data.queries import SPLIT_NAMES, SPLITS
from rails_ray.data.table_files.text_files import delimited, ending_of, json_lines, opened, renamed, typed
from rails_ray.storage.filesystem import Storage

COMPRESSED = ("", ".gz", ".bz2", ".zst")


@dataclass(frozen=True)
class Folder:
    """The files of a folder.

    texts: columns of items that are texts, whatever they hold.
    notes: what its format left out.
    """

    storage: Storage
    paths: tuple[str, ...]
    texts: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)

    def name(self, path: str) -> str:
        return f"{self.storage}/{path}"

    def find(self, *names: str) -> str | None:
        """The first of some files that is there, compressed or not."""
        return next((f"{name}{end}" for name in names for end in COMPRESSED if f"{name}{end}" in self.paths), None)

    def ending(self, ending: str) -> str | None:
        """The only file with an ending; None if there are none, or several."""
        found = [path for path in self.paths if path.endswith(ending)]
        return found[0] if len(found) == 1 else None

    def read(self, path: str, delimiter: str, columns: list[str] | None = None, encoding: str = "utf-8") -> pa.Table:
        """The texts of a delimited file; a delimiter may have several characters."""
        data = opened(self.storage, path)
        if encoding != "utf-8" or len(delimiter) > 1:
            text = data.getvalue().decode(encoding, errors="replace")
            data = io.BytesIO(text.replace(delimiter, "\x1f").encode())
            delimiter = "\x1f"
        return delimited(data, self.name(path), delimiter, columns, has_quotes=False)


@dataclass(frozen=True)
class Format:
    """
    files: those that show that a folder is of the format; None if it is not.
    read: makes its tables of them.
    """

    name: str
    files: Callable[[Folder], tuple[str, ...] | None]
    read: Callable[[Folder, tuple[str, ...]], dict[str, pa.Table]]


def _beir_files(folder: Folder) -> tuple[str, ...] | None:
    corpus, queries = folder.find("corpus.jsonl"), folder.find("queries.jsonl")
    qrels = [path for path in folder.paths if path.startswith("qrels/") and ending_of(path) == ".tsv"]
    return None if corpus is None else (corpus, *filter(None, [queries]), *qrels)


def _beir(folder: Folder, files: tuple[str, ...]) -> dict[str, pa.Table]:
    corpus, *others = files
    items = json_lines(opened(folder.storage, corpus), folder.name(corpus))
    kept = [field.name for field in items.schema if _is_plain(field.type) and field.name not in ("_id", "item_id")]
    found = {"items": renamed(items, {"_id": "item_id", **dict(zip(kept, kept, strict=True))})}
    qrels = [path for path in others if path.startswith("qrels/")]
    if not qrels or len(qrels) == len(others):
        return found
    relevance, splits = list[pa.Table](), dict[str, str]()
    for path in sorted(qrels, key=lambda path: SPLITS.index(_split_of(folder, path))):
        table = delimited(opened(folder.storage, path), folder.name(path), "\t")
        if len(table.column_names) != 3:
            raise ValueError(
                f"{folder.name(path)} must have 3 columns, query, item and score, got {table.column_names}"
            )
        table = table.rename_columns(["query_id", "item_id", "score"])
        split = _split_of(folder, path)
        own = dict.fromkeys(table["query_id"].unique().to_pylist(), split)
        num_again = len(own.keys() & splits.keys())
        splits |= own
        if num_again:
            folder.notes.append(
                f"relevance: {num_again:,} of {len(own):,} queries of {path} are in another file of qrels too, and are "
                f"of split {split}"
            )
        relevance.append(table)
    pairs = pa.concat_tables(relevance)
    pairs = pairs.set_column(2, "score", typed(pairs["score"]).cast(pa.float64()))
    is_relevant = pc.greater(pairs["score"], 0)
    num_other = len(pairs) - int(pc.sum(is_relevant).as_py() or 0)
    if num_other:
        folder.notes.append(f"relevance: {num_other:,} of {len(pairs):,} pairs left out, as their score is 0 or less")
    queries = json_lines(opened(folder.storage, others[0]), folder.name(others[0]))
    ids = queries["_id"].to_pylist()
    split = pa.array([splits.get(query, "train") for query in ids], pa.large_string())
    found["queries"] = renamed(queries, {"_id": "query_id", "text": "text"}).append_column("split", split)
    found["relevance"] = pairs.filter(is_relevant)
    return found


def _is_plain(kind: pa.DataType) -> bool:
    """Decide whether values are no objects, nor lists of them: Parquet has no objects without fields."""
    return not pa.types.is_nested(kind) or (pa.types.is_list(kind) and not pa.types.is_nested(kind.value_type))


def _split_of(folder: Folder, path: str) -> str:
    """The split of a file of pairs; of a query in several files that of the last split counts.

    Raises:
        ValueError: if the file is not named after one.
    """
    name = path.rpartition("/")[2].partition(".")[0]
    if name.casefold() not in SPLIT_NAMES:
        raise ValueError(
            f"{folder.name(path)} must be named after a split, one of {', '.join(SPLIT_NAMES)}, got {name!r}: rename "
            "it, or take it out of the data"
        )
    return SPLIT_NAMES[name.casefold()]


def _recbole_files(folder: Folder) -> tuple[str, ...] | None:
    interactions = folder.ending(".inter")
    return (
        None if interactions is None else tuple(filter(None, [interactions, *map(folder.ending, (".item", ".user"))]))
    )


def _recbole(folder: Folder, files: tuple[str, ...]) -> dict[str, pa.Table]:
    found = {}
    for path in files:
        table = folder.read(path, "\t")
        kinds = dict(name.rpartition(":")[::2] for name in table.column_names)
        if "" in kinds:
            raise ValueError(
                f"{folder.name(path)} must name a type behind each column, such as item_id:token, got "
                f"{', '.join(table.column_names)}"
            )
        name = {".inter": "interactions", ".item": "items", ".user": "users"}[path[path.rindex(".") :]]
        columns = dict[str, pa.ChunkedArray]()
        for (column, kind), values in zip(kinds.items(), table.columns, strict=True):
            is_text = name != "items" or column in folder.texts or column.endswith(TITLES)
            columns[column] = _of_kind(values, "text" if is_text and kind == "token_seq" else kind)
        found[name] = pa.table(columns)
    if "items" in found and "title" not in found["items"].column_names:
        titles = [name for name in found["items"].column_names if name.endswith(TITLES)]
        if titles:
            found["items"] = found["items"].append_column("title", found["items"][titles[0]].cast(pa.large_string()))
    return _with_items(found)


TITLES = ("title", "name")  # endings of names of columns of RecBole that have the items' titles


def _of_kind(values: pa.ChunkedArray, kind: str) -> pa.ChunkedArray:
    """The values of RecBole's types; of any other they are texts."""
    if kind == "token":
        return typed(values) if pc.all(pc.match_substring_regex(values.drop_null(), r"^-?\d+$")).as_py() else values
    if kind == "token_seq":
        return pc.split_pattern(values, " ")
    if kind == "float":
        return values.cast(pa.float64())
    if kind == "float_seq":
        return pa.chunked_array([pa.array([list(map(float, (one or "").split())) for one in values.to_pylist()])])
    return values


MOVIELENS = {  # the file of ratings: how it is delimited and encoded, and the file of items
    "ratings.dat": ("::", "latin-1", "movies.dat"),
    "ratings.csv": (",", "utf-8", "movies.csv"),
    "u.data": ("\t", "latin-1", "u.item"),
}
RATINGS = ["user_id", "item_id", "rating", "timestamp"]
GENRES = (  # of u.item, each a column of 0 and 1 from the sixth on
    *("unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary", "Drama"),
    *("Fantasy", "Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War", "Western"),
)


def _movielens_files(folder: Folder) -> tuple[str, ...] | None:
    for ratings, (_, _, movies) in MOVIELENS.items():
        if ratings in folder.paths:
            return (ratings, movies) if movies in folder.paths else (ratings,)
    return None


def _movielens(folder: Folder, files: tuple[str, ...]) -> dict[str, pa.Table]:
    delimiter, encoding, _ = MOVIELENS[files[0]]
    if delimiter == ",":
        ratings, *tables = (delimited(opened(folder.storage, path), folder.name(path), ",") for path in files)
        rows = [list(row.values()) for table in tables for row in table.to_pylist()]
    else:
        ratings = folder.read(files[0], delimiter, RATINGS, encoding)
        rows = [row for path in files[1:] for row in _lines(folder, path, "|" if path == "u.item" else "::")]
    if len(ratings.column_names) != len(RATINGS):
        raise ValueError(
            f"{folder.name(files[0])} must have 4 columns, user, item, rating and time, got {ratings.column_names}"
        )
    ratings = ratings.rename_columns(RATINGS)
    found = {"interactions": pa.table({name: typed(ratings[name]) for name in RATINGS})}
    if len(files) > 1:
        ids, titles = (
            pa.chunked_array([pa.array([row[place] for row in rows], pa.large_string())]) for place in (0, 1)
        )
        genres = pa.array(list(map(_genres, rows)), pa.list_(pa.string()))
        named = {} if genres.null_count == len(genres) else {"genres": genres}
        found["items"] = pa.table({"item_id": typed(ids), "title": titles, **named})
    return _with_items(found)


def _lines(folder: Folder, path: str, delimiter: str) -> list[list[str]]:
    """The fields of each line, in MovieLens' encoding."""
    text = opened(folder.storage, path).getvalue().decode("latin-1")
    return [line.split(delimiter) for line in text.splitlines() if line]


def _genres(row: Sequence[str]) -> list[str] | None:
    """The genres of a film: the third field, or flags."""
    if len(row) == 5 + len(GENRES):
        return [genre for genre, flag in zip(GENRES, row[5:], strict=True) if flag == "1"]
    return row[2].split("|") if len(row) == 3 and row[2] else None


def _sequence_files(folder: Folder) -> tuple[str, ...] | None:
    found = [path for path in folder.paths if path.endswith((".txt", ".txt.gz")) and "readme" not in path.lower()]
    return (found[0],) if len(found) == 1 and "/" not in found[0] else None


def _sequences(folder: Folder, files: tuple[str, ...]) -> dict[str, pa.Table]:
    [path] = files
    lines = [line.split() for line in opened(folder.storage, path).getvalue().decode().splitlines()]
    for number, line in enumerate(lines):
        if len(line) == 1:
            raise ValueError(
                f"{folder.name(path)} must have a user and items in each line, got {line[0]!r} alone in line {number}"
            )
    lengths = np.array([max(len(line) - 1, 0) for line in lines], np.int64)
    users = pa.chunked_array([pa.array(np.repeat([line[0] if line else "" for line in lines], lengths))])
    items = pa.chunked_array([pa.array([item for line in lines for item in line[1:]], pa.large_string())])
    columns = {"user_id": typed(users), "item_id": typed(items), "position": pa.array(np.arange(lengths.sum()))}
    return _with_items({"interactions": pa.table(columns)})


def _with_items(tables: dict[str, pa.Table]) -> dict[str, pa.Table]:
    """The tables, with the items that interactions name if there is no table of them."""
    if "items" in tables:
        return tables
    return {**tables, "items": pa.table({"item_id": tables["interactions"]["item_id"].unique()})}


FORMATS = (
    Format("BEIR", _beir_files, _beir),
    Format("RecBole", _recbole_files, _recbole),
    Format("MovieLens", _movielens_files, _movielens),
    Format("sequences", _sequence_files, _sequences),
)


def format_of(folder: Folder) -> tuple[Format, tuple[str, ...]] | None:
    """The format of a folder, and its files."""
    return next(((own, files) for own in FORMATS if (files := own.files(folder)) is not None), None)
