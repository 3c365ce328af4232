"""Encoding as a stream on a real cluster: many files, shards by position and by hash, resumed; files that change."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from rails_ray import on_ray
from rails_ray.errors import StorageError
from rails_ray.families import encoding
from rails_ray.families.config import DataConfig
from rails_ray.families.encoding import EncodeOptions
from rails_ray.families.encoding_work import EncodingWork, recut
from rails_ray.families.in_process import InProcess
from rails_ray.families.version import Version
from rails_ray.search.indexes.hnsw import HnswConfig
from rails_ray.storage import parts, tables
from rails_ray.storage.described import Encoded
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.ids import keys_of
from rails_ray.storage.parts import shards_of
from support.data_folders import write_text_data
from support.examples import small_config, write_untrained_run

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("ray_cluster")]

NUM_ITEMS = 60


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Storage with an untrained run `r` on a folder of data, whose items are in seven files."""
    folder = write_text_data(tmp_path / "data")
    items = pq.read_table(folder / "items.parquet")
    items = items.append_column("rank", pa.array([None, *range(NUM_ITEMS - 1)]))
    items = items.append_column("tags", pa.array([["a", "b"][: row % 3] for row in range(NUM_ITEMS)]))
    (folder / "items.parquet").unlink()
    (folder / "items").mkdir()
    for number, first in enumerate(range(0, NUM_ITEMS, 9)):
        pq.write_table(items.slice(first, 9), folder / "items" / f"{number}.parquet", row_group_size=4)
    config = replace(small_config(), data=DataConfig(folder=str(folder)))
    write_untrained_run(Storage(str(tmp_path / "storage")), "r", config)
    return tmp_path / "storage"


def ids_of(folder: Path) -> list[str]:
    return [own for path in sorted(folder.glob("*.parquet")) for own in pq.read_table(path)["item_id"].to_pylist()]


@pytest.mark.long
def test_files_and_row_groups_make_no_difference(root: Path, tmp_path: Path) -> None:
    """One file and seven give the same bytes, in any number of workers, and both versions share them."""
    first = on_ray.encode(str(root), "r", version="v1", num_shards=2, part_items=7, num_workers=2)
    read = Version(Storage(str(root)), first).items()
    assert read.item_ids == ids_of(tmp_path / "data" / "items")

    whole = pa.concat_tables(pq.read_table(path) for path in sorted((tmp_path / "data" / "items").glob("*.parquet")))
    pq.write_table(whole, tmp_path / "whole.parquet")
    data = DataConfig(folder=str(tmp_path / "data"), items=str(tmp_path / "whole.parquet"))
    second = on_ray.encode(str(root), "r", version="v2", num_shards=2, part_items=7, data=data)
    assert [part.sha256 for part in second.parts] == [part.sha256 for part in first.parts]
    num_watermarks = 2  # each names the files that its version has read
    assert len(Storage(str(root)).list("objects")) == len(first.parts) + num_watermarks


@pytest.mark.parametrize("stored", [{}, {"index": HnswConfig(M=8), "index_of": "average"}], ids=["plain", "hnsw"])
def test_one_process_writes_the_bytes_of_a_cluster(root: Path, stored: dict[str, Any]) -> None:
    data = DataConfig(attributes=("rank", "tags"))
    on_cluster = on_ray.encode(str(root), "r", version="v1", part_items=7, num_workers=2, stored=stored, data=data)
    options = EncodeOptions(version="v2", part_items=7, stored=stored, data=data)
    here = encoding.encode(InProcess(), str(root), "r", options)
    assert here.parts == on_cluster.parts
    assert here.attributes == on_cluster.attributes == {"rank": "int", "tags": "strings"}
    assert here.indexes == on_cluster.indexes


def test_shards_by_hash_keep_their_items(root: Path, tmp_path: Path) -> None:
    """An item stays in its shard when others come and go, and has the same state."""
    first = on_ray.encode(str(root), "r", version="v1", num_shards=3, shard_by="hash", part_items=16)
    shards = [ids_in(root, first, shard) for shard in range(3)]
    assert sorted(itertools.chain(*shards)) == sorted(ids_of(tmp_path / "data" / "items"))
    assert [len(own) for own in shards] == first.shard_items

    (tmp_path / "data" / "items" / "2.parquet").unlink()
    second = on_ray.encode(str(root), "r", version="v2", num_shards=3, shard_by="hash", part_items=16)
    left = set(ids_of(tmp_path / "data" / "items"))
    assert [set(ids_in(root, second, shard)) for shard in range(3)] == [set(own) & left for own in shards]

    by_position = on_ray.encode(str(root), "r", version="v3", num_shards=1)
    one, other = (Version(Storage(str(root)), own).items() for own in (first, by_position))
    (tmp_path / "data" / "items").rename(tmp_path / "data" / "gone")
    assert set(one.item_ids) > set(other.item_ids)
    rows = one.item_ids.rows(other.item_ids)
    assert torch.allclose(one.state.components[rows], other.state.components, atol=1e-6)


def ids_in(root: Path, encoded: Encoded, shard: int) -> list[str]:
    parts = [part for part in encoded.parts if part.shard == shard]
    return [own for part in parts for own in pq.read_table(root / part.path)["item_id"].to_pylist()]


