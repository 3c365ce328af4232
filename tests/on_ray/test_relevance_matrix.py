"""A relevance matrix on the cluster: the same as by hand, resumed, with holes, refused; and what is made of it."""

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rails_ray import on_ray
from rails_ray.data.scored import ScoredTexts
from rails_ray.data.sources import Sources
from rails_ray.errors import DamagedError, NotFoundError, UnavailableError
from rails_ray.families.config import DataConfig
from rails_ray.families.training_family import training_family
from rails_ray.families.version import Version
from rails_ray.on_ray.relevance_matrix import Sampling, fill
from rails_ray.on_ray.resources import TrainResources
from rails_ray.reranking.rankers import candidates_of
from rails_ray.reranking.rankers.calling import scores_of
from rails_ray.schema.ranker import RankerConfig
from rails_ray.serving import local
from rails_ray.storage import relevances
from rails_ray.storage.filesystem import Storage
from support.data_folders import write_text_data
from support.published_rbe import write_rbe_run
from support.ranked import BY_PAIRS, by_pairs, small_rbe_config, write_scored_data

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("ray_cluster")]
FAILING = RankerConfig(path="support.ranked:failing_at_plum")
BROKEN = RankerConfig(path="support.ranked:broken")


def read(folder: Path, table: str) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = pq.read_table(folder / f"{table}.parquet").to_pydict()
    return found


