"""Weights of training pairs: how a column of them is read, and how a batch counts its queries by them."""

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rails_ray.data.batch import PairSampler, TrainingBatch, WindowSampler, relative
from rails_ray.data.dataset import DataSet, Texts
from rails_ray.data.forms import FORMS
from rails_ray.data.in_batch import InBatchSampler
from rails_ray.data.queries import ItemLists, Queries, Visits
from rails_ray.data.sources import Sources
from rails_ray.families.config import DataConfig, RunConfig
from rails_ray.families.data import read_data
from rails_ray.families.dual_encoder.train import DualEncoderTraining
from rails_ray.families.recipes import by_name
from rails_ray.families.training_family import training_family
from rails_ray.modules.schedule import TrainingConfig
from rails_ray.reranking.rankers.cross_encoder import CrossEncoderConfig
from rails_ray.storage.filesystem import Storage
from rails_ray.training.rankers import train_cross_encoder
from support.data_folders import write_sequence_data, write_text_data
from support.examples import small_bm25_config, small_config, small_history_config, small_solar_config


def add(folder: Path, table: str, weights: Any, name: str = "weight") -> Path:
    path = folder / f"{table}.parquet"
    pq.write_table(pq.read_table(path).append_column(name, pa.array(weights)), path)
    return folder


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    return write_text_data(tmp_path / "texts")


@pytest.fixture
def histories(tmp_path: Path) -> Path:
    return write_sequence_data(tmp_path / "histories")


def num_rows(folder: Path, table: str) -> int:
    return int(pq.read_metadata(folder / f"{table}.parquet").num_rows)


def read(folder: Path, form: str = "text", **columns: str) -> DataSet:
    return FORMS[form].read(Sources(str(folder), columns=columns))


@pytest.mark.parametrize(
    "made",
    [
        lambda number: pa.array(np.arange(number), pa.uint8()),
        lambda number: pa.array(np.arange(number) % 8, pa.float16()),
        lambda number: pa.array([Decimal(row) / 8 for row in range(number)], pa.decimal128(9, 4)),
        lambda number: pa.array(np.arange(number) / 4).dictionary_encode(),
    ],
)
def test_a_pair_has_the_weight_of_its_row(texts: Path, made: Callable[[int], pa.Array]) -> None:
    weights = made(num_rows(texts, "relevance"))
    table = pq.read_table(add(texts, "relevance", weights) / "relevance.parquet")
    given = list(zip(table["query_id"].to_pylist(), table["item_id"].to_pylist(), weights.to_pylist(), strict=True))
    found = read(texts)
    queries = pq.read_table(texts / "queries.parquet")
    of_text = dict(zip(queries["query_id"].to_pylist(), queries["text"].to_pylist(), strict=True))
    expected = sorted((of_text[query], item, float(weight)) for query, item, weight in given)
    assert expected == sorted(
        (own.inputs[number], found.item_ids[row], weight)
        for own in found.queries.values()
        for number in range(len(own))
        for row, weight in zip(
            own.relevant[number].tolist(), own.relevant.take(np.array([number])).weights, strict=True
        )
    )


def test_a_pair_that_comes_twice_has_its_larger_weight(texts: Path) -> None:
    path = add(texts, "relevance", np.full(num_rows(texts, "relevance"), 2.0)) / "relevance.parquet"
    table = pq.read_table(path)
    again = table.slice(0, 2).set_column(2, "weight", pa.array([5.0, 0.5]))
    pq.write_table(pa.concat_tables([table, again]), path)
    weights = np.concatenate([own.relevant.weights for own in read(texts).queries.values()])
    assert sorted(weights.tolist()) == [*[2.0] * (len(table) - 1), 5.0]


