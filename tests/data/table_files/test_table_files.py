"""Tables in other formats: files as other tools write them, read as the same data set as Parquet."""

import bz2
import gzip
import json
from collections.abc import Callable
from pathlib import Path

import duckdb
import pandas as pd
import polars
import pyarrow as pa
import pytest

from rails_ray.data.dataset import DataSet
from rails_ray.data.forms import FORMS, vectors_of_items
from rails_ray.data.sources import Sources
from rails_ray.data.table_files.objects import write_tables
from rails_ray.errors import ConflictError, NotFoundError

TITLES = ["1984", 'a "quoted", comma', "two\nlines", None, "007"]
ITEMS = pd.DataFrame({"item_id": [3, 1, 4, 15, 9], "title": TITLES, "text": ["one", "two", "trois", "vier", "5"]})
QUERIES = pd.DataFrame(
    {
        "query_id": ["a", "b", "c", "d", "007"],
        "text": ["x y", "1", "z", "q", "w"],
        "split": ["train", "train", "dev", "test", "test"],
    }
)
RELEVANCE = pd.DataFrame({"query_id": ["a", "b", "c", "d", "007"], "item_id": [3, 1, 4, 15, 9]})
TABLES = {"items": ITEMS, "queries": QUERIES, "relevance": RELEVANCE}
Write = Callable[[pd.DataFrame, Path], None]


def jsonl(frame: pd.DataFrame, path: Path) -> None:
    frame.to_json(path, orient="records", lines=True, force_ascii=False)


WRITERS: dict[str, Write] = {
    ".csv": lambda frame, path: frame.to_csv(path, index=False),
    ".tsv": lambda frame, path: frame.to_csv(path, index=False, sep="\t"),
    ".csv.gz": lambda frame, path: frame.to_csv(path, index=False),
    ".jsonl": jsonl,
    ".ndjson.bz2": lambda frame, path: path.write_bytes(
        bz2.compress(frame.to_json(orient="records", lines=True, force_ascii=False).encode())
    ),
}


def as_text(folder: Path) -> DataSet:
    return FORMS["text"].read(Sources(str(folder)))


def same(found: DataSet, expected: DataSet) -> bool:
    return found.digest() == expected.digest() and found.titles == expected.titles


@pytest.fixture
def parquet(tmp_path: Path) -> DataSet:
    folder = tmp_path / "parquet"
    folder.mkdir()
    for name, frame in TABLES.items():
        frame.to_parquet(folder / f"{name}.parquet", index=False)
    return as_text(folder)


@pytest.mark.parametrize("ending", WRITERS)
def test_files_of_text_are_the_same_data_as_parquet(ending: str, tmp_path: Path, parquet: DataSet) -> None:
    for name, frame in TABLES.items():
        WRITERS[ending](frame, tmp_path / f"{name}{ending}")
    assert same(as_text(tmp_path), parquet)


def test_a_folder_of_files_is_one_table(tmp_path: Path, parquet: DataSet) -> None:
    for name, frame in TABLES.items():
        (tmp_path / name).mkdir()
        for number, rows in enumerate((frame[:2], frame[2:])):
            rows.to_csv(tmp_path / name / f"part-{number}.csv", index=False)
    assert same(as_text(tmp_path), parquet)
    places = {name: str(tmp_path / name) for name in TABLES}
    assert same(FORMS["text"].read(Sources(None, places)), parquet)


def test_a_row_is_named_by_the_file_that_the_user_has(tmp_path: Path) -> None:
    for name, frame in TABLES.items():
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    QUERIES.assign(split=["train", "test", "soon", "dev", "test"]).to_csv(tmp_path / "queries.csv", index=False)
    with pytest.raises(ValueError, match=rf"'split' of {tmp_path}/queries\.csv must be one of .*, got 'soon' in row 2"):
        as_text(tmp_path)