def test_a_matrix_holds_what_the_ranker_says(tmp_path: Path) -> None:
    data = write_text_data(tmp_path / "data", num_items=20)
    seen = list[tuple[int, int, str]]()
    matrix = fill(str(tmp_path), "m", str(data), BY_PAIRS, num_relevant=3, on_progress=lambda *told: seen.append(told))
    folder = tmp_path / "relevance" / "m"
    assert matrix.folder == str(folder)
    items, queries, relevance = (read(folder, table) for table in ("items", "queries", "relevance"))
    assert (matrix.num_items, matrix.num_queries) == (20, len(queries["text"]))
    assert (matrix.num_calls, matrix.num_holes) == (20 * matrix.num_queries, 0)
    assert seen[-1][0] == seen[-1][1] == -(-matrix.num_queries // 8)
    rows = pq.read_table(folder / "scores").to_pydict()
    by_id = dict(zip(rows["query_id"], rows["scores"], strict=True))
    for query_id, text in zip(queries["query_id"], queries["text"], strict=True):
        expected = scores_of(by_pairs, {"text": text}, candidates_of(items["item_id"], items["text"]))
        assert by_id[query_id] == pytest.approx(expected.tolist())
        best = np.argsort(-expected, kind="stable")[:3]
        own = [
            item for asked, item in zip(relevance["query_id"], relevance["item_id"], strict=True) if asked == query_id
        ]
        assert own == [items["item_id"][row] for row in best]


def test_titles_stand_before_texts(tmp_path: Path) -> None:
    data = write_text_data(tmp_path / "data", num_items=12)
    items = pq.read_table(data / "items.parquet")
    titled = items.append_column("title", pa.array([f"title {row}" for row in range(12)]))
    pq.write_table(titled, data / "items.parquet")
    fill(str(tmp_path), "m", str(data), BY_PAIRS, sampling=Sampling(num_queries={"train": 5, "valid": 2, "test": 0}))
    config = small_rbe_config()
    own = training_family(config).form
    found = own.read(Sources(str(tmp_path / "relevance" / "m")), ("train", "valid"))
    inputs = found.queries["train"].inputs
    assert isinstance(inputs, ScoredTexts)
    expected = scores_of(by_pairs, {"text": inputs[0]}, candidates_of(found.item_ids, list(found.item_inputs)))
    assert found.item_inputs[3].startswith("title 3\n")
    assert inputs.scores[0] == pytest.approx(expected, abs=1e-6)


def test_whoever_is_interrupted_scores_the_missing_blocks_alone(tmp_path: Path) -> None:
    data = write_text_data(tmp_path / "data", num_items=12)
    fill(str(tmp_path), "m", str(data), BY_PAIRS)
    folder = tmp_path / "relevance" / "m"
    whole = pq.read_table(folder / "scores").to_pydict()
    before = {path: path.stat().st_mtime_ns for path in (folder / "scores").iterdir()}
    (folder / "scores" / "000001.parquet").unlink()
    (folder / "matrix.json").unlink()
    (folder / "relevance.parquet").unlink()
    fill(str(tmp_path), "m", str(data), BY_PAIRS)
    after = {path: path.stat().st_mtime_ns for path in (folder / "scores").iterdir()}
    assert [path.name for path in after if after[path] != before[path]] == ["000001.parquet"]
    assert pq.read_table(folder / "scores").to_pydict() == whole
    assert fill(str(tmp_path), "m", str(data), BY_PAIRS) == relevances.read_finished(Storage(str(tmp_path)), "m")


def test_a_block_that_is_lost_from_a_finished_matrix_is_scored_anew(tmp_path: Path) -> None:
    data = write_text_data(tmp_path / "data", num_items=12)
    matrix = fill(str(tmp_path), "m", str(data), BY_PAIRS)
    whole = relevance_of(tmp_path, "m")
    (tmp_path / "relevance" / "m" / "scores" / "000001.parquet").unlink()
    assert fill(str(tmp_path), "m", str(data), BY_PAIRS).num_calls == matrix.num_calls
    assert relevance_of(tmp_path, "m") == whole


def test_holes_are_counted_and_bounded(tmp_path: Path) -> None:
    data = write_text_data(tmp_path / "data", num_items=120)
    items = read(data, "items")
    matrix = fill(str(tmp_path), "m", str(data), FAILING, max_holes_fraction=0.2)
    holes = sum("plum" in text for text in items["text"])
    assert matrix.num_holes == holes * matrix.num_queries > 0
    assert matrix.num_calls > 120 * matrix.num_queries
    with pytest.raises(
        UnavailableError, match=f"must leave at most 0.05 of the pairs without a score, got {matrix.num_holes} of 120 x"
    ):
        fill(str(tmp_path), "n", str(data), FAILING)
    with pytest.raises(
        UnavailableError, match=r"the heavy ranker must leave at most 0\.05 of the pairs without a score"
    ):  # however often it is asked
        fill(str(tmp_path), "n", str(data), FAILING)


def test_a_block_of_queries_that_cannot_be_scored_is_all_holes(tmp_path: Path) -> None:
    data = write_text_data(tmp_path / "data", num_items=60)
    ranker = RankerConfig(path="support.ranked:failing_for_red")
    matrix = fill(str(tmp_path), "m", str(data), ranker, block_queries=1, max_holes_fraction=0.5)
    asked = read(tmp_path / "relevance" / "m", "queries")["text"]
    assert matrix.num_holes == 60 * sum("red" in text for text in asked) > 0


@pytest.mark.long
def test_a_ranker_that_hangs_leaves_holes(tmp_path: Path) -> None:
    data = write_text_data(tmp_path / "data", num_items=60)
    hanging = RankerConfig(path="support.ranked:hanging_for_red")
    few = Sampling(num_queries={"train": 24, "valid": 8, "test": 0})
    matrix = fill(str(tmp_path), "m", str(data), hanging, sampling=few, max_holes_fraction=0.5, timeout_s=0.5)
    asked = read(tmp_path / "relevance" / "m", "queries")["text"]
    assert matrix.num_holes == 60 * sum("red" in text for text in asked) > 0


def test_what_a_ranker_changes_is_its_own(tmp_path: Path) -> None:
    data = write_text_data(tmp_path / "data", num_items=12)
    for name, path in (("m", "support.ranked:changing"), ("n", BY_PAIRS.path)):
        fill(str(tmp_path), name, str(data), RankerConfig(path=path), num_workers=1)
    assert relevance_of(tmp_path, "m") == relevance_of(tmp_path, "n")


@pytest.mark.long
def test_a_ranker_that_ends_each_process_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rails_ray.on_ray.task_runner.MAX_DEATHS", 1)
    data = write_text_data(tmp_path / "data", num_items=12)
    with pytest.raises(UnavailableError, match="the cluster must complete the work, got: "):
        fill(str(tmp_path), "m", str(data), RankerConfig(path="support.ranked:ending"), num_workers=1)


def test_a_failure_is_one_sentence(tmp_path: Path) -> None:
    """Without what Ray Data adds to it."""
    data = write_text_data(tmp_path / "data", num_items=12)
    with pytest.raises(UnavailableError) as raised:
        fill(str(tmp_path), "m", str(data), BROKEN)
    assert len(str(raised.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda block: pa.table({"a": [1]}), "must be a block of a matrix of 12 items, got: .*scores"),
        (lambda block: block.replace_schema_metadata({}), "must be a block of a matrix of 12 items, got: "),
        (lambda block: block.slice(1), "got other queries or 12 items: delete it, and it is scored anew"),
        (
            lambda block: block.set_column(1, "scores", pa.array(block["scores"].to_pylist())),
            "must be a block of a matrix of 12 items, got: ",
        ),
    ],
    ids=["another table", "no seconds", "other queries", "lists"],
)
def test_a_damaged_block(tmp_path: Path, damage: Any, told: str) -> None:
    data = write_text_data(tmp_path / "data", num_items=12)
    fill(str(tmp_path), "m", str(data), BY_PAIRS)
    folder = tmp_path / "relevance" / "m"
    (folder / "matrix.json").unlink()
    block = folder / "scores" / "000001.parquet"
    pq.write_table(damage(pq.read_table(block)), block)
    with pytest.raises(DamagedError, match=told):
        fill(str(tmp_path), "m", str(data), BY_PAIRS)
    block.unlink()
    assert fill(str(tmp_path), "m", str(data), BY_PAIRS).num_holes == 0
    (folder / "matrix.json").write_text('{"folder": 1}')
    with pytest.raises(DamagedError, match=r"must say what a matrix cost, got: .*: make it anew"):
        fill(str(tmp_path), "m", str(data), BY_PAIRS)


