"""A data folder made of files of vectors, and files made of a data folder."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rails_ray.data.forms import numbers
from rails_ray.data.sources import Sources
from rails_ray.data.vector_files.folder import PART_BYTES, UNFINISHED, export_folder, import_folder, open_items
from rails_ray.data.vector_files.formats import READERS, WRITERS, open_lists, open_vectors, write_vectors
from rails_ray.data.vector_files.truth import Lengths, is_cosine
from rails_ray.data.vectors import as_column
from rails_ray.errors import ConflictError, DamagedError, NotFoundError
from rails_ray.storage.filesystem import Storage
from support.vector_files import as_ivecs, cut, read, rows, unit

FIRST_PART = r"part-000000000000-[0-9a-f]{32}\.parquet"


def neighbors(items: np.ndarray, queries: np.ndarray, k: int) -> np.ndarray:
    return np.argsort(-(unit(queries) @ unit(items).T), axis=1)[:, :k]


def nearest(items: np.ndarray, queries: np.ndarray, k: int) -> np.ndarray:
    return np.argsort(((queries[:, None] - items[None]) ** 2).sum(2), axis=1)[:, :k]


def bench_file(path: Path, items: np.ndarray, distance: str | bytes, truth: np.ndarray, queries: np.ndarray) -> str:
    with h5py.File(path, "w") as file:
        file.attrs["distance"] = distance
        file["train"], file["test"], file["neighbors"] = items, queries, truth.astype(np.int32)
        file["distances"] = rows(*truth.shape)
    return str(path)


def test_a_data_folder_of_a_file_of_ann_benchmarks(tmp_path: Path) -> None:
    items, queries = rows(50, 4), rows(6, 4, seed=1)
    truth = neighbors(items, queries, 3)
    source = bench_file(tmp_path / "glove.hdf5", items, "angular", truth, queries)
    folder = Storage(str(tmp_path / "data"))
    told = import_folder(source, folder)
    assert (told.num_items, told.width, told.num_queries, told.num_pairs, told.distance) == (50, 4, 6, 18, "angular")
    least, most = np.linalg.norm(items, axis=1).min(), np.linalg.norm(items, axis=1).max()
    assert str(told) == (
        f"50 items of width 4 and of lengths {least:.4g} to {most:.4g}, 6 queries, 18 neighbors; "
        "search by cosine orders these items as the file's distance, angular"
    )
    [name] = folder.list("items")
    assert re.fullmatch(FIRST_PART, name)
    found = pq.read_table(tmp_path / "data" / "items" / name)
    assert found["item_id"].to_pylist() == list(range(50))
    assert found.schema.field("vector").type == pa.list_(pa.float32(), 4)
    assert found["vector"].to_pylist() == items.tolist()
    asked = pq.read_table(tmp_path / "data" / "queries.parquet").to_pydict()
    assert asked == {"query_id": list(range(6)), "vector": queries.tolist(), "split": ["test"] * 6}
    pairs = pq.read_table(tmp_path / "data" / "relevance.parquet").to_pydict()
    assert list(zip(pairs["query_id"], pairs["rank"], pairs["item_id"], strict=True)) == [
        (query, rank, truth[query, rank]) for query in range(6) for rank in range(3)
    ]
    assert sorted(folder.list(".")) == ["items", "queries.parquet", "relevance.parquet"]


def test_a_data_folder_is_a_data_set_of_vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`numbers` reads it: items in several parts, with ids that are strings."""
    monkeypatch.setattr("rails_ray.data.vector_files.folder.PART_BYTES", 4 * 4 * 20)
    items, queries = rows(50, 4), rows(6, 4, seed=1)
    truth = neighbors(items, queries, 2)
    ids = [f"item-{row}" for row in range(50)]
    write_vectors(str(tmp_path / "items.parquet"), 4, cut(items, 7), ids)
    write_vectors(str(tmp_path / "queries.npy"), 4, [queries])
    (tmp_path / "truth.ivecs").write_bytes(as_ivecs(truth))
    folder = tmp_path / "data"
    import_folder(
        str(tmp_path / "items.parquet"),
        Storage(str(folder)),
        queries=str(tmp_path / "queries.npy"),
        truth=str(tmp_path / "truth.ivecs"),
        distance="cosine",
    )
    names = sorted(path.name for path in (folder / "items").iterdir())
    assert [name[:18] for name in names] == [f"part-{first:012d}-" for first in (0, 20, 40)]
    asked = pq.read_table(folder / "queries.parquet")
    splits = pa.array(["train", "train", "valid", "valid", "test", "test"])
    pq.write_table(asked.set_column(2, "split", splits), folder / "queries.parquet")
    data = numbers.read(Sources(str(folder)), ["vector"])
    assert list(data.item_ids) == ids
    assert np.array_equal(np.asarray(data.item_inputs), items)
    assert np.array_equal(np.asarray(data.queries["test"].inputs), queries[4:])
    assert [line.tolist() for line in data.queries["test"].relevant] == np.sort(truth[4:], axis=1).tolist()


