from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rails_ray.data.corpus import check_zeros
from rails_ray.data.dataset import DataSet
from rails_ray.data.forms import numbers
from rails_ray.data.queries import SPLITS, DenseRows, SparseRows
from rails_ray.data.sources import Sources
from rails_ray.errors import NotFoundError
from support.data_folders import real_data

NUM_QUERIES, NUM_ITEMS = 40, 12
INDICES = [[(7 * query + step) % 30 for step in range(query % 4)] for query in range(NUM_QUERIES)]
VALUES = [[0.5 * query - step for step in range(query % 4)] for query in range(NUM_QUERIES)]
VECTORS = [[float(query), -1.0, query / 8] for query in range(NUM_QUERIES)]
SPARSE = {"feature_indices": pa.array(INDICES), "feature_values": pa.array(VALUES, pa.list_(pa.float32()))}
DENSE = {"vector": pa.array(VECTORS, pa.list_(pa.float32(), 3))}


def write(folder: Path, inputs: dict[str, pa.Array]) -> Path:
    """Every query has one or two items; query 3 has none, and none is of split "valid"."""
    folder.mkdir()
    queries, rows = np.arange(NUM_QUERIES), np.arange(NUM_ITEMS)
    split = ["test" if query % 5 == 0 else "train" for query in queries]
    pairs = [(query, query * step % NUM_ITEMS) for query in range(NUM_QUERIES) if query != 3 for step in (1, 5)]
    tables = {
        "items": {"item_id": [f"item-{row}" for row in rows], "text": [f"Item {row}" for row in rows]},
        "queries": {"query_id": queries, "split": split} | inputs,
        "relevance": {"query_id": [q for q, _ in pairs], "item_id": [f"item-{row}" for _, row in pairs]},
    }
    for name, columns in tables.items():
        pq.write_table(pa.table(columns), folder / f"{name}.parquet")
    return folder


def read(folder: Path) -> DataSet:
    return numbers.read(Sources(str(folder)))


def rewrite(folder: Path, name: str, change) -> None:
    pq.write_table(change(pq.read_table(folder / f"{name}.parquet")), folder / f"{name}.parquet")


def with_column(name: str, values: pa.Array):
    return lambda table: table.set_column(table.column_names.index(name), name, values)


@pytest.fixture
def sparse(tmp_path: Path) -> Path:
    return write(tmp_path / "sparse", SPARSE)


@pytest.fixture
def dense(tmp_path: Path) -> Path:
    return write(tmp_path / "dense", DENSE)


def expected_queries() -> dict[str, list[int]]:
    """By split, where every tenth training query is held out before those without an answer are left out."""
    train = [query for query in range(NUM_QUERIES) if query % 5]
    valid = train[9::10]
    return {
        "train": [query for query in train if query not in valid and query != 3],
        "valid": valid,
        "test": list(range(0, NUM_QUERIES, 5)),
    }


def test_features_are_those_of_the_table(sparse: Path) -> None:
    data = read(sparse)
    for split, queries in expected_queries().items():
        inputs = data.queries[split].inputs
        assert isinstance(inputs, SparseRows)
        assert inputs.width == 1 + max(max(line, default=0) for line in INDICES)
        assert (inputs.starts.dtype, inputs.indices.dtype, inputs.values.dtype) == (np.int64, np.int64, np.float32)
        assert [(line.tolist(), values.tolist()) for line, values in inputs] == [
            (INDICES[query], VALUES[query]) for query in queries
        ]


def test_vectors_are_those_of_the_table(dense: Path) -> None:
    data = read(dense)
    for split, queries in expected_queries().items():
        inputs = data.queries[split].inputs
        assert isinstance(inputs, DenseRows)
        assert inputs.values.dtype == np.float32
        assert inputs.values.tolist() == [VECTORS[query] for query in queries]