def test_a_block_of_holes_is_scored_once_more(tmp_path: Path) -> None:
    """A ranker that failed for a while leaves no holes."""
    data = write_text_data(tmp_path / "data", num_items=12)
    matrix = fill(str(tmp_path), "m", str(data), RankerConfig(path="support.ranked:Warming"), block_queries=1)
    assert matrix.num_holes == 0
    assert matrix.num_calls > 12 * matrix.num_queries


@pytest.mark.long
def test_a_matrix_in_a_bucket_trains(tmp_path: Path, s3: str) -> None:
    data = write_text_data(tmp_path / "data", num_items=30)
    matrix = fill(s3, "m", str(data), BY_PAIRS)
    assert matrix.folder.startswith("s3://")
    config = replace(small_rbe_config(), data=DataConfig(folder=matrix.folder))
    on_ray.train(config, s3, run="r", num_workers=1, placing=TrainResources(backend="tasks"))
    on_ray.publish(s3, on_ray.encode(s3, "r", version="v", num_shards=2).version)
    assert len(local.open(s3, ranker=by_pairs).search(["red hat"], k=4).results[0].items) == 4


@pytest.mark.long
def test_a_worker_that_dies_loses_its_block_alone(tmp_path: Path) -> None:
    data = write_text_data(tmp_path / "data", num_items=20)
    (tmp_path / "ranker").mkdir()
    dying = RankerConfig(path="support.ranked:DyingOnce", folder=str(tmp_path / "ranker"))
    matrix = fill(str(tmp_path), "m", str(data), dying)
    assert (tmp_path / "died").exists()
    fill(str(tmp_path), "n", str(data), BY_PAIRS)
    assert matrix.num_holes == 0
    assert relevance_of(tmp_path, "m") == relevance_of(tmp_path, "n")


def test_two_that_fill_one_matrix_leave_one(tmp_path: Path) -> None:
    data = write_text_data(tmp_path / "data", num_items=30)
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(fill, str(tmp_path), "m", str(data), BY_PAIRS, block_queries=4) for _ in range(2)]
        one, two = (call.result() for call in asked)
    assert (one.num_queries, one.num_holes) == (two.num_queries, two.num_holes)
    alone = fill(str(tmp_path), "n", str(data), BY_PAIRS, block_queries=4)
    assert relevance_of(tmp_path, "m") == relevance_of(tmp_path, "n")
    assert one.num_calls == alone.num_calls


def relevance_of(root: Path, name: str) -> list[dict[str, Any]]:
    rows = pq.read_table(root / "relevance" / name / "scores").to_pylist()
    return sorted(({key: row[key] for key in ("query_id", "scores")} for row in rows), key=lambda row: row["query_id"])


def test_another_training_of_a_ranker_is_another_matrix(tmp_path: Path) -> None:
    data = write_text_data(tmp_path / "data", num_items=12)
    folder = tmp_path / "ranker"
    folder.mkdir()
    (folder / "weights").write_text("1")
    ranker = RankerConfig(path="support.ranked:OfFolder", folder=str(folder))
    fill(str(tmp_path), "m", str(data), ranker)
    fill(str(tmp_path), "m", str(data), ranker)
    (folder / "weights").write_text("2")
    with pytest.raises(ValueError, match="matrix 'm' must keep the ranker_files that it was begun with"):
        fill(str(tmp_path), "m", str(data), ranker)


def test_integer_ids_stay_integers(tmp_path: Path) -> None:
    data = write_text_data(tmp_path / "data", num_items=30)
    items = pq.read_table(data / "items.parquet")
    pq.write_table(items.set_column(0, "item_id", pa.array(range(100, 130))), data / "items.parquet")
    matrix = fill(str(tmp_path), "m", str(data), BY_PAIRS)
    write_rbe_run(tmp_path, Path(matrix.folder))
    on_ray.publish(str(tmp_path), on_ray.encode(str(tmp_path), "rbe", version="v").version)
    [result] = local.open(str(tmp_path), ranker=by_pairs).search(["red hat"], k=4, budget={"calls": 30}).results
    assert all(isinstance(item, int) and 100 <= item < 130 for item in result.items)


