import random
from itertools import islice

import pytest

from rails_ray.data import emoji
from rails_ray.data.dataset import DataSet
from rails_ray.data.forms.text import TextForm
from rails_ray.data.sources import Sources
from rails_ray.modules.encoders.words import folded
from rails_ray.storage import parquet
from rails_ray.storage.filesystem import Storage


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataSet:
    tables = emoji.tables(num_valid=300, num_test=400, seed=0)
    storage = Storage(str(tmp_path_factory.mktemp("emoji")))
    for name in ("items", "queries", "relevance"):
        storage.write(f"{name}.parquet", parquet.to_bytes(getattr(tables, name)))
    return TextForm().read(Sources(str(storage)))


def test_size(data: DataSet) -> None:
    assert 3_500 < len(data.item_ids) < 4_500
    assert (len(data.queries["valid"]), len(data.queries["test"])) == (300, 400)
    assert len(data.queries["train"]) > 100_000


def test_held_out_queries_are_not_in_training(data: DataSet) -> None:
    train, valid, test = (set(data.queries[split].inputs) for split in ("train", "valid", "test"))
    assert not train & valid
    assert not train & test
    assert not valid & test
    assert set(emoji.SHOWCASE) <= test


def test_a_relevant_item_has_a_name_that_holds_the_query(data: DataSet) -> None:
    queries = data.queries["test"]
    for number in range(len(queries)):
        for row in queries.relevant[number]:
            assert queries.inputs[number] in folded(data.item_inputs[row])


def test_a_general_word_has_many_answers_and_a_special_one_few(data: DataSet) -> None:
    queries = data.queries["test"]
    counts = dict(zip(queries.inputs, queries.relevant.lengths, strict=True))
    assert counts["flag"] > 200
    assert counts["pizza"] == 1


def test_every_language_asks(data: DataSet) -> None:
    texts = set(data.queries["train"].inputs) | set(data.queries["test"].inputs)
    # dog: en, es, ja, ko, it, fr, de, zh, ru, id, tr
    assert {"dog", "perro", "イヌ", "강아지", "cane", "chien", "hund", "狗", "собака", "anjing", "köpek"} <= texts


def test_the_split_is_the_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    some = dict(islice(emoji.names_by_item().items(), 100))
    monkeypatch.setattr(emoji, "names_by_item", lambda: some)
    first, same, other = (emoji.tables(50, 50, seed).queries["split"].to_pylist() for seed in (1, 1, 2))
    assert first == same
    assert first != other


def test_queries_of_a_name() -> None:
    assert emoji.queries_of("Red Paper-Lantern 8") == {
        "red paper-lantern 8", "red paper-lantern", "paper-lantern 8", "red paper", "paper-lantern", "lantern 8",
        "red", "paper", "lantern",
    }  # fmt: skip
    assert emoji.queries_of("狗脸") == {"狗脸", "狗", "脸"}
    assert emoji.queries_of(random.choice(["", "|"])) == set()
