"""Lists of any kind are read, of numpy, torch and Arrow, iterators and views; what is no list, or has no order where
that counts, is refused in one sentence."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from rails_ray.serving import local
from rails_ray.serving.local import LocalVersion
from support.examples import publish_here


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lists")
    publish_here(folder)
    return folder


@pytest.fixture(scope="module")
def version(root: Path) -> LocalVersion:
    return local.open(str(root))


def test_one_value_in_place_of_a_list_is_not_taken_to_pieces(version: LocalVersion) -> None:
    """The characters of a string are no ids, and the keys of a query are no texts."""
    with pytest.raises(ValueError, match="items must be a list, got 'ab' alone"):
        version.explain("red", "ab")
    with pytest.raises(ValueError, match="queries must be a list, got 'red' alone"):
        version.feedback("red", [["ab"]])
    with pytest.raises(ValueError, match=r"relevant\[0\] must be a list, got 'ab' alone"):
        version.feedback(["red"], ["ab"])
    with pytest.raises(ValueError, match="texts must be a list, got 'red' alone"):
        version.embed("red")
    with pytest.raises(ValueError, match="ids must be a list, got 'ab' alone"):
        version.delete("ab")
    with pytest.raises(ValueError, match="inputs must be a list, got 'ab' alone"):
        version.add("ab", ["x", "y"])
    with pytest.raises(ValueError, match="ids must be a list, got 'xy' alone"):
        version.add(["a", "b"], "xy")
    with pytest.raises(ValueError, match="titles must be a list, got 'abc' alone"):
        local.build(np.eye(3), titles="abc")
    for values in (b"abc", {"x": 1, "y": 2, "z": 3}, {1, 2, 3}, np.array(3)):
        with pytest.raises(ValueError, match="attribute 'price' must be a list, got "):
            local.build(np.eye(3), attributes={"price": values})


def test_a_set_has_no_order(version: LocalVersion) -> None:
    pair = {"a", "b"}
    for name, ask in {
        "ids": lambda: local.build(np.eye(2), ids=pair),
        "titles": lambda: version.add(["a", "b"], ["x", "y"], titles=pair),
        "inputs": lambda: version.add(pair, ["x", "y"]),
        "queries": lambda: version.search(pair),
        "relevant": lambda: version.feedback(["red", "blue"], {("a",), ("b",)}),
        "texts": lambda: version.embed(pair),
    }.items():
        with pytest.raises(ValueError, match=f"{name} must be a list, got a set, which has no order"):
            ask()
    assert [own.item for own in version.explain("red", {"item-1"}).items] == ["item-1"]


@pytest.mark.parametrize(
    "ids",
    [np.array([True, False]), [True], [1.0], [None], [b"1"], [np.datetime64(1, "ns")], np.array([[0], [1]]), [{}]],
)
def test_what_is_no_id_is_not_deleted(ids: Any, tmp_path: Path) -> None:
    version = local.build(np.eye(3), folder=str(tmp_path))
    with pytest.raises(ValueError, match=r"ids\[0\] must be a string or an integer, got "):
        version.delete(ids)
    assert version.manifest.live_items == [3]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (["a", None], r"inputs must be all texts or all vectors, got null in inputs\[1\]"),
        ([[1.0, 0], "a"], r"inputs must be all texts or all vectors, got \[1.0, 0\] in inputs\[0\]"),
        ([b"ab", b"cd"], r"vectors must be numbers \[items, width\], got bytes"),
        ([bytearray(b"ab")] * 2, r"vectors must be numbers \[items, width\], got bytes"),
        (np.ma.masked_array(np.eye(2), np.eye(2)), "got some that are masked"),
        ([[1, None], [1, 2]], "vectors must be numbers .*, got an array of object"),
        ("ab", "inputs must be a list, got 'ab' alone"),
    ],
)
def test_inputs_that_cannot_be_added(inputs: Any, message: str, version: LocalVersion) -> None:
    with pytest.raises(ValueError, match=message):
        version.add(inputs, ["x", "y"])
    with pytest.raises(ValueError, match="ids must be a list, got null alone"):
        version.add(["a", "b"], None)


def test_attributes_are_by_name() -> None:
    with pytest.raises(ValueError, match="attributes must be values of all items by name, got"):
        local.build(np.eye(2), attributes=[1, 2])
    with pytest.raises(ValueError, match="attributes must have strings as names, got 1"):
        local.build(np.eye(2), attributes={1: [1, 2]})
    with pytest.raises(ValueError, match=r"titles must be strings, got: .*surrogates"):
        local.build(np.eye(2), titles=["\ud800", "a"])


@pytest.mark.parametrize(
    "given",
    [
        lambda rows: (row for row in rows),
        lambda rows: dict(enumerate(rows)).values(),
        lambda rows: pa.array(rows, pa.list_(pa.float32(), 2)),
        lambda rows: pa.chunked_array([rows]),
        lambda rows: [np.array(row) for row in rows],
        lambda rows: torch.tensor(rows),
    ],
)
def test_vectors_to_build_come_in_any_kind_of_list(given: Callable[[list[Any]], Any]) -> None:
    version = local.build(given([[1.0, 0], [0, 1]]), ids=torch.tensor([5, 6]), attributes={"n": torch.tensor([1, 2])})
    assert version.search(np.eye(2), k=1, fields=["n"]).results[1].items == [6]


def test_views_of_a_dictionary_have_an_order() -> None:
    given = {"x": "X", "y": "Y"}
    version = local.build(np.eye(2), given.keys(), titles=given.values(), attributes={"of": given.keys()})
    assert version.search(np.eye(2), k=1).results[1].items == ["y"]


@pytest.mark.parametrize(
    "given",
    [
        list,
        tuple,
        np.array,
        pa.array,
        torch.tensor,
        iter,
        lambda ids: dict.fromkeys(ids).keys(),
        lambda ids: list(np.array(ids)),
        lambda ids: list(torch.tensor(ids)),
    ],
)
def test_ids_come_in_any_kind_of_list(given: Callable[[list[int]], Any], tmp_path: Path) -> None:
    version = local.build(np.eye(6, dtype=np.float32), folder=str(tmp_path))
    assert version.explain([1.0, 0, 0, 0, 0, 0], given([0, 3])).items[1].item == 3
    assert version.feedback([[1.0, 0, 0, 0, 0, 0]], [given([0])], cutoff={"top_k": 2}).kept == [[True]]
    change = version.delete(given([0, 99]))
    assert (change.num_deleted, change.num_unknown) == (1, 1)


@pytest.mark.parametrize("given", [list, tuple, np.array, pa.array, iter, lambda texts: np.array(texts, object)])
def test_texts_ids_and_titles_to_add_come_in_any_kind_of_list(
    given: Callable[[list[Any]], Any], root: Path, tmp_path: Path
) -> None:
    shutil.copytree(root, tmp_path / "copy")
    version = local.open(str(tmp_path / "copy"))
    change = version.add(given(["a purple hat", "a teal hat"]), given(["new-1", "new-2"]), titles=given(["One", ""]))
    assert change.num_added == 2
    assert [own.item for own in version.explain("purple hat", given(["new-1", "new-2"])).items] == ["new-1", "new-2"]


@pytest.mark.parametrize("given", [list, iter, np.array, torch.tensor, lambda rows: [np.array(row) for row in rows]])
def test_vectors_to_add_come_in_any_kind_of_list(given: Callable[[list[Any]], Any], tmp_path: Path) -> None:
    version = local.build(np.eye(4, dtype=np.float32), folder=str(tmp_path))
    assert version.add(given([[1.0, 1, 0, 0], [0, 0, 1, 1]]), iter([7, 8])).num_added == 2
    assert version.search([[1.0, 1, 0, 0]], k=1).results[0].items == [7]


def test_a_table_is_no_list(version: LocalVersion) -> None:
    table = pa.table({"text": ["red", "blue"]})
    for ask in (version.search, version.embed, version.delete):
        with pytest.raises(ValueError, match="must be a list, got a table: give one of its columns"):
            ask(table)