def test_tasks_by_hash_that_follow_one_another_read_their_items_once() -> None:
    items = pa.table({"item_id": np.arange(50)})
    read = list[tuple[int, int]]()

    class Source:
        def blocks(self, files: object, first_row: int, num_rows: int) -> Iterator[pa.Table]:
            read.append((first_row, num_rows))
            for first in range(first_row, first_row + num_rows, 7):
                yield items.slice(first, min(7, first_row + num_rows - first))

    shards = shards_of(keys_of(items["item_id"]), 3)
    num_in = np.array([np.bincount(shards[first : first + 10], minlength=3) for first in range(0, 50, 10)])
    group = parts.tasks_by_hash(num_in, 50, 10)[1:4]
    names = ("storage", "version", "run", "weights_sha256")
    work = EncodingWork(
        **dict.fromkeys(names, ""),
        config_json=b"",
        source=Source(),
        files=[],
        num_shards=3,
        tasks=[group],
        keeps_texts=False,
    )
    found = list(work._parts(group))
    assert read == [(10, 30)]
    assert [part for part, _ in found] == [part for task in group for part in task.parts]
    for part, own in found:
        assert set(shards[own["item_id"].to_numpy()]) == {part.shard}
        assert len(own) == part.num_items
    assert sorted(row for _, own in found for row in own["item_id"].to_pylist()) == list(range(10, 40))


def test_a_shard_by_hash_that_has_no_item(root: Path) -> None:
    with pytest.raises(ValueError, match="each of the 60 shards by hash must have an item of the 60, got none for"):
        on_ray.encode(str(root), "r", version="too-many", num_shards=60, shard_by="hash")
    assert not (root / "versions" / "too-many").exists()  # the name is free for fewer shards


@pytest.mark.parametrize("shard_by", ["position", "hash"])
def test_what_is_missing_is_made_again_with_the_same_bytes(root: Path, shard_by: encoding.ShardBy) -> None:
    made = [on_ray.encode(str(root), "r", version=version, shard_by=shard_by, part_items=7) for version in ("a", "b")]
    (root / "versions" / "b" / "encoded.json").unlink()
    for record in list((root / "versions" / "b" / "parts").glob("*.json"))[::2]:
        record.unlink()
    again = on_ray.encode(str(root), "r", version="b", shard_by=shard_by, part_items=7)
    assert again.parts == made[1].parts == made[0].parts


def test_an_id_of_two_files_is_told_before_anything_is_written(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "data" / "items" / "5.parquet"
    table = pq.read_table(path)
    pq.write_table(table.set_column(0, "item_id", pa.array(["item-3", *table["item_id"].to_pylist()[1:]])), path)
    with pytest.raises(ValueError, match=r"5\.parquet must hold distinct ids, got 'item-3' again in row 0: leave"):
        on_ray.encode(str(root), "r", version="v1")
    assert not (root / "versions" / "v1").exists()


def test_a_file_that_changes_after_the_scan_is_told_and_nothing_is_half_built(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, begin = tmp_path / "data" / "items" / "4.parquet", encoding.parts.begin

    def changed(*arguments: object) -> None:
        begin(*arguments)
        pq.write_table(pq.read_table(path).slice(0, 3), path)

    monkeypatch.setattr(encoding.parts, "begin", changed)
    with pytest.raises(StorageError, match=r"4\.parquet must stay as it is while it is read, got a change: run it"):
        on_ray.encode(str(root), "r", version="v1", part_items=7)
    assert not (root / "versions" / "v1" / "encoded.json").exists()
    monkeypatch.undo()
    with pytest.raises(ValueError, match="version 'v1' must keep the items that it was begun with"):
        on_ray.encode(str(root), "r", version="v1", part_items=7)


@pytest.mark.long
def test_items_and_versions_on_s3(root: Path, tmp_path: Path, s3: str) -> None:
    """From files on S3 to a version on S3, with the bytes of a folder."""
    store, local = Storage(s3), on_ray.encode(str(root), "r", version="v1", part_items=7)
    for path in sorted((tmp_path / "data" / "items").glob("*.parquet")):
        store.write(f"data/items/{path.name}", path.read_bytes())
    write_untrained_run(store, "r", small_config())
    data = DataConfig(items=f"{s3}/data/items/*.parquet")
    made = on_ray.encode(s3, "r", version="v1", part_items=7, data=data)
    assert [part.sha256 for part in made.parts] == [part.sha256 for part in local.parts]
    assert np.array_equal(Version(store, made).items().item_ids.column, ids_of(tmp_path / "data" / "items"))


def test_many_rows_are_read_in_batches(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are recut to parts wherever they end."""
    blocks = [pa.table({"a": range(first, first + size)}) for first, size in ((0, 5), (5, 1), (6, 6))]
    cut = [table["a"].to_pylist() for table in recut(blocks, [2, 3, 1, 6])]
    assert cut == [[0, 1], [2, 3, 4], [5], [6, 7, 8, 9, 10, 11]]
    rest = iter(blocks)
    assert len(list(recut(rest, [5]))) == 1
    assert next(rest)["a"].to_pylist() == blocks[2]["a"].to_pylist()  # it looked further, where the files are compared
    assert tables.BATCH_ROWS < encoding.PART_ITEMS * encoding.TASK_PARTS