def test_weights_of_1_are_none(texts: Path, histories: Path) -> None:
    for folder, table, form in ((texts, "relevance", "text"), (histories, "interactions", "history")):
        before = read(folder, form)
        added = read(
            add(folder, table, [1, None] * (num_rows(folder, table) // 2) + [1] * (num_rows(folder, table) % 2)), form
        )
        assert added.digest() == before.digest()
        assert added.queries["train"].weights is None


def test_nulls_are_1_and_counted(texts: Path) -> None:
    number = num_rows(texts, "relevance")
    sources = Sources(
        str(add(texts, "relevance", [None, None, *[3.0] * (number - 2)], "grade")), columns={"weight": "grade"}
    )
    weights = np.concatenate([own.relevant.weights for own in FORMS["text"].read(sources).queries.values()])
    assert sorted(weights.tolist()) == [1.0, 1.0, *[3.0] * (number - 2)]
    assert f"relevance: 2 of {number} values of column 'grade' are null, read as 1" in sources.notes


@pytest.mark.parametrize("weight", [-1e-9, np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("form", ["text", "history"])
def test_weights_that_are_no_weights_are_refused(texts: Path, histories: Path, form: str, weight: float) -> None:
    folder, table = {"text": (texts, "relevance"), "history": (histories, "interactions")}[form]
    weights = np.ones(num_rows(folder, table))
    weights[3] = weight
    message = (
        rf"^column 'weight' of .*{table}\.parquet must hold finite weights of at least 0, or null for 1, got {weight} "
    )
    with pytest.raises(ValueError, match=rf"{message}in row 3$"):
        read(add(folder, table, weights), form)


def test_texts_are_no_weights(texts: Path) -> None:
    with pytest.raises(ValueError, match=r"'weight' of .* must be of type integer, float or decimal, got string"):
        read(add(texts, "relevance", ["1"] * num_rows(texts, "relevance")))


def test_an_interaction_has_the_weight_of_its_row(histories: Path) -> None:
    number = num_rows(histories, "interactions")
    table = pq.read_table(add(histories, "interactions", np.arange(number) / 2) / "interactions.parquet")
    found = read(histories, "history")
    of_user: dict[Any, list[tuple[int, float]]] = {}
    rows = sorted(table.to_pylist(), key=lambda row: row["position"])
    for row in rows:
        of_user.setdefault(row["user_id"], []).append((row["item_id"], row["weight"]))
    train, users = found.queries["train"], 0
    for own in (line for line in map(of_user.get, list(found.user_ids)) if line is not None):
        line = own if len(own) < 3 else own[:-2]
        if len(line) < 2:
            continue
        inputs = train.inputs.take(np.array([users]))
        assert inputs.weights.tolist() == [weight for _, weight in line[:-1]]
        assert train.relevant.take(np.array([users])).weights.tolist() == [line[-1][1]]
        users += 1
    assert users == len(train)


def test_ratings_are_weights_only_if_they_are_named(tmp_path: Path) -> None:
    lines = [f"{user}::{item}::{1 + (user + item) % 5}::{10 * item}" for user in range(4) for item in range(5)]
    (tmp_path / "ratings.dat").write_text("\n".join(lines))
    assert read(tmp_path, "history").queries["train"].weights is None
    found = read(tmp_path, "history", weight="rating").queries["train"]
    assert sorted({*found.weights.tolist()}) == [1, 2, 3, 4, 5]


def test_scores_of_beir_are_weights_only_if_they_are_named(tmp_path: Path) -> None:
    (tmp_path / "qrels").mkdir()
    (tmp_path / "corpus.jsonl").write_text("\n".join(f'{{"_id": "d{n}", "text": "t {n}"}}' for n in range(3)))
    (tmp_path / "queries.jsonl").write_text("\n".join(f'{{"_id": "q{n}", "text": "t {n}"}}' for n in range(3)))
    for number, split in enumerate(("train", "dev", "test")):
        lines = ["query-id\tcorpus-id\tscore", f"q{number}\td{number}\t2", f"q{number}\td{(number + 1) % 3}\t1"]
        (tmp_path / "qrels" / f"{split}.tsv").write_text("\n".join(lines))
    assert read(tmp_path).queries["train"].weights is None
    assert read(tmp_path, weight="score").queries["train"].weights.tolist() == [2.0, 1.0]


def of(config: RunConfig, folder: Path) -> RunConfig:
    return replace(config, data=DataConfig(folder=str(folder)))


def test_a_family_that_cannot_weigh_refuses_weights(texts: Path, tmp_path: Path) -> None:
    add(texts, "relevance", np.arange(num_rows(texts, "relevance")) % 3)
    with pytest.raises(
        ValueError,
        match=r"^pairs of a query and an item must count alike to train .*, which cannot weigh them, got a column "
        r"'weight': leave it out of the table, or train a dual encoder$",
    ):
        read_data(of(small_solar_config(), texts), Storage(str(tmp_path)))
    read_data(of(small_solar_config(), texts), Storage(str(tmp_path)), ("test",))  # measures no weights
    for config in (small_config(), small_bm25_config()):  # one weighs, the other trains nothing
        assert read_data(of(config, texts), Storage(str(tmp_path))).queries["train"].weights is not None


def test_some_pair_must_count(texts: Path, histories: Path, tmp_path: Path) -> None:
    for folder, table, config in (
        (texts, "relevance", small_config()),
        (histories, "interactions", small_history_config(num_items=0)),
    ):
        add(folder, table, [0] * num_rows(folder, table))
        with pytest.raises(
            ValueError, match=r"^column 'weight' of .* must hold a weight above 0 to train on, got none$"
        ):
            read_data(of(config, folder), Storage(str(tmp_path)))


@given(st.lists(st.floats(0, 1e308), min_size=1, max_size=9))
def test_relative_weights_are_multiples_of_their_mean(given: list[float]) -> None:
    found, mean = relative(np.array(given)), sum(map(Fraction, given)) / len(given)  # half the least float is none
    if len({*given}) == 1 and mean:
        assert found is None
    elif mean:
        assert found.tolist() == pytest.approx([float(Fraction(weight) / mean) for weight in given], rel=1e-5, abs=1e-6)
    else:
        assert found.tolist() == given


WEIGHTS = [0.0, 0.5, 1.0, 3.0, 2.0, 0.25, 7.0]
ANSWERS = ItemLists(np.array([0, 2, 3, 6, 7]), np.array([0, 1, 2, 3, 4, 5, 1]), weights=np.array(WEIGHTS))
QUERIES = Queries(Texts(["red", "blue", "green", "car"]), ANSWERS)


def samplers(weights: bool) -> list[Callable[[int, int], Any]]:
    model = DualEncoderTraining.of(small_config()).model()
    queries = QUERIES if weights else replace(QUERIES, relevant=replace(ANSWERS, weights=None))
    features = model.query_features(queries.inputs), model.item_features([f"item {row}" for row in range(6)])
    visits = Visits(
        np.array([0, 3, 5, 6]), np.array([0, 1, 2, 3, 4, 5]), weights=np.array(WEIGHTS[:6]) if weights else None
    )
    after = np.array([3, 4, 0]), np.array([4.0, 5.0, 0.5]) if weights else None
    shared = {"seed": 0, "num_items": 4}
    return [
        lambda rank, num: PairSampler(queries, *features, batch_size=6, rank=rank, num_workers=num, **shared),
        lambda rank, num: InBatchSampler(queries, *features, batch_size=5, rank=rank, num_workers=num, **shared),
        lambda rank, num: WindowSampler(
            visits, *after, num_corpus_items=6, max_length=2, batch_size=2, rank=rank, num_workers=num, **shared
        ),
    ]


def expected_of(batch: TrainingBatch, sampler: Any) -> list[float]:
    """The weight of each query of a batch, looked up by what it asks and what answers it."""
    positives = batch.positive_rows.tolist()
    if isinstance(sampler, WindowSampler):
        asked = batch.queries.rows.reshape(-1)[batch.queries.asked].tolist()
        pairs = {(0, 1): 0.5, (1, 2): 1.0, (2, 3): 4.0, (3, 4): 2.0, (4, 4): 5.0, (5, 0): 0.5}
        return [pairs[pair] for pair in zip(asked, positives, strict=True)]
    of_pair = {
        (query, row): WEIGHTS[place]
        for place, (query, row) in enumerate((query, int(row)) for query in range(4) for row in ANSWERS[query])
    }
    relevant = [
        sorted(batch.relevance.item_row[batch.relevance.query == line].tolist()) for line in range(len(positives))
    ]
    queries = [next(query for query in range(4) if sorted(ANSWERS[query].tolist()) == line) for line in relevant]
    return [of_pair[pair] for pair in zip(queries, positives, strict=True)]


@pytest.mark.parametrize("place", range(3), ids=["pairs", "in batch", "windows"])
def test_each_query_of_a_batch_has_its_weight_on_any_worker(place: int) -> None:
    made = samplers(True)[place]
    seen = 0
    for step in range(6):
        whole = made(0, 1).batch(step)
        given = np.array(expected_of(whole, made(0, 1)))
        if whole.weights is None:
            assert len({*given.tolist()}) == 1
            continue
        seen += 1
        assert whole.weights.tolist() == pytest.approx((given / max(given.mean(), 1e-300)).tolist(), rel=1e-6)
        parts = [made(rank, 2).batch(step).weights for rank in range(2)]
        assert torch.equal(torch.cat(parts), whole.weights)
        plain = samplers(False)[place](0, 1).batch(step)
        assert plain.weights is None
        assert torch.equal(plain.positive, whole.positive)
    assert seen


def test_heavy_rankers_and_rbe_refuse_weights(texts: Path, tmp_path: Path) -> None:
    data = read(add(texts, "relevance", np.arange(num_rows(texts, "relevance")) % 3))
    with pytest.raises(ValueError, match="to train a cross-encoder, which cannot weigh them, got a column 'weight'"):
        train_cross_encoder(data, tmp_path / "ranker", CrossEncoderConfig(), TrainingConfig())
    with pytest.raises(ValueError, match="to train text-rbe, which cannot weigh them, got a column 'weight'"):
        training_family(by_name("text-rbe")).check_weights(data)