def test_what_is_written_once_is_read_again_until_the_file_changes(tmp_path: Path) -> None:
    data, cache = tmp_path / "data", tmp_path / "cache"
    data.mkdir()
    ITEMS.to_csv(data / "items.csv", index=False)

    def read() -> list[str]:
        return list(FORMS["text"].corpus(Sources(str(data), cache=str(cache))).items.read()["item_id"].to_pylist())

    assert read() == read() == [3, 1, 4, 15, 9]
    [written] = cache.rglob("*.parquet")
    state = written.stat().st_mtime_ns
    read()
    assert written.stat().st_mtime_ns == state
    ITEMS[:2].to_csv(data / "items.csv", index=False)
    assert read() == [3, 1]


def test_vectors_in_text(tmp_path: Path) -> None:
    rows = [[0.5, -1.0], [1e-3, 2.0]]
    pd.DataFrame({"item_id": ["a", "b"], "vector": rows}).to_csv(tmp_path / "items.csv", index=False)
    items = vectors_of_items(("vector",), ()).corpus(Sources(str(tmp_path))).items.read()
    assert items["input"].to_pylist() == [[0.5, -1.0], [pytest.approx(1e-3), 2.0]]


@pytest.mark.parametrize(
    ("files", "error", "message"),
    [
        ({"items.csv": b"item_id,text\n1,a,b\n"}, ValueError, r"items\.csv must be rows of one number of fields"),
        ({"items.csv": b"item_id,text\n1,\xff\n"}, ValueError, r"items\.csv must be rows .* in UTF-8, got"),
        (
            {"items.jsonl": b'{"item_id": 1}\n{"item_id": "a"}\n'},
            ValueError,
            r"items\.jsonl must hold an object of",
        ),
        ({"items.csv.gz": b"item_id,text\n"}, ValueError, r"items\.csv\.gz must be a file of gzip"),
        ({"items.csv": b""}, ValueError, r"items\.csv must hold at least 1 row"),
        ({"items.csv": b"item_id,text\n1,a\n", "items.tsv": b"item_id\ttext\n"}, ValueError, "must be one table, got"),
        ({"item.csv": b"item_id,text\n1,a\n"}, NotFoundError, r"items\.parquet must exist, .* no items in CSV, TSV or"),
    ],
)
def test_files_that_cannot_be_read(
    files: dict[str, bytes], error: type[Exception], message: str, tmp_path: Path
) -> None:
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(error, match=message):
        FORMS["text"].corpus(Sources(str(tmp_path))).items.read()


def test_a_file_beside_parquet_of_the_same_name(tmp_path: Path) -> None:
    ITEMS.to_csv(tmp_path / "items.csv", index=False)
    ITEMS.to_parquet(tmp_path / "items.parquet")
    with pytest.raises(ValueError, match=r"must have one table items, got .*items\.parquet and .*items\.csv: name one"):
        FORMS["text"].corpus(Sources(str(tmp_path)))


# data sets


def lines(path: Path, *rows: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))


def test_beir(tmp_path: Path) -> None:
    lines(
        tmp_path / "corpus.jsonl",
        {"_id": "12", "title": "T", "text": "t", "metadata": {}},
        {"_id": "x", "title": "", "text": "u", "metadata": {"url": "v"}},
    )
    lines(tmp_path / "queries.jsonl", *({"_id": f"q{number}", "text": f"what {number}"} for number in range(5)))
    lines(tmp_path / "qrels/train.tsv", "query-id\tcorpus-id\tscore", "q0\t12\t1", "q1\tx\t2")
    lines(tmp_path / "qrels/dev.tsv", "query-id\tcorpus-id\tscore", "q2\tx\t1", "q2\t12\t0")
    lines(tmp_path / "qrels/test.tsv", "query-id\tcorpus-id\tscore", "q3\t12\t1")
    sources = Sources(str(tmp_path))
    read = FORMS["text"].read(sources)
    assert list(read.item_ids) == ["12", "x"]
    assert list(read.item_inputs) == ["T\nt", "u"]
    assert {split: list(own.inputs) for split, own in read.queries.items()} == {
        "train": ["what 0", "what 1"],
        "valid": ["what 2"],
        "test": ["what 3"],
    }
    assert sources.notes == ["relevance: 1 of 5 pairs left out, as their score is 0 or less"]


