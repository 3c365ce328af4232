"""The look before training: its facts against loops, problems by their sentences, rules on both sides, the command."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rails_ray import cli
from rails_ray.build import family
from rails_ray.commands.inspect import remarks
from rails_ray.config import RunConfig
from rails_ray.data.dataset import DataSet, Texts
from rails_ray.data.forms import FORMS
from rails_ray.data.queries import DenseRows, ItemLists, Queries
from rails_ray.data.sources import Sources
from rails_ray.encoders.character_ngrams import words
from rails_ray.evaluation.report import evaluate
from rails_ray.inspecting import baselines, facts, sampling, timing, verdicts
from rails_ray.inspecting.readings import COLUMNS, OPTIONAL, readings
from rails_ray.inspecting.report import inspect
from rails_ray.recipes import FOR_PACKAGED, by_name, names
from rails_ray.storage.filesystem import Storage
from rails_ray.storage.ids import ItemIds
from rails_ray.training.piece import Given, fit
from support.examples import (
    real_data,
    small_config,
    small_history_config,
    small_solar_config,
    small_vector_config,
    write_number_data,
    write_sequence_data,
    write_text_data,
    write_vector_data,
)

SPLITS = ("train", "valid", "test")
lists_of_items = st.lists(st.lists(st.integers(0, 7), min_size=1, max_size=4, unique=True), min_size=1, max_size=6)


def looked(folder: Path | str, *, num_sampled: int = 1000, has_timing: bool = False) -> dict[str, Any]:
    return inspect(Sources(str(folder)), num_sampled=num_sampled, has_timing=has_timing)


def data_of(train: list[list[int]], test: list[list[int]], num_items: int = 8, texts: Any = None) -> DataSet:
    """Queries by the items that answer them, numbered as inputs."""
    own = {"train": train, "valid": test, "test": test}
    queries = {split: Queries(Texts(["q"] * len(lists)), ItemLists.of(lists)) for split, lists in own.items()}
    return DataSet(ItemIds(range(num_items)), texts or Texts([f"item {row}" for row in range(num_items)]), queries)


def change(folder: Path, table: str, changed: Callable[[pa.Table], pa.Table]) -> None:
    path = folder / f"{table}.parquet"
    pq.write_table(changed(pq.read_table(path)), path)


def into_two_files(folder: Path, table: str) -> None:
    """The same table in two files of a folder."""
    whole = pq.read_table(folder / f"{table}.parquet")
    (folder / f"{table}.parquet").unlink()
    (folder / table).mkdir()
    half = len(whole) // 2
    for number, rows in enumerate((whole.slice(0, half), whole.slice(half))):
        pq.write_table(rows, folder / table / f"{number}.parquet")


def setting(column: str, row: int, value: Any, kind: pa.DataType | None = None) -> Callable[[pa.Table], pa.Table]:
    """A table with another value in one row."""

    def changed(table: pa.Table) -> pa.Table:
        values = table[column].to_pylist()
        values[row] = value
        new = pa.array(values, kind or table.schema.field(column).type)
        return table.set_column(table.column_names.index(column), column, new)

    return changed


# facts


@given(lists_of_items, lists_of_items)
def test_facts_of_relevance_equal_loops(train: list[list[int]], test: list[list[int]]) -> None:
    found = facts.of_relevance(data_of(train, test))
    queries_of = [sum(item in own for own in train) for item in range(8)]
    named = {item for own in train for item in own}
    lengths = [len(own) for own in [*train, *test, *test]]
    asked = [item for own in test for item in own]
    assert found["pairs"] == sum(lengths)
    assert found["items_per_query"]["mean"] == pytest.approx(sum(lengths) / len(lengths))
    assert found["items_per_query"]["max"] == max(lengths)
    assert found["training_queries_per_item"]["50%"] == float(np.median(queries_of))
    assert found["items_without_query"] == len(set(range(8)) - named - set(asked))
    assert found["test_pairs_named_in_training_fraction"] == pytest.approx(
        sum(item in named for item in asked) / len(asked)
    )


@given(st.lists(st.text("ab !", max_size=6), min_size=1, max_size=12))
def test_facts_of_texts_equal_loops(texts: list[str]) -> None:
    found = facts.of_texts(Texts(texts), 100)
    assert found["num_sampled"] == len(texts)
    assert found["num_duplicates"] == sum(text in texts[:number] for number, text in enumerate(texts))
    assert found["blank_fraction"] == pytest.approx(sum(not words(text) for text in texts) / len(texts))
    assert found["characters"]["max"] == max(map(len, texts))
    assert found["words"]["50%"] == float(np.median([len(words(text)) for text in texts]))


def test_a_sample_is_seeded_and_in_order() -> None:
    chosen = sampling.rows(1000, 10)
    assert len(set(chosen.tolist())) == 10
    assert (np.diff(chosen) > 0).all()
    assert chosen.tolist() == sampling.rows(1000, 10).tolist()
    assert sampling.rows(3, 10).tolist() == [0, 1, 2]
    many = Texts([f"text {number}" for number in range(100)] * 2)
    found = facts.of_texts(many, 20)
    assert (found["num_sampled"], found["num_duplicates"]) == (20, 100)


@pytest.mark.parametrize("shape", [(5, 3), (5, 2, 3)])
def test_facts_of_vectors(shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    values[2] = 0
    found = facts.of_vectors(DenseRows(values), 10)
    assert found["num_vectors"] == (2 if len(shape) == 3 else 1)
    assert found["width"] == 3
    assert found["zero_fraction"] == pytest.approx(0.2)
    assert not found["is_normalised"]
    norms = [float(sum(float(x) ** 2 for x in vector)) ** 0.5 for vector in values.reshape(-1, 3)]
    assert found["norms"]["max"] == pytest.approx(max(norms))
    unit = values[:2] / np.linalg.norm(values[:2], axis=-1, keepdims=True)
    assert facts.of_vectors(DenseRows(unit.astype(np.float16).astype(np.float32)), 10)["is_normalised"]


@given(st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=6), min_size=1, max_size=5))
def test_facts_of_histories_equal_loops(histories: list[list[int]]) -> None:
    found = facts.of_histories(ItemLists.of(histories), 5)
    assert found["users"] == len(histories)
    assert found["interactions"] == sum(map(len, histories))
    assert found["density"] == pytest.approx(sum(map(len, histories)) / (5 * len(histories)))
    assert found["num_short_users"] == sum(len(own) < 3 for own in histories)


@given(lists_of_items, lists_of_items, st.lists(st.integers(0, 7), max_size=3, unique=True))
def test_popularity_equals_sorting(train: list[list[int]], test: list[list[int]], seen: list[int]) -> None:
    read = data_of(train, test)
    asked = Queries(read.queries["test"].inputs, ItemLists.of(test), ItemLists.of([seen] * len(test)))
    counts = facts.training_queries_of_items(read)
    found = baselines.ranks_by(counts, asked)
    for number, relevant in enumerate(test):
        order = sorted(set(range(8)) - set(seen), key=lambda item: (-int(counts[item]), item))
        ranks = [order.index(item) + 1 for item in relevant if item in order]
        assert found[number] == (min(ranks) if ranks else 2**62)


def test_popularity_counts_what_training_sees_of_histories(tmp_path: Path) -> None:
    read: Any = FORMS["history"].read(Sources(str(write_sequence_data(tmp_path / "data"))))
    counts = np.zeros(len(read.item_ids), dtype=np.int64)
    for own in read.histories:
        for row in own[:-2] if len(own) >= 3 else own:
            counts[row] += 1
    assert facts.training_queries_of_items(read).tolist() == counts.tolist()


# parts


def test_a_part_has_what_answers_its_queries(tmp_path: Path) -> None:
    read = FORMS["text"].read(Sources(str(write_text_data(tmp_path / "data"))))
    part = sampling.part(read, 40, 3)
    assert all(len(part.queries[split]) == 3 for split in SPLITS)
    kept = list(part.item_ids)
    assert 40 <= len(kept) == len(set(kept)) < len(read.item_ids)
    row_of = {item: row for row, item in enumerate(read.item_ids)}
    assert list(part.item_inputs) == [read.item_inputs[row_of[item]] for item in kept]
    relevant = {
        (str(text), frozenset(read.item_ids.take(own)))
        for split in SPLITS
        for text, own in zip(read.queries[split].inputs, read.queries[split].relevant, strict=True)
    }
    for split in SPLITS:
        for text, own in zip(part.queries[split].inputs, part.queries[split].relevant, strict=True):
            assert (str(text), frozenset(part.item_ids.take(own))) in relevant
    whole = sampling.part(read, 1000, 1000)
    assert whole.item_ids is read.item_ids
    assert whole.queries["test"] is read.queries["test"]


# readings


def write(folder: Path, form: str) -> Path:
    if form == "text":
        return write_text_data(folder)
    return write_sequence_data(folder) if form == "history" else write_number_data(folder, form)


@pytest.mark.parametrize(
    ("form", "table", "column"),
    [
        (form, table, column)
        for form, tables in COLUMNS.items()
        for table, columns in tables.items()
        for column in columns
    ],
)
def test_the_columns_are_those_that_a_form_needs(form: str, table: str, column: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "data", form)
    [own] = [reading for reading in readings() if reading.name == form]
    there = {path.stem: pq.read_schema(path).names for path in folder.glob("*.parquet")}
    assert own.lacks(there) == []
    FORMS[form].read(Sources(str(folder)))
    change(folder, table, lambda found: found.drop_columns([column]))
    assert own.lacks(there | {table: [name for name in there[table] if name != column]}) == [f"{table}.{column}"]
    with pytest.raises(ValueError, match=column):
        FORMS[form].read(Sources(str(folder)))
    (folder / f"{table}.parquet").unlink()
    assert own.lacks({name: names for name, names in there.items() if name != table}) == [table]


@pytest.mark.parametrize("form", COLUMNS)
def test_an_optional_column_of_another_type_is_refused(form: str, tmp_path: Path) -> None:
    for column in OPTIONAL[form]:
        folder = write(tmp_path / column, form)
        change(
            folder,
            "items",
            lambda found, column=column: (
                found.drop_columns([column] if column in found.column_names else [])
            ).append_column(column, pa.array(range(len(found)))),
        )
        [sentence] = looked(folder)["problems"]
        assert f"column '{column}' of {folder}/items.parquet must be of type string" in sentence


def test_every_recipe_has_a_reading_and_a_verdict(tmp_path: Path) -> None:
    assert sorted(recipe for reading in readings() for recipe in reading.recipes) == sorted(names())
    found = looked(write_text_data(tmp_path / "data"))
    assert sorted(found["recipes"]) == sorted(names())
    assert found["recipes"]["vector-dot"] == {"fits": False, "why": "the data lack items.vector, queries.vector"}
    assert found["readings"]["text"] == {"fits": True, "lacks": []}
    assert found["problems"] == []


def test_data_may_be_read_in_several_ways(tmp_path: Path) -> None:
    folder = write_vector_data(tmp_path / "data")
    for table in ("items", "queries"):
        change(folder, table, lambda found: found.append_column("text", pa.array([f"x{i}" for i in range(len(found))])))
    write_sequence_data(tmp_path / "histories")
    shutil.copy(tmp_path / "histories" / "interactions.parquet", folder)
    change(folder, "interactions", setting("item_id", 0, "item-0"))
    found = looked(folder)
    assert [name for name, own in found["readings"].items() if own["fits"]] == ["vectors", "text", "history", "vector"]
    assert list(found["facts"]) == ["vectors", "text", "history"]  # vector is part of vectors
    assert [own["name"] for own in found["baselines"]] == ["vector-cosine", "baseline-bm25", "popularity"]
    assert found["recipes"]["vector-dot"]["fits"]
    assert found["recipes"]["ml1m-sasrec"]["fits"]


# problems


@pytest.mark.parametrize(
    ("form", "table", "file", "changed", "sentence"),
    [
        ("text", "items", 1, lambda t: t.drop_columns(["text"]), "items/1.parquet must have a column 'text', got item"),
        (
            "text",
            "items",
            1,
            setting("item_id", 0, "item-0"),
            "column 'item_id' of {}/items/1.parquet must hold distinct ids, got 'item-0' again in row 0",
        ),
        (
            "text",
            "queries",
            1,
            setting("text", 3, None),
            "column 'text' of {}/queries/1.parquet must have a value in every row, got null in row 3",
        ),
        ("text", "queries", 0, lambda t: t.slice(0, 0), "{}/queries/0.parquet must hold at least 1 row, got an empty"),
        (
            "text",
            "queries",
            1,
            setting("split", 2, "dev"),
            "column 'split' of {}/queries/1.parquet must be one of train, valid, test, got 'dev' in row 2",
        ),
        (
            "text",
            "relevance",
            1,
            setting("item_id", 1, "nobody"),
            "column 'item_id' of {}/relevance/1.parquet must be in {}/items.parquet, got 'nobody' in row 1",
        ),
        (
            "text",
            "queries",
            1,
            lambda t: t.set_column(0, "query_id", t["query_id"].cast(pa.string())),
            "column 'query_id' of {}/queries/1.parquet must be of type int64 as in {}/queries/0.parquet, got string",
        ),
        (
            "vector",
            "queries",
            1,
            setting("vector", 2, [float("nan")] * 24),
            "column 'vector' of {}/queries/1.parquet must hold numbers that are finite in float32, got nan in row 2",
        ),
        (
            "vector",
            "queries",
            1,
            setting("vector", 1, [1.0]),
            "column 'vector' of {}/queries/1.parquet must hold 24 numbers in every row as in row 0 of {}/queries/0.",
        ),
        (
            "features",
            "queries",
            1,
            setting("feature_indices", 1, [-1, 2]),
            "column 'feature_indices' of {}/queries/1.parquet must hold integers of at least 0, got -1 in row 1",
        ),
        (
            "history",
            "interactions",
            1,
            setting("item_id", 1, "nobody"),
            "column 'item_id' of {}/interactions/1.parquet must be in {}/items.parquet, got 'nobody' in row 1",
        ),
    ],
)
def test_a_problem_in_one_of_many_files(
    form: str, table: str, file: int, changed: Any, sentence: str, tmp_path: Path
) -> None:
    folder = write(tmp_path / "data", form)
    into_two_files(folder, table)
    change(folder / table, str(file), changed)
    with pytest.raises(ValueError, match=r".") as refused:
        FORMS[form].read(Sources(str(folder)))
    found = looked(folder)["problems"]
    assert found[0] == str(refused.value)
    assert any(sentence.replace("{}", str(folder)) in own for own in found)


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    folder = write_text_data(tmp_path / "data")
    into_two_files(folder, "items")
    change(folder / "items", "0", setting("text", 4, None))
    change(folder / "items", "1", setting("item_id", 5, "item-2"))
    change(folder, "queries", setting("split", 1, "dev"))
    change(folder, "relevance", setting("query_id", 7, 10**6))
    found = looked(folder)["problems"]
    assert found == [
        f"column 'text' of {folder}/items/0.parquet must have a value in every row, got null in row 4",
        f"column 'item_id' of {folder}/items/1.parquet must hold distinct ids, got 'item-2' again in row 5",
        f"column 'query_id' of {folder}/relevance.parquet must be in {folder}/queries.parquet, got 1000000 in row 7",
        f"column 'item_id' of {folder}/relevance.parquet must be in {folder}/items/0.parquet, got 'item-35' in row 40",
        f"column 'split' of {folder}/queries.parquet must be one of train, valid, test, got 'dev' in row 1",
    ]


def test_each_files_wrong_vectors_are_told(tmp_path: Path) -> None:
    folder = write_vector_data(tmp_path / "data")
    into_two_files(folder, "items")
    for number in (0, 1):
        change(folder / "items", str(number), setting("vector", 3 + number, [float("inf")] * 7))
    found = looked(folder)
    for number in (0, 1):
        assert any(
            f"items/{number}.parquet must hold numbers that are finite in float32, got inf in row {3 + number}" in own
            for own in found["problems"]
        )
    assert not found["recipes"]["vector-dot"]["fits"]
    assert found["recipes"]["vector-dot"]["why"] == "training refuses the data: see the problems"
    assert found["readings"]["vector"]["fits"]  # whose items are not vectors


def test_data_that_no_recipe_reads(tmp_path: Path) -> None:
    folder = write_text_data(tmp_path / "data")
    (folder / "relevance.parquet").rename(folder / "relevant.parquet")
    found = looked(folder)
    assert found["readings"]["text"] == {"fits": False, "lacks": ["relevance"]}
    assert found["ignored"] == ["relevant.parquet"]
    assert found["problems"] == [
        f"{folder}/relevance.parquet must exist, got no such file, and no folder relevance of Parquet files"
    ]


def test_a_file_that_is_no_parquet(tmp_path: Path) -> None:
    folder = write_text_data(tmp_path / "data")
    (folder / "queries.parquet").write_bytes(b"no Parquet")
    found = looked(folder)["problems"]
    assert len(found) == 1
    assert f"{folder}/queries.parquet must be a Parquet file, got:" in found[0]


def test_queries_that_nothing_answers_and_splits_that_are_not_there(tmp_path: Path) -> None:
    folder = write_text_data(tmp_path / "data")
    change(folder, "relevance", lambda found: found.filter(pa.compute.not_equal(found["query_id"], 0)))
    assert sum(looked(folder)["splits"].values()) == len(pq.read_table(folder / "queries.parquet"))
    change(folder, "queries", lambda found: found.filter(pa.compute.not_equal(found["split"], "test")))
    kept = pq.read_table(folder / "queries.parquet")["query_id"]
    change(folder, "relevance", lambda found: found.filter(pa.compute.is_in(found["query_id"], kept.combine_chunks())))
    assert looked(folder)["problems"] == [f"{folder} must hold a query with a relevant item in split 'test', got none"]


# verdicts


def judged(config: RunConfig, read: DataSet) -> verdicts.Verdict:
    return verdicts.verdict(family(config), read, 1000)


@pytest.mark.parametrize(("num_named", "fits"), [(7, True), (6, False)])
def test_codes_need_items_that_training_names(num_named: int, fits: bool) -> None:
    train = [[row] for row in range(10) for _ in range(2)]
    test = [[row] for row in range(num_named)] + [[row] for row in range(10, 20 - num_named)]
    read = data_of(train, test, num_items=14)
    assert facts.of_relevance(read)["test_pairs_named_in_training_fraction"] == pytest.approx(num_named / 10)
    found = judged(small_solar_config(num_buckets=5), read)
    assert found.fits is fits
    assert ("70.0% of the test pairs" if fits else "60.0% of the test pairs ask for one") in found.why


@pytest.mark.parametrize(("each", "fits"), [(2, True), (1, False)])
def test_codes_need_items_that_training_names_often(each: int, fits: bool) -> None:
    read = data_of([[row] for row in range(9) for _ in range(each)], [[0], [1]], num_items=9)
    found = judged(small_solar_config(num_buckets=5), read)
    assert found.fits is fits
    assert f"the median item answers {each} " in found.why


@pytest.mark.parametrize(("num_items", "fits"), [(21, True), (20, False)])
def test_codes_need_more_items_than_buckets(num_items: int, fits: bool) -> None:
    read = data_of([[row] for row in range(num_items) for _ in range(3)], [[0]], num_items=num_items)
    found = judged(small_solar_config(num_buckets=20), read)
    assert found.fits is fits
    assert ("21 are few" if fits else "codes need more items than their 20 buckets, got 20") in found.why


@pytest.mark.parametrize(("num_long", "fits"), [(4, True), (5, False)])
def test_a_transformer_needs_texts_that_it_can_read(num_long: int, fits: bool) -> None:
    texts = Texts(["word " * 65] * num_long + ["word " * 64] * (8 - num_long))
    found = judged(by_name("text-transformer-dot"), data_of([[0]], [[0]], texts=texts))
    assert found.fits is fits
    assert f"{num_long / 8:.1%} of the items have more words" in found.why
    assert judged(by_name("text-dot"), data_of([[0]], [[0]], texts=texts)).fits


def test_what_training_would_refuse_does_not_fit(tmp_path: Path) -> None:
    folder = write_vector_data(tmp_path / "data")
    change(folder, "items", lambda found: found.set_column(1, "vector", pa.array([[1.0, 2.0]] * len(found))))
    found = looked(folder)["recipes"]
    assert found["vector-cosine"] == {
        "fits": False,
        "why": "vectors of items must be as wide as the 7 of queries, got 2",
    }
    assert found["vector-dot"]["fits"]


def test_no_promise_is_made_for_a_mixture(tmp_path: Path) -> None:
    found = looked(write_text_data(tmp_path / "data"))["recipes"]
    assert "a mixture promises nothing over a dot product" in found["text-mol"]["why"]
    assert found["emoji-mol"]["why"].startswith("sized for the data in the package")
    assert found["baseline-bm25"]["why"] == "nothing is trained: what it finds is the number to beat"


def test_a_run_is_for_the_packaged_data_by_its_recipe_and_not_by_how_its_name_begins(tmp_path: Path) -> None:
    read = FORMS["text"].read(Sources(str(write_text_data(tmp_path / "data"))))
    assert "a mixture promises nothing" in judged(replace(by_name("text-mol"), name="emojis-of-mine"), read).why
    for name in FOR_PACKAGED:
        assert family(by_name(name)).form.packaged is not None
        assert by_name(name).data.folder is None


@pytest.mark.parametrize(("name", "named", "median", "fits"), [("tldr", 0.957, 3, True), ("wordnet", 0.404, 1, False)])
def test_the_measurements_that_the_rule_for_codes_lies_between(
    name: str, named: float, median: float, fits: bool
) -> None:
    read = FORMS["text"].read(Sources(str(real_data(name))))
    found = facts.of_relevance(read)
    assert found["test_pairs_named_in_training_fraction"] == pytest.approx(named, abs=5e-4)
    assert found["training_queries_per_item"]["50%"] == median
    assert judged(by_name("text-solar"), read).fits is fits


# baselines


def trained_and_evaluated(config: RunConfig, read: DataSet, folder: Path) -> Any:
    """What `rails-ray train` and `rails-ray evaluate` come to, without Ray."""
    storage, own = Storage(str(folder)), family(config)
    [piece] = own.pieces()
    fitted = fit(piece, Given(read=read, storage=storage, run="r"))
    assert fitted is not None
    model = own.trained_model([("weights.safetensors", fitted.weights)])
    items = own.run_items(storage, "r", model, read)
    mass = fitted.validation["cutoff_mass"]
    return evaluate(model, items, read.queries["test"], "test", mass, own.offers.distribution())


@pytest.mark.parametrize("recipe", ["baseline-bm25", "vector-cosine"])
def test_the_number_to_beat_is_what_training_and_evaluating_give(recipe: str, tmp_path: Path) -> None:
    folder = write_text_data(tmp_path / "data") if "bm25" in recipe else write_vector_data(tmp_path / "data")
    own = family(by_name(recipe))
    read = own.form.read(Sources(str(folder)))
    expected = trained_and_evaluated(own.completed(read), read, tmp_path / "storage")
    [found] = [one for one in looked(folder)["baselines"] if one["name"] == recipe]
    assert found["hit_rate"] == {str(k): value for k, value in expected.hit_rate.items()}
    assert found["mrr"] == expected.mrr
    assert found["num_queries"] == found["num_test_queries"] == expected.num_queries
    assert found["num_items"] == found["num_corpus_items"] == expected.num_items


def test_a_corpus_that_is_too_large_is_ranked_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_text_data(tmp_path / "data")
    monkeypatch.setattr(baselines, "MOST_ITEMS", 50)
    monkeypatch.setattr(baselines, "MOST_SCORES", 1)
    monkeypatch.setattr(baselines, "FEWEST_QUERIES", 2)
    found = looked(folder)
    [one] = found["baselines"]
    assert (one["num_queries"], one["num_corpus_items"]) == (2, 60)
    assert 50 <= one["num_items"] < 60
    assert f"baseline-bm25 ranked {one['num_items']} of 60 items: on the whole corpus it finds less" in remarks(found)


# timing


class Ticking:
    """A clock that goes on by a second each time that it is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