@pytest.mark.parametrize("format", WRITERS)
def test_a_folder_there_and_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str) -> None:
    monkeypatch.setattr("rails_ray.data.vector_files.folder.PART_BYTES", 4 * 3 * 4)
    source, folder = tmp_path / f"v.{format}", Storage(str(tmp_path / "data"))
    ids = {"parquet": list("abcdefghij"), "faiss": list(range(9, -1, -1))}.get(format)
    write_vectors(str(source), 3, [rows(10, 3)], ids)
    import_folder(str(source), folder)
    assert len(folder.list("items")) == 3
    opened = open_items(folder)
    assert opened.ids is not None
    assert opened.ids.to_pylist() == (ids or list(range(10)))
    assert (opened.num_rows, opened.width) == (10, 3)
    export_folder(folder, str(tmp_path / f"again.{format}"))
    assert np.array_equal(read(tmp_path / f"again.{format}"), rows(10, 3))
    again = open_vectors(str(tmp_path / f"again.{format}")).ids
    assert ids is None or (again is not None and again.to_pylist() == ids)
    export_folder(folder, str(tmp_path / "plain.npy"), use_ids=False)
    assert np.array_equal(np.load(tmp_path / "plain.npy"), rows(10, 3))


def test_strings_are_refused_where_they_have_no_room(tmp_path: Path) -> None:
    write_vectors(str(tmp_path / "v.parquet"), 3, [rows(2, 3)], ["a", "b"])
    folder = Storage(str(tmp_path / "data"))
    import_folder(str(tmp_path / "v.parquet"), folder)
    with pytest.raises(
        ValueError, match="must be its row numbers, as its format holds no ids, got 'a' in row 0: write"
    ):
        export_folder(folder, str(tmp_path / "v.npy"))


def euclidean(tmp_path: Path, items: np.ndarray, distance: str = "euclidean") -> str:
    queries = rows(6, 4, seed=1)
    return bench_file(tmp_path / "sift.hdf5", items, distance, nearest(items, queries, 3), queries)


@pytest.mark.parametrize("distance", ["hamming", "Jaccard"])
def test_neighbors_that_are_never_those_by_cosine_are_refused_before_anything_is_written(
    tmp_path: Path, distance: str
) -> None:
    source, folder = euclidean(tmp_path, rows(50, 4), distance), Storage(str(tmp_path / "data"))
    with pytest.raises(
        ValueError, match=f"must be the neighbors by cosine, got those by the distance '{distance}': import without"
    ):
        import_folder(source, folder)
    assert not (tmp_path / "data").exists()
    assert str(import_folder(source, folder, use_truth=False)).endswith(f"than the file's distance, {distance}")


@pytest.mark.parametrize("distance", ["euclidean", "dot"])
def test_neighbors_by_another_distance_are_refused(tmp_path: Path, distance: str) -> None:
    source, folder = euclidean(tmp_path, rows(50, 4), distance), Storage(str(tmp_path / "data"))
    with pytest.raises(
        ValueError, match=f"must be the neighbors by cosine, got those by the distance '{distance}' of i"
    ):
        import_folder(source, folder)
    assert folder.list("items") == folder.list("queries") == []
    told = import_folder(source, folder, use_truth=False)
    assert str(told).endswith(f"orders these items otherwise than the file's distance, {distance}")
    assert (told.num_queries, told.num_pairs) == (6, 0)
    assert not folder.exists("relevance.parquet")


@pytest.mark.parametrize("length", [1, 7.5])
def test_euclidean_neighbors_of_items_of_one_length_are_those_by_cosine(tmp_path: Path, length: float) -> None:
    items, queries = (unit(rows(50, 4)) * length).astype(np.float32), rows(6, 4, seed=1)
    assert np.array_equal(nearest(items, queries, 3), neighbors(items, queries, 3))
    folder = Storage(str(tmp_path / "data"))
    told = import_folder(euclidean(tmp_path, items), folder)
    assert str(told).endswith("orders these items as the file's distance, euclidean")
    assert f"of length {length}" in str(told)
    assert folder.exists("relevance.parquet")


@given(st.integers(0, 99), st.sampled_from(["euclidean", "dot"]), st.booleans())
def test_what_is_called_cosine_orders_as_cosine(seed: int, distance: str, are_equal: bool) -> None:
    items, queries = rows(9, 3, seed), rows(4, 3, seed + 1)
    items = unit(items) * 2 if are_equal else items
    lengths = Lengths()
    for block in cut(items, 4):
        lengths.add(block)
    order = nearest(items, queries, 9) if distance == "euclidean" else np.argsort(-queries @ items.T, axis=1)
    is_same = np.array_equal(order, neighbors(items, queries, 9))
    assert is_same or not is_cosine(distance, lengths)
    assert is_cosine(distance, lengths) == are_equal


