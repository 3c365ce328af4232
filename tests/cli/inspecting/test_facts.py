"""The facts of the look before training equal loops."""

from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rails_ray.cli.inspecting import baselines, facts, sampling
from rails_ray.data.dataset import Texts
from rails_ray.data.forms import FORMS
from rails_ray.data.forms.history import SequenceData
from rails_ray.data.queries import DenseRows, ItemLists, Queries
from rails_ray.data.sources import Sources
from rails_ray.modules.encoders.words import num_words, words
from support.data_folders import write_sequence_data, write_text_data
from support.inspected import SPLITS, data_of, lists_of_items
from support.tried import tried

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


@given(st.lists(st.text("ab !狗ि", max_size=6), min_size=1, max_size=12))
def test_facts_of_texts_equal_loops(texts: list[str]) -> None:
    found = facts.of_texts(Texts(texts), 100)
    assert found["num_sampled"] == len(texts)
    assert found["num_duplicates"] == sum(text in texts[:number] for number, text in enumerate(texts))
    assert found["blank_fraction"] == pytest.approx(sum(not words(text) for text in texts) / len(texts))
    assert found["characters"]["max"] == max(map(len, texts))
    assert found["words"]["50%"] == float(np.median([num_words(text) for text in texts]))


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
    assert found["num_duplicates"] == 0
    again = np.concatenate([values, -values[2:3], values[:2]])  # of zeros with another sign, too
    assert facts.of_vectors(DenseRows(again), 10)["num_duplicates"] == 3
    norms = [float(sum(float(x) ** 2 for x in vector)) ** 0.5 for vector in values.reshape(-1, 3)]
    assert found["norms"]["max"] == pytest.approx(max(norms))
    unit = values[:2] / np.linalg.norm(values[:2], axis=-1, keepdims=True)
    assert facts.of_vectors(DenseRows(unit.astype(np.float16).astype(np.float32)), 10)["is_normalised"]


@given(st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=6), min_size=1, max_size=5))
def test_facts_of_histories_equal_loops(histories: list[list[int]]) -> None:
    found = facts.of_histories(ItemLists.of(histories), 5)
    assert found["users"] == len(histories)
    assert found["interactions"] == sum(map(len, histories))
    assert found["density"] == pytest.approx(sum(len(set(own)) for own in histories) / (5 * len(histories)))
    assert found["num_short_users"] == sum(len(own) < 3 for own in histories)
    assert found["num_single_users"] == sum(len(own) == 1 for own in histories)
    assert found["num_repeats"] == sum(item in own[:place] for own in histories for place, item in enumerate(own))


@tried(30)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 2)), max_size=20))
def test_facts_of_order_equal_loops(
    tmp_path_factory: pytest.TempPathFactory, drawn: list[tuple[int, int, int]]
) -> None:
    """Users 0 to 3, items 0 to 3, times 0 to 2; user 3 has at least four interactions."""
    drawn = [*drawn, *((3, item, 1) for item in (0, 1, 2, 3))]
    folder = tmp_path_factory.mktemp("order")
    columns = dict(zip(("user_id", "item_id", "timestamp"), map(list, zip(*drawn, strict=True)), strict=True))
    pq.write_table(pa.table(columns), folder / "interactions.parquet")
    pq.write_table(pa.table({"item_id": [0, 1, 2, 3]}), folder / "items.parquet")
    read = FORMS["history"].read(Sources(str(folder)))
    assert isinstance(read, SequenceData)
    found, in_order = facts.of_order(read), sorted(drawn, key=itemgetter(2))
    histories = {user: [(item, time) for own, item, time in in_order if own == user] for user, _, _ in drawn}
    tested = [own for own in histories.values() if len(own) >= 3]
    assert found == {
        "sorted_by": "timestamp",
        "num_ties": sum(one[1] == other[1] for own in histories.values() for one, other in pairwise(own)),
        "num_tied_tests": sum(own[-1][1] == own[-2][1] for own in tested),
        "num_duplicates": len(drawn) - len(set(drawn)),
        "num_seen_tests": sum(own[-1][0] in [item for item, _ in own[:-1]] for own in tested),
    }


@given(lists_of_items, lists_of_items, st.lists(st.integers(0, 7), max_size=3, unique=True))
def test_popularity_equals_sorting(train: list[list[int]], test: list[list[int]], seen: list[int]) -> None:
    read = data_of(train, test)
    asked = Queries(read.queries["test"].inputs, ItemLists.of(test), ItemLists.of([seen] * len(test)))
    counts = facts.training_queries_of_items(read)
    found = baselines.ranks_by(counts, asked, asked.seen)
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