BEIR_HEADER = "query-id\tcorpus-id\tscore"


def write_beir(folder: Path, **qrels: list[str]) -> Sources:
    """Two items and two queries, and pairs in files of qrels."""
    lines(folder / "corpus.jsonl", *({"_id": own, "title": "", "text": own} for own in ("a", "b")))
    lines(folder / "queries.jsonl", *({"_id": own, "text": own} for own in ("q0", "q1")))
    for name, rows in qrels.items():
        lines(folder / f"qrels/{name}.tsv", BEIR_HEADER, *rows)
    return Sources(str(folder))


def test_files_of_qrels_are_named_after_splits(tmp_path: Path) -> None:
    read = FORMS["text"].read(write_beir(tmp_path / "good", Val=["q0\ta\t1"], TEST=["q1\tb\t1"]), [])
    assert {split: list(own.inputs) for split, own in read.queries.items()} == {
        "train": [],
        "valid": ["q0"],
        "test": ["q1"],
    }
    with pytest.raises(
        ValueError, match=r"qrels/hard\.tsv must be named after a split, one of train, .*, got 'hard': "
    ):
        FORMS["text"].read(write_beir(tmp_path / "bad", test=["q0\ta\t1"], hard=["q1\tb\t1"]), [])


def test_queries_in_two_files_of_qrels_are_counted(tmp_path: Path) -> None:
    sources = write_beir(tmp_path, train=["q0\ta\t1", "q1\ta\t1"], test=["q1\tb\t1"])
    read = FORMS["text"].read(sources, [])
    assert [list(read.queries[split].inputs) for split in ("train", "test")] == [["q0"], ["q1"]]
    assert sources.notes == [
        "relevance: 1 of 1 queries of qrels/test.tsv are in another file of qrels too, and are of split test"
    ]


def test_ids_of_beir_stand_in_quotes_where_its_writer_needs_them(tmp_path: Path) -> None:
    """As `write_to_tsv` of beir 2.2.0 writes them, lines end in a carriage return too."""
    ids = ['say "hi"', "d\t4", "plain"]
    lines(tmp_path / "corpus.jsonl", *({"_id": own, "title": "", "text": own, "metadata": {}} for own in ids))
    lines(tmp_path / "queries.jsonl", {"_id": 'q"1', "text": "what", "metadata": {}})
    rows = ["query-id\tcorpus-id\tscore", '"q""1"\t"say ""hi"""\t1', '"q""1"\t"d\t4"\t2', '"q""1"\tplain\t1']
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels/test.tsv").write_bytes("".join(f"{row}\r\n" for row in rows).encode())
    read = FORMS["text"].read(Sources(str(tmp_path)), [])
    assert read.item_ids.take(read.queries["test"].relevant.rows) == ids


def history_of(folder: Path) -> dict[object, list[object]]:
    read = FORMS["history"].read(Sources(str(folder)))
    users = zip(read.user_ids, read.histories, strict=True)
    return {user: read.item_ids.take(rows) for user, rows in users}


def test_recbole(tmp_path: Path) -> None:
    lines(
        tmp_path / "toys.inter",
        "user_id:token\titem_id:token\trating:float\ttimestamp:float",
        *(f"u{user}\t{item}\t{item}.5\t{1e9 - item}" for user in (1, 2) for item in (7, 8, 9, 10)),
    )
    lines(
        tmp_path / "toys.item",
        "item_id:token\tmovie_title:token_seq\tprice:float\tvector:float_seq",
        *(f"{item}\tthe {item}\t\t0.5 1" for item in (10, 9, 8, 7)),
    )
    assert history_of(tmp_path) == {"u1": [10, 9, 8, 7], "u2": [10, 9, 8, 7]}
    read = FORMS["history"].read(Sources(str(tmp_path)))
    assert list(read.titles or ()) == ["the 10", "the 9", "the 8", "the 7"]