@pytest.mark.parametrize("kind", ["text", "history", "vector", "codes"])
def test_the_time_of_a_training_is_that_of_its_steps(kind: str, tmp_path: Path) -> None:
    config, write_data = {
        "text": (small_config(), write_text_data),
        "history": (small_history_config(num_items=0), write_sequence_data),
        "vector": (small_vector_config(), write_vector_data),
        "codes": (small_solar_config(), write_text_data),
    }[kind]
    own = family(config)
    read = own.form.read(Sources(str(write_data(tmp_path / "data"))))
    found = timing.timed(own, read, Ticking())
    num_pieces = 4 if kind == "codes" else 1
    assert (found.num_pieces, found.num_steps, found.step_s) == (num_pieces, 60, 1.0)
    assert found.train_s == num_pieces * (1 + 60)  # a second of preparing, and one a step
    assert found.encode_s == (None if kind == "codes" else pytest.approx(1.0))
    assert found.num_passes == pytest.approx(60 * 16 / len(read.queries["train"]))


def test_a_part_is_timed_for_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "NUM_ROWS", 10)
    monkeypatch.setattr(timing, "NUM_ENCODED", 6)
    own = family(small_config())
    read = own.form.read(Sources(str(write_text_data(tmp_path / "data"))))
    part = sampling.part(read, 10, 10)
    few = sampling.part(part, 6, 1)
    found = timing.timed(own, read, Ticking())
    rows = (len(read.item_ids) + len(read.queries["train"])) / (len(part.item_ids) + len(part.queries["train"]))
    assert found.train_s == pytest.approx(rows + 60)
    assert found.encode_s == pytest.approx(60 / len(few.item_ids))