@pytest.mark.parametrize("form", ["sparse", "dense"])
def test_relevance_is_that_of_the_table(form: str, request: pytest.FixtureRequest) -> None:
    data = read(request.getfixturevalue(form))
    assert data.item_ids == [f"item-{row}" for row in range(NUM_ITEMS)]
    assert data.item_inputs.tolist() == list(range(NUM_ITEMS))
    for split, queries in expected_queries().items():
        assert [rows.tolist() for rows in data.queries[split].relevant] == [
            sorted({query % NUM_ITEMS, query * 5 % NUM_ITEMS}) for query in queries
        ]


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.float64()), pa.large_list(pa.float32()), pa.list_(pa.float32(), 3), pa.list_(pa.int32())]
)
def test_lists_may_be_of_any_type(dense: Path, kind: pa.DataType) -> None:
    whole = [[float(int(value)) for value in vector] for vector in VECTORS]
    rewrite(dense, "queries", with_column("vector", pa.array(whole, kind)))
    assert read(dense).queries["test"].inputs.values.tolist() == [whole[query] for query in range(0, NUM_QUERIES, 5)]


def test_what_is_shown_is_the_title_or_else_the_text(sparse: Path) -> None:
    titles = [f"Title {row}" for row in range(NUM_ITEMS)]
    assert read(sparse).titles == [f"Item {row}" for row in range(NUM_ITEMS)]
    rewrite(sparse, "items", lambda table: table.append_column("title", pa.array(titles)))
    assert read(sparse).titles == titles
    rewrite(sparse, "items", lambda table: table.select(["item_id"]))
    assert read(sparse).titles is None


def test_the_first_queries_and_another_corpus(sparse: Path, dense: Path) -> None:
    for folder in (sparse, dense):
        queries = read(folder).queries["train"]
        head = queries.head(3)
        assert len(head) == len(head.inputs) == 3
        asked = queries.in_corpus(np.full(NUM_ITEMS, -1), 5)
        assert asked.inputs is queries.inputs
        assert set(asked.relevant.rows) == {5}
    whole = read(dense).queries["train"]
    assert (whole.head(3).inputs.values == whole.inputs.values[:3]).all()