@pytest.mark.parametrize("form", ["ratings.dat", "ratings.csv", "u.data"])
def test_movielens(form: str, tmp_path: Path) -> None:
    delimiter = {"ratings.dat": "::", "ratings.csv": ",", "u.data": "\t"}[form]
    rows = [(user, item, 5, 978_300_000 + item) for user in (1, 2) for item in (30, 10, 20, 40)]
    head = ["userId,movieId,rating,timestamp"] if form == "ratings.csv" else []
    lines(tmp_path / form, *head, *(delimiter.join(map(str, row)) for row in rows))
    quote = '"' if form == "ratings.csv" else ""
    movies = [(item, f"{quote}Film {item}, The (1995){quote}", "x") for item in (10, 20, 30, 40)]
    name = {"ratings.dat": "movies.dat", "ratings.csv": "movies.csv", "u.data": "u.item"}[form]
    head = ["movieId,title,genres"] if form == "ratings.csv" else []
    between = "|" if form == "u.data" else delimiter
    lines(tmp_path / name, *head, *(between.join(map(str, row)) for row in movies))
    assert history_of(tmp_path) == {1: [10, 20, 30, 40], 2: [10, 20, 30, 40]}
    read = FORMS["history"].read(Sources(str(tmp_path)))
    assert next(iter(read.titles or ())) == "Film 10, The (1995)"


@pytest.mark.parametrize("rows", [["1 5 9 7 6", "2 9 5 5 8"], ["1 5", "2 9", "1 9", "1 7", "2 5", "2 5", "1 6", "2 8"]])
def test_sequences(rows: list[str], tmp_path: Path) -> None:
    lines(tmp_path / "Beauty.txt", *rows)
    assert history_of(tmp_path) == {1: [5, 9, 7, 6], 2: [9, 5, 5, 8]}
    lines(tmp_path / "Beauty.txt", "1 5 6", "2")
    with pytest.raises(ValueError, match=r"Beauty\.txt must have a user and items in each line, got '2' alone in li"):
        history_of(tmp_path)


# tables of Python


def test_tables_of_python(tmp_path: Path, parquet: DataSet) -> None:
    relation = duckdb.from_arrow(pa.Table.from_pandas(ITEMS, preserve_index=False))
    rows = QUERIES.to_dict("records")
    folder = write_tables(str(tmp_path / "mine"), items=relation, queries=rows, relevance=polars.from_pandas(RELEVANCE))
    assert same(as_text(Path(folder)), parquet)
    categories = ITEMS.astype({"text": "category"})
    arrow = pa.Table.from_pandas(RELEVANCE, preserve_index=False)
    other = write_tables(str(tmp_path / "other"), items=categories, queries=QUERIES, relevance=arrow)
    assert same(as_text(Path(other)), parquet)
    with pytest.raises(ConflictError, match="other/items must not exist yet, got some files: name another folder"):
        write_tables(other, items=ITEMS)
    with pytest.raises(ValueError, match=r"tables must be of items, .*, got 'things'"):
        write_tables(str(tmp_path / "x"), things=ITEMS)
    with pytest.raises(ValueError, match="table items must be one that Arrow can read, got int"):
        write_tables(str(tmp_path / "x"), items=7)


def attributes_of(folder: Path, form: str, *names: str) -> list[dict[str, object]]:
    """The attributes of all items of a data set."""
    items = FORMS[form].corpus(Sources(str(folder), attributes={name: name for name in names})).items
    files = [items.scan(number).rows for number in range(items.num_files)]
    return pa.concat_tables(items.blocks(files, 0, sum(file.num_rows for file in files))).select(names).to_pylist()