def test_a_model_with_a_row_for_each_of_too_many_items_is_not_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = FORMS["history"].read(Sources(str(write_sequence_data(tmp_path / "data"))))
    own = family(by_name("ml1m-sasrec"))
    assert timing.can_be_timed(own, read)
    monkeypatch.setattr(timing, "MOST_ROWS_OF_MODEL", len(read.item_ids) - 1)
    assert not timing.can_be_timed(own, read)


# the command


def test_what_the_command_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_text_data(tmp_path / "data")
    assert cli.main(["inspect", str(folder), "--no-timing"]) == 0
    text = capsys.readouterr().out
    for part in ("60", "relevance", "baseline-bm25", "text-solar", "what there is to beat", "words of an item"):
        assert part in text
    assert "problem:" not in text
    assert "what it takes" not in text


def test_the_command_times_recipes_that_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_sequence_data(tmp_path / "data")
    assert cli.main(["inspect", str(folder)]) == 0
    text = capsys.readouterr().out
    assert "what it takes" in text
    assert "3,780 of " in text
    assert "times are of one worker with one thread" in text


def test_json_is_all_that_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_number_data(tmp_path / "data", "features")
    assert cli.main(["inspect", str(folder), "--no-timing", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads(json.dumps(looked(folder, num_sampled=10_000)))
    assert found["tables"]["items"] == {
        "files": 1,
        "rows": 24,
        "bytes": (folder / "items.parquet").stat().st_size,
        "columns": ["item_id"],
    }
    assert [one["name"] for one in found["baselines"]] == ["popularity"]


def test_tables_in_places_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_text_data(tmp_path / "data")
    into_two_files(folder, "items")
    (folder / "items").rename(tmp_path / "elsewhere")
    arguments = ["inspect", "--json", "--no-timing"]
    for table in ("queries", "relevance"):
        arguments += [f"--{table}", str(folder / f"{table}.parquet")]
    assert cli.main([*arguments, "--items", str(tmp_path / "elsewhere" / "*.parquet")]) == 0
    assert json.loads(capsys.readouterr().out)["tables"]["items"]["files"] == 2


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "give the folder of a data set, or --items and the places of its other tables, got none"),
        (["EMPTY"], 1, "must hold a table of items, queries, relevance, interactions, users, got none"),
        (["EMPTY", "--sample", "0"], 2, "--sample must be at least 1, got 0"),
        (["gs://bucket/x"], 2, "storage must be a local folder or s3://bucket/prefix, got gs://"),
    ],
)
def test_a_mistake_is_one_sentence(
    arguments: list[str], code: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["inspect", *[str(tmp_path) if word == "EMPTY" else word for word in arguments]]) == code
    text = capsys.readouterr().err
    assert message in text
    assert "Traceback" not in text