def test_an_item_whose_text_has_changed_is_scored_anew(tmp_path: Path) -> None:
    data = write_scored_data(tmp_path / "data", num_items=40)
    write_rbe_run(tmp_path, data)
    newer = write_text_data(tmp_path / "newer", num_items=40)
    items = pq.read_table(newer / "items.parquet").to_pydict()
    items["text"][5] = "an umbrella of chrome"
    pq.write_table(pa.table(items), newer / "items.parquet")
    store = Storage(str(tmp_path))
    vectors = []
    for name, folder in (("old", None), ("new", DataConfig(folder=str(newer)))):
        on_ray.encode(str(tmp_path), "rbe", version=name, data=folder, allow_code=["support"])
        vectors.append(Version.encoded(store, name).items().state.components[:, 0])
    changed = ((vectors[0] - vectors[1]).abs() > 1e-4).any(dim=1).nonzero().flatten().tolist()
    assert changed == [5]


@pytest.mark.parametrize(
    ("asked", "error", "told"),
    [
        ({"name": "a b"}, ValueError, "a matrix's name must be made of letters"),
        ({"folder": "/no/such"}, NotFoundError, "items.parquet must exist"),
        ({"ranker": RankerConfig(path="nothing:there")}, ValueError, "No module named 'nothing'"),
        ({"ranker": BROKEN}, UnavailableError, "must score some item of block .*, got none: .* RuntimeError: broken"),
        ({"ranker": RankerConfig(path="support.ranked:leaving")}, UnavailableError, "got none: .* SystemExit: 3"),
        ({"max_holes_fraction": 1.5}, ValueError, r"max_holes_fraction must be in \[0, 1\], got 1.5"),
        ({"timeout_s": 0.0}, ValueError, "timeout_s must be above 0, got 0"),
        ({"num_workers": 0}, ValueError, "num_workers must be at least 1, got 0"),
        ({"block_queries": 0}, ValueError, "block_queries must be at least 1, got 0"),
        ({"sampling": Sampling(num_items=99)}, ValueError, "num_items must be at most the 12 of .*, got 99"),
        ({"sampling": Sampling(num_queries={"test": 99})}, ValueError, "num_queries of test must be at most"),
    ],
)
def test_what_cannot_be_filled(tmp_path: Path, asked: dict[str, Any], error: type[Exception], told: str) -> None:
    data = write_text_data(tmp_path / "data", num_items=12)
    given = {"name": "m", "folder": str(data), "ranker": BY_PAIRS} | asked
    with pytest.raises(error, match=told):
        fill(str(tmp_path), **given)


def test_a_name_that_is_used_again_is_of_the_new_matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a worker's process keeps, its items and its ranker, is of one call of `fill`. Here it is this process."""

    def do_here(do: Callable[[int], None], num_tasks: int, *_: Any) -> None:
        for number in range(num_tasks):
            do(number)

    monkeypatch.setattr("rails_ray.on_ray.relevance_matrix.run_tasks", do_here)
    folder = tmp_path / "ranker"
    folder.mkdir()
    (folder / "weight").write_text("1")
    weighted = RankerConfig(path="support.ranked:Weighted", folder=str(folder))
    data = write_text_data(tmp_path / "data", num_items=12)
    fill(str(tmp_path), "m", str(data), weighted)
    shutil.rmtree(tmp_path / "relevance" / "m")
    (folder / "weight").write_text("2")
    texts = read(data, "items")["text"][::-1]
    pq.write_table(pq.read_table(data / "items.parquet").set_column(1, "text", pa.array(texts)), data / "items.parquet")
    fill(str(tmp_path), "m", str(data), weighted)
    items, queries = (read(tmp_path / "relevance" / "m", table) for table in ("items", "queries"))
    assert items["text"] == texts
    candidates = candidates_of(items["item_id"], items["text"])
    asked = dict(zip(queries["query_id"], queries["text"], strict=True))
    for row in relevance_of(tmp_path, "m"):
        expected = 2 * scores_of(by_pairs, {"text": asked[row["query_id"]]}, candidates)
        assert row["scores"] == pytest.approx(expected.tolist(), abs=1e-6)


def test_a_name_is_of_one_matrix(tmp_path: Path) -> None:
    data = write_text_data(tmp_path / "data", num_items=12)
    few = Sampling(num_queries={"train": 3, "valid": 1, "test": 0})
    fill(str(tmp_path), "m", str(data), BY_PAIRS, sampling=few)
    with pytest.raises(ValueError, match="matrix 'm' must keep the num_relevant that it was begun with, 10, got 4"):
        fill(str(tmp_path), "m", str(data), BY_PAIRS, sampling=few, num_relevant=4)


def test_a_sampling_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="seed must be at least 0, got -1"):
        Sampling(seed=-1)