def test_neighbors_without_a_distance(tmp_path: Path) -> None:
    def imported(items: np.ndarray, name: str, **options: Any) -> Any:
        queries = rows(6, 4, seed=1)
        write_vectors(str(tmp_path / "items.fvecs"), 4, [items])
        write_vectors(str(tmp_path / "queries.fvecs"), 4, [queries])
        (tmp_path / "truth.ivecs").write_bytes(as_ivecs(neighbors(items, queries, 3)))
        paths = {"queries": str(tmp_path / "queries.fvecs"), "truth": str(tmp_path / "truth.ivecs")}
        return import_folder(str(tmp_path / "items.fvecs"), Storage(str(tmp_path / name)), **{**paths, **options})

    with pytest.raises(ValueError, match=r"or all items one length, got items of lengths .* and no distance: give"):
        imported(rows(50, 4), "unknown")
    with pytest.raises(ValueError, match="got those by the distance 'euclidean' of items of lengths"):
        imported(rows(50, 4), "unknown", distance="euclidean")
    assert imported(rows(50, 4), "angular", distance="angular").num_pairs == 18
    assert imported(unit(rows(50, 4)), "normal").num_pairs == 18
    with pytest.raises(ValueError, match="distance must be one of angular, cosine, dot, euclidean, ip, l2, got 'l3'"):
        imported(rows(50, 4), "unknown", distance="l3")
    with pytest.raises(ValueError, match=r"distance must be given with neighbors, got 'dot' without any"):
        imported(rows(50, 4), "unknown", distance="dot", truth=None)
    with pytest.raises(ValueError, match=r"truth.ivecs must come with the queries .*, got none: give them too"):
        imported(rows(50, 4), "unknown", queries=None)
    with pytest.raises(ValueError, match="split must be one of train, valid, test, got 'dev'"):
        imported(rows(50, 4), "unknown", split="dev")
    source = bench_file(tmp_path / "b.h5", rows(50, 4), b"angular", np.zeros((6, 2), int), rows(6, 4))
    with pytest.raises(ValueError, match=r"distance must be 'angular' as .* says, got 'dot'"):
        imported(rows(50, 4), "unknown", truth=source, distance="dot")
    assert imported(rows(50, 4), "of both", queries=source, truth=source).num_pairs == 12


def test_neighbors_beyond_64_bits(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "v.h5", "w") as file:
        file["neighbors"] = np.array([[1, 2], [3, 2**63]], np.uint64)
    with pytest.raises(ValueError, match=r"must hold integers below 2\*\*63, got 9223372036854775808 in row 1"):
        list(open_lists(str(tmp_path / "v.h5")).blocks())


@pytest.mark.long
def test_a_data_folder_on_s3(tmp_path: Path, s3: str) -> None:
    folder = Storage(f"{s3}/data")
    source = bench_file(tmp_path / "v.h5", rows(50, 4), "angular", np.zeros((6, 2)), rows(6, 4))
    import_folder(source, folder)
    assert folder.list(".") == ["items", "queries.parquet", "relevance.parquet"]
    export_folder(folder, str(tmp_path / "v.fbin"))
    assert np.array_equal(read(tmp_path / "v.fbin"), rows(50, 4))
    with pytest.raises(ValueError, match="must hold no data set yet, got a table of items: choose another folder"):
        import_folder(source, folder)


def test_files_that_do_not_fit_each_other(tmp_path: Path) -> None:
    folder, items, queries = Storage(str(tmp_path / "data")), rows(50, 4), rows(6, 4)
    cases = [
        (np.zeros((6, 2), int) - 1, queries, "must hold rows of items, 0 to 49, got -1 in row 0"),
        (np.full((6, 2), 50), queries, "must hold rows of items, 0 to 49, got 50 in row 0"),
        (np.zeros((5, 2), int), queries, "must hold a list for each of the 6 rows of .*, got 5"),
        (np.zeros((6, 2), int), rows(6, 5), "'test' of .* must hold rows of 4 numbers as 'train' of .*, got 5"),
    ]
    for truth, asked, message in cases:
        source = bench_file(tmp_path / "v.h5", items, "angular", truth, asked)
        with pytest.raises(ValueError, match=message):
            import_folder(source, folder)
        assert folder.list(".") in ([], ["items"])
        assert folder.list("items") == []