def test_problems_are_printed_and_exit_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_text_data(tmp_path / "data")
    change(folder, "relevance", setting("item_id", 1, "nobody"))
    change(folder, "queries", setting("split", 1, "dev"))
    assert cli.main(["inspect", str(folder), "--no-timing"]) == 1
    out, errors = capsys.readouterr()
    assert f"problem: column 'item_id' of {folder}/relevance.parquet must be in {folder}/items.parquet, got" in out
    assert "problem: column 'split' of" in out
    assert errors == f"rails-ray: {folder} must be data that training takes, got 2 problems\n"


def test_what_training_does_not_refuse_is_remarked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_text_data(tmp_path / "data")
    split = [{"valid": "train"}.get(own, own) for own in pq.read_table(folder / "queries.parquet")["split"].to_pylist()]
    change(folder, "queries", lambda found: found.drop_columns(["split"]).append_column("split", pa.array(split)))
    change(folder, "relevance", lambda found: found.filter(pa.compute.not_equal(found["query_id"], 0)))
    assert cli.main(["inspect", str(folder), "--no-timing"]) == 0
    text = capsys.readouterr().out
    assert "no query has split valid: every tenth training query is held out" in text
    assert "1 of 77 queries have no relevant item and are left out" in text


def test_vectors_that_are_zero_are_remarked(tmp_path: Path) -> None:
    folder = write_vector_data(tmp_path / "data")
    change(folder, "items", setting("vector", 3, [0.0] * 7))
    assert "1.67% of the vectors of items are zero, which no cosine tells apart" in remarks(looked(folder))