@pytest.mark.parametrize(
    ("form", "column", "values"),
    [
        ("sparse", "feature_indices", [[index + 1 for index in line] for line in INDICES]),
        ("sparse", "feature_values", [[value + 1 for value in line] for line in VALUES]),
        ("dense", "vector", [[value + 1 for value in line] for line in VECTORS]),
    ],
)
def test_all_that_is_read_is_in_the_digest(
    form: str, column: str, values: list, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(form)
    before = read(folder).digest()
    assert read(folder).digest() == before
    rewrite(folder, "queries", with_column(column, pa.array(values)))
    assert read(folder).digest() != before


LINES = st.lists(st.lists(st.tuples(st.integers(0, 9), st.floats(-3, 3, width=32)), max_size=4), max_size=6)


@given(LINES.filter(bool), st.data())
def test_take_repeats_and_reorders(lines: list[list[tuple[int, float]]], data: st.DataObject) -> None:
    flat = [pair for line in lines for pair in line]
    made = SparseRows(
        np.cumsum([0, *map(len, lines)]),
        np.array([index for index, _ in flat], np.int64),
        np.array([value for _, value in flat], np.float32),
        10,
    )
    numbers = data.draw(st.lists(st.integers(0, len(lines) - 1), max_size=8))
    for taken, expected in (
        (made.take(np.array(numbers, np.int64)), [lines[number] for number in numbers]),
        (made.take(slice(1, 3)), lines[1:3]),
    ):
        assert taken.width == 10
        assert len(taken) == len(expected)
        assert [list(zip(*map(np.ndarray.tolist, line), strict=True)) for line in taken] == expected
    for outside in (-1, len(lines)):
        with pytest.raises(IndexError, match=str(outside)):
            made[outside]


def changed(lists: list, row: int, to: list) -> list:
    return [to if number == row else line for number, line in enumerate(lists)]


FLOATS = pa.list_(pa.float64())


@pytest.mark.parametrize(
    ("form", "column", "values", "message"),
    [
        (
            "sparse",
            "feature_values",
            pa.array(changed(VALUES, 6, [1.0]), FLOATS),
            r"'feature_values' of .*queries\.parquet must hold as many numbers as 'feature_indices' in every row, "
            r"got 1 and 2 in row 6",
        ),
        (
            "sparse",
            "feature_indices",
            pa.array(changed(INDICES, 6, [4, -2])),
            r"'feature_indices' of .*queries\.parquet must hold integers of at least 0, got -2 in row 6",
        ),
        (
            "sparse",
            "feature_indices",
            pa.array(changed(INDICES, 6, [4, 3_000_000_000])),
            r"'feature_indices' of .*queries\.parquet must hold integers below 16777216, got 3000000000 in row 6",
        ),
        (
            "sparse",
            "feature_indices",
            pa.array(changed(INDICES, 7, [9, 2, 9])),
            r"'feature_indices' of .*queries\.parquet must hold distinct integers in every row, got 9 twice in row 7",
        ),
        (
            "sparse",
            "feature_indices",
            pa.array(changed(INDICES, 6, [1, None])),
            r"'feature_indices' of .*queries\.parquet must hold numbers, got null in row 6",
        ),
        (
            "sparse",
            "feature_indices",
            pa.array(changed(INDICES, 6, [4, 0.5]), FLOATS),
            r"'feature_indices' of .*queries\.parquet must hold whole numbers, .*, got 0\.5 in row 6",
        ),
        (
            "sparse",
            "feature_values",
            pa.array(changed(VALUES, 6, [0.0, float("nan")]), FLOATS),
            r"'feature_values' of .*queries\.parquet must hold numbers that are finite in float32, got nan in row 6",
        ),
        (
            "sparse",
            "feature_values",
            pa.array(changed(VALUES, 6, [-1e300, 0.0]), FLOATS),
            r"'feature_values' of .*queries\.parquet must hold numbers that are finite in float32, "
            r"got -1e\+300 in row 6",
        ),
        (
            "dense",
            "vector",
            pa.array(changed(VECTORS, 39, [1.0, 2.0, float("inf")])),
            r"'vector' of .*queries\.parquet must hold numbers that are finite in float32, got inf in row 39",
        ),
        (
            "dense",
            "vector",
            pa.array(changed(VECTORS, 3, [1.0, 2.0])),
            r"'vector' of .*queries\.parquet must hold 3 numbers in every row as in row 0, got 2 in row 3",
        ),
        (
            "dense",
            "vector",
            pa.array([[]] * NUM_QUERIES, FLOATS),
            r"'vector' of .*queries\.parquet must hold at least 1 number, got none in row 0",
        ),
        (
            "dense",
            "vector",
            pa.array(changed(VECTORS, 2, None)),
            r"'vector' of .*queries\.parquet must have a value in every row, got null in row 2",
        ),
        (
            "dense",
            "vector",
            pa.array(["0.5"] * NUM_QUERIES),
            r"'vector' of .*queries\.parquet must be of type list of floats or list of integers, got string",
        ),
    ],
)
def test_numbers_that_break_the_contract(
    form: str, column: str, values: pa.Array, message: str, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(form)
    rewrite(folder, "queries", with_column(column, values))
    with pytest.raises(ValueError, match=message):
        read(folder)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "got none of them"),
        (SPARSE | DENSE, "got 'feature_indices' and 'feature_values' and 'vector'"),
        ({"feature_values": SPARSE["feature_values"]}, "got 'feature_values'"),
        ({"feature_indices": SPARSE["feature_indices"]} | DENSE, "got 'feature_indices' and 'vector'"),
    ],
)
def test_queries_are_of_one_form(inputs: dict[str, pa.Array], message: str, tmp_path: Path) -> None:
    either = r"queries\.parquet must have either columns 'feature_indices' and 'feature_values' or a column 'vector', "
    with pytest.raises(ValueError, match=either + message):
        read(write(tmp_path / "data", inputs))