def test_a_folder_that_holds_a_data_set_is_left_alone(tmp_path: Path) -> None:
    write_vectors(str(tmp_path / "v.npy"), 3, [rows(2, 3)])
    for name in ("items", "queries", "relevance"):
        folder = Storage(str(tmp_path / f"with-{name}"))
        folder.write(f"{name}.parquet", b"theirs")
        with pytest.raises(ValueError, match=f"must hold no data set yet, got a table of {name}: choose another"):
            import_folder(str(tmp_path / "v.npy"), folder)
        assert folder.list(".") == [f"{name}.parquet"]


def test_an_import_that_was_cut_off_is_no_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rails_ray.data.vector_files.folder.PART_BYTES", 4 * 3 * 4)
    folder = Storage(str(tmp_path / "data"))
    write_vectors(str(tmp_path / "v.npy"), 3, [rows(10, 3)])
    with monkeypatch.context() as cut_off:
        cut_off.setattr("rails_ray.data.vector_files.folder.as_column", lambda block: stop(block))
        with pytest.raises(KeyboardInterrupt):
            import_folder(str(tmp_path / "v.npy"), folder)
    marker, part = folder.list("items")
    assert marker == "import-not-finished.parquet"
    assert re.fullmatch(FIRST_PART, part)
    with pytest.raises(ValueError, match=r"items/import-not-finished.parquet must be a Parquet file"):
        numbers.item_files(Sources(str(folder)), ["vector"])
    with pytest.raises(DamagedError, match="must hold all items of an import, got one that was cut off: import them a"):
        open_items(folder)
    write_vectors(str(tmp_path / "v.npy"), 3, [rows(3, 3)])
    import_folder(str(tmp_path / "v.npy"), folder)
    assert open_items(folder).num_rows == 3
    assert len(folder.list("items")) == 1


def stop(block: np.ndarray) -> Any:
    """The column of a block, but the second one is where Ctrl-C comes."""
    if not np.array_equal(block, rows(10, 3)[:4]):
        raise KeyboardInterrupt
    return as_column(block)


def test_two_imports_into_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Storage(str(tmp_path / "data"))
    write_vectors(str(tmp_path / "v.npy"), 3, [rows(2, 3)])
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(
            "rails_ray.data.vector_files.folder.Lengths.add", lambda *_: folder.write(UNFINISHED, b"other")
        )
        with pytest.raises(
            ConflictError, match="must be filled by one import at a time, got another one: import again"
        ):
            import_folder(str(tmp_path / "v.npy"), folder)


class Meanwhile:
    """A function, before whose second call something is done."""

    def __init__(self, called: Callable[..., Any], done: Callable[[], None]) -> None:
        self.called, self.done = called, done
        self.num_calls = 0

    def __call__(self, *arguments: Any) -> Any:
        self.num_calls += 1
        if self.num_calls == 2:
            self.done()
        return self.called(*arguments)


@pytest.mark.parametrize("at", ["between two parts", "before a part lands", "before it fails"])
def test_an_import_that_was_taken_for_cut_off_leaves_the_folder_to_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    monkeypatch.setattr("rails_ray.data.vector_files.folder.PART_BYTES", 4 * 3 * 4)
    folder, of_other = Storage(str(tmp_path / "data")), rows(3, 3, seed=1)
    write_vectors(str(tmp_path / "mine.npy"), 3, [rows(12, 3)])
    write_vectors(str(tmp_path / "other.npy"), 3, [of_other])

    def other() -> None:
        import_folder(str(tmp_path / "other.npy"), folder)
        if at == "before it fails":
            raise ValueError("numbers must be finite")

    if at == "before a part lands":
        monkeypatch.setattr(folder, "write", Meanwhile(folder.write, other))
    else:
        monkeypatch.setattr("rails_ray.data.vector_files.folder.as_column", Meanwhile(as_column, other))
    with pytest.raises(ValueError if at == "before it fails" else ConflictError):
        import_folder(str(tmp_path / "mine.npy"), folder)
    assert np.array_equal(np.concatenate(list(open_items(folder).blocks())), of_other)
    assert len(folder.list("items")) == 1


def test_a_part_that_another_import_wrote_too_late_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Storage(str(tmp_path / "data"))
    write_vectors(str(tmp_path / "v.npy"), 3, [rows(2, 3)])
    late = f"items/part-{7:012d}-{'a' * 32}.parquet"
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr("rails_ray.data.vector_files.folder.Lengths.add", lambda *_: folder.write(late, b"late"))
        import_folder(str(tmp_path / "v.npy"), folder)
    assert open_items(folder).num_rows == 2
    assert not folder.exists(late)


def test_there_is_no_folder(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"items.parquet must exist, got no such file, no items"):
        open_items(Storage(str(tmp_path)))
    assert PART_BYTES == 2**26
    assert set(WRITERS) <= set(READERS)