def test_users_that_test_nothing_and_items_that_answer_nothing_are_remarked(tmp_path: Path) -> None:
    folder = write_sequence_data(tmp_path / "data")
    users = pq.read_table(folder / "interactions.parquet")["user_id"].to_pylist()
    is_kept = [user != "user-0" or number < 2 for number, user in enumerate(users)]
    change(folder, "interactions", lambda found: found.filter(pa.array(is_kept)))
    assert "1 users have fewer than 3 interactions: they train, and test nothing" in remarks(looked(folder))
    texts = write_text_data(tmp_path / "texts")
    change(texts, "relevance", lambda found: found.filter(pa.compute.not_equal(found["item_id"], "item-7")))
    change(texts, "queries", lambda found: found.set_column(1, "text", pa.array(["same"] * len(found))))
    found = remarks(looked(texts))
    assert "1 of 60 items answer no query of any split" in found
    assert "100.0% of the test queries have the text of a training query" in found


def test_a_data_set_on_s3(s3: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_text_data(tmp_path / "data")
    for path in folder.glob("*.parquet"):
        Storage(s3).write(f"mine/{path.name}", path.read_bytes())
    assert cli.main(["inspect", f"{s3}/mine", "--json", "--no-timing"]) == 0
    found, local = json.loads(capsys.readouterr().out), looked(folder, num_sampled=10_000)
    assert found.pop("folder") == f"{s3}/mine"
    local.pop("folder")
    assert found == json.loads(json.dumps(local))


RUN = """
import sys
from rails_ray import cli
code = cli.main(["inspect", *sys.argv[1:]])
assert "ray" not in sys.modules
sys.exit(code)
"""


def test_the_command_imports_no_ray(tmp_path: Path) -> None:
    folder = write_text_data(tmp_path / "data")
    arguments = [sys.executable, "-c", RUN, str(folder), "--no-timing"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


WATCHED = """
import re, sys, threading, time
peak = 0
def watch():
    global peak
    while True:
        peak = max(peak, int(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read())[1]))
        time.sleep(0.01)
threading.Thread(target=watch, daemon=True).start()
from rails_ray import cli
code = cli.main(["inspect", *sys.argv[1:]])
print("peak MB", peak // 1024)
sys.exit(code)
"""


@pytest.mark.long
def test_two_million_items_take_bounded_memory(tmp_path: Path) -> None:
    """BM25 keeps 3 KB of each of its 200,000 items, twice while it puts them together; ids and hashes take the rest."""
    num_items, num_queries, rng = 2_000_000, 3_000, np.random.default_rng(0)
    vocabulary = np.array([f"word{number}" for number in range(5000)])
    (tmp_path / "items").mkdir()
    for number in range(4):
        ids = np.arange(number * num_items // 4, (number + 1) * num_items // 4)
        texts = [" ".join(own) for own in vocabulary[rng.integers(5000, size=(len(ids), 8))]]
        pq.write_table(pa.table({"item_id": ids, "text": texts}), tmp_path / "items" / f"{number}.parquet")
    queries = {
        "query_id": range(num_queries),
        "text": [" ".join(own) for own in vocabulary[rng.integers(5000, size=(num_queries, 4))]],
        "split": np.repeat(SPLITS, num_queries // 3),
    }
    relevance = {"query_id": range(num_queries), "item_id": rng.integers(num_items, size=num_queries)}
    pq.write_table(pa.table(queries), tmp_path / "queries.parquet")
    pq.write_table(pa.table(relevance), tmp_path / "relevance.parquet")
    arguments = [sys.executable, "-c", WATCHED, str(tmp_path), "--no-timing"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "200,000 of 2,000,000" in done.stdout
    assert int(done.stdout.rpartition("peak MB")[2]) < 2_600


@pytest.mark.parametrize(
    ("name", "reading", "num_items", "baseline"),
    [
        ("tldr", "text", 7_424, "baseline-bm25"),
        ("scifact", "text", 5_183, "baseline-bm25"),
        ("ml-1m", "history", 3_706, "popularity"),
        ("delicious", "features", 983, "popularity"),
    ],
)
def test_real_data(name: str, reading: str, num_items: int, baseline: str) -> None:
    found = looked(str(real_data(name)))
    assert list(found["facts"]) == [reading]
    assert found["facts"][reading]["items"]["num"] == num_items
    assert found["problems"] == []
    [one] = found["baselines"]
    assert one["name"] == baseline
    assert 0 < one["hit_rate"]["1"] <= one["hit_rate"]["10"] < 1


def test_real_data_that_lack_a_column() -> None:
    found = looked(str(real_data("ml-100k")))
    assert found["readings"]["history"]["lacks"] == ["interactions.position"]
    [sentence] = found["problems"]
    assert sentence.endswith(
        "interactions.parquet must have a column 'position', got user_id, item_id, rating, timestamp"
    )