def test_what_it_shares_with_texts_is_checked(sparse: Path) -> None:
    rewrite(sparse, "items", lambda table: pa.concat_tables([table, table.slice(0, 1)]))
    with pytest.raises(ValueError, match=r"column 'item_id' of .*items\.parquet must hold distinct ids, got 'item-0'"):
        read(sparse)
    rewrite(sparse, "items", lambda table: table.slice(1, 3))
    with pytest.raises(
        ValueError, match=r"column 'item_id' of .*relevance\.parquet must hold ids of .*, got 'item-0' in"
    ):
        read(sparse)
    (sparse / "queries.parquet").unlink()
    with pytest.raises(NotFoundError, match=r"queries\.parquet must exist, got no such file"):
        read(sparse)


@pytest.mark.parametrize(
    ("name", "width", "num_items", "sizes"),
    [
        ("delicious", 500, 983, {"train": 11_728, "valid": 1_302, "test": 3_061}),  # 14 queries have no label
        ("bibtex", 1836, 159, {"train": 4_371, "valid": 485, "test": 2_539}),
    ],
)
def test_real_features(name: str, width: int, num_items: int, sizes: dict[str, int]) -> None:
    data = numbers.read(Sources(str(real_data(name))))
    assert len(data.item_ids) == num_items
    assert {split: len(data.queries[split]) for split in SPLITS} == sizes
    assert {data.queries[split].inputs.width for split in SPLITS} == {width}
    assert data.titles[0].startswith("TAG_")


KEEP = r"leave them out, or keep them with --zero-vectors keep \(of train: --data\.zero-vectors keep\)$"


@pytest.fixture
def compared(tmp_path: Path) -> Path:
    """Vectors of items too: two items of zeros, and two queries of them."""
    folder = write(tmp_path / "compared", DENSE)
    vectors = [[0.0, -0.0] if row in (4, 9) else [1e-40 * row, 1.0 * row + 1] for row in range(NUM_ITEMS)]
    rewrite(folder, "items", lambda table: table.append_column("vector", pa.array(vectors, pa.list_(pa.float64(), 2))))
    return folder


def test_items_of_zeros_have_no_direction(compared: Path) -> None:
    sources = Sources(str(compared))
    message = (
        rf"^vectors of items must hold a number other than 0 in float32, .* for 2 of 12, .*first.* 'item-4': {KEEP}"
    )
    with pytest.raises(ValueError, match=message):
        numbers.read(sources, ["vector"])
    source = numbers.corpus(sources, {}, ["vector"]).items
    with pytest.raises(ValueError, match=message):
        check_zeros(source, [source.scan(0)])
    kept = replace(sources, refuses_zeros=False)
    assert len(numbers.read(kept, ["vector"]).item_ids) == NUM_ITEMS
    source = numbers.corpus(kept, {}, ["vector"]).items
    assert check_zeros(source, [source.scan(0)]) == 2


def test_of_several_vectors_each_must_have_a_direction(compared: Path) -> None:
    other = pa.array([[0.0, 0.0]] + [[1.0, 1.0]] * (NUM_ITEMS - 1))
    rewrite(compared, "items", lambda table: table.append_column("other", other))
    with pytest.raises(ValueError, match="got zeros for 3 of 12, the first of them 'item-0'"):
        numbers.read(Sources(str(compared)), ["vector", "other"])


def test_queries_of_zeros_are_refused_where_a_cosine_compares_them(compared: Path) -> None:
    vectors = pa.array([[0.0] * 2 if query == 5 else [1.0, 2.0] for query in range(NUM_QUERIES)])
    rewrite(compared, "queries", with_column("vector", vectors))
    rewrite(compared, "items", with_column("vector", pa.array([[1.0, 1.0]] * NUM_ITEMS)))
    with pytest.raises(ValueError, match=rf"^vectors of queries must .* for 1 of 40, the first of them 5: {KEEP}"):
        numbers.read(Sources(str(compared)), ["vector"])
    assert len(numbers.read(replace(Sources(str(compared)), refuses_zeros=False), ["vector"]).queries["train"])
    assert len(read(compared).queries["train"])  # SOLAR's chunks read numbers as they are