def test_attributes_of_text_formats(tmp_path: Path) -> None:
    lines(tmp_path / "csv/items.csv", "item_id,text,price,code,tags", '1,a,0.5,007,"[""x"", ""y""]"', "2,b,,008,")
    expected = [{"price": 0.5, "code": "007", "tags": ["x", "y"]}, {"price": None, "code": "008", "tags": None}]
    assert attributes_of(tmp_path / "csv", "text", "price", "code", "tags") == expected
    rows = [{"item_id": 1, "text": "a", "is_new": True, "tags": ["x"]}, {"item_id": 2, "text": "b", "tags": []}]
    lines(tmp_path / "json/items.jsonl", *rows)
    expected = [{"is_new": True, "tags": ["x"]}, {"is_new": None, "tags": []}]
    assert attributes_of(tmp_path / "json", "text", "is_new", "tags") == expected


def test_attributes_of_beir(tmp_path: Path) -> None:
    rows = [
        {"_id": own, "title": "", "text": own, "metadata": {}, "year": year} for own, year in (("a", 2025), ("b", None))
    ]
    lines(tmp_path / "corpus.jsonl", *rows)
    assert attributes_of(tmp_path, "text", "year") == [{"year": 2025}, {"year": None}]
    with pytest.raises(ValueError, match="got 'metadata': there are item_id, title, text, year"):
        attributes_of(tmp_path, "text", "metadata")


def test_attributes_of_recbole(tmp_path: Path) -> None:
    interactions = (f"u{user}\t{item}\t{item}" for user in (1, 2) for item in (6, 7, 8, 9))
    lines(tmp_path / "toys.inter", "user_id:token\titem_id:token\ttimestamp:float", *interactions)
    heads = "item_id:token\tmovie_title:token_seq\tclass:token_seq\tyear:token"
    lines(
        tmp_path / "toys.item",
        heads,
        "6\tZero\tA\t0",
        "7\tThe A\tComedy Drama\t1995",
        "8\tThe B\t\t1996",
        "9\tC\tDrama\t",
    )
    assert attributes_of(tmp_path, "history", "class", "year", "movie_title") == [
        {"class": ["A"], "year": 0, "movie_title": "Zero"},
        {"class": ["Comedy", "Drama"], "year": 1995, "movie_title": "The A"},
        {"class": None, "year": 1996, "movie_title": "The B"},
        {"class": ["Drama"], "year": None, "movie_title": "C"},
    ]
    read = FORMS["history"].read(Sources(str(tmp_path), columns={"items.title": "class"}))
    assert list(read.titles or ()) == ["A", "Comedy Drama", "", "Drama"]


@pytest.mark.parametrize("form", ["ratings.dat", "ratings.csv", "u.data"])
def test_genres_of_movielens(form: str, tmp_path: Path) -> None:
    name, between, delimiter = {
        "ratings.dat": ("movies.dat", "::", "::"),
        "ratings.csv": ("movies.csv", ",", ","),
        "u.data": ("u.item", "|", "\t"),
    }[form]
    rows = (
        delimiter.join(map(str, (user, item, 5, 978_300_000 + item))) for user in (1, 2) for item in (10, 20, 30, 40)
    )
    lines(tmp_path / form, *(["userId,movieId,rating,timestamp"] if form == "ratings.csv" else []), *rows)
    flags = {"Comedy|War": [5, 17], "Drama": [8]}
    films = [(10, "A", "Comedy|War"), (20, "B", "Drama"), (30, "C", "Drama"), (40, "D", "Drama")]
    if form == "u.data":
        of_flags = {own: ["1" if place in places else "0" for place in range(19)] for own, places in flags.items()}
        found = (
            between.join([str(item), title, "01-Jan-1995", "", "url", *of_flags[own]]) for item, title, own in films
        )
    else:
        found = (between.join(map(str, film)) for film in films)
    lines(tmp_path / name, *(["movieId,title,genres"] if form == "ratings.csv" else []), *found)
    genres = [{"genres": own.split("|")} for _, _, own in films]
    assert attributes_of(tmp_path, "history", "genres") == genres


def test_gzip_of_two_members_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "items.csv.gz").write_bytes(gzip.compress(b"item_id,text\n1,a\n") + gzip.compress(b"2,b\n"))
    items = FORMS["text"].corpus(Sources(str(tmp_path))).items.read()
    assert items["item_id"].to_pylist() == [1, 2]
