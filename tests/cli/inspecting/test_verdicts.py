"""Which recipes fit, the number to beat, and what a training takes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rails_ray.cli.inspect import remarks
from rails_ray.cli.inspecting import baselines, facts, sampling, timing, verdicts
from rails_ray.data.dataset import DataSet, Texts
from rails_ray.data.forms import FORMS
from rails_ray.data.sources import Sources
from rails_ray.families.config import RunConfig
from rails_ray.families.recipes import FOR_PACKAGED, by_name
from rails_ray.families.training_family import training_family
from rails_ray.storage.filesystem import Storage
from rails_ray.training.evaluation.report import evaluate
from rails_ray.training.piece import Given, fit
from support.data_folders import real_data, write_named_data, write_sequence_data, write_text_data, write_vector_data
from support.examples import small_config, small_history_config, small_solar_config, small_vector_config
from support.inspected import change, data_of, looked

# verdicts


def judged(config: RunConfig, read: DataSet) -> verdicts.Verdict:
    return verdicts.verdict(training_family(config), read, 1000)


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


def test_named_vectors_are_not_measured_against_a_dot_product(tmp_path: Path) -> None:
    found = looked(write_named_data(tmp_path / "data"))["recipes"]["vectors-gated"]
    assert found["fits"]
    assert found["why"].startswith("only weights of your vectors are trained")


def test_a_run_is_for_the_packaged_data_by_its_recipe_and_not_by_how_its_name_begins(tmp_path: Path) -> None:
    read = FORMS["text"].read(Sources(str(write_text_data(tmp_path / "data"))))
    assert "a mixture promises nothing" in judged(replace(by_name("text-mol"), name="emojis-of-mine"), read).why
    for name in FOR_PACKAGED:
        assert training_family(by_name(name)).form.packaged is not None
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
    storage, own = Storage(str(folder)), training_family(config)
    [piece] = own.pieces()
    fitted = fit(piece, Given(read=read, storage=storage, run="r"))
    assert fitted is not None
    model = own.trained_model([("weights.safetensors", fitted.weights)])
    items = own.run_items(storage, "r", model, read)
    mass = fitted.validation["cutoff_mass"]
    return evaluate(model, items, read.queries["test"], "test", mass, own.cutoff_support.distribution())


@pytest.mark.parametrize("recipe", ["baseline-bm25", "vector-cosine"])
def test_the_number_to_beat_is_what_training_and_evaluating_give(recipe: str, tmp_path: Path) -> None:
    folder = write_text_data(tmp_path / "data") if "bm25" in recipe else write_vector_data(tmp_path / "data")
    own = training_family(by_name(recipe))
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
    own = training_family(config)
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
    own = training_family(small_config())
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
    own = training_family(by_name("ml1m-sasrec"))
    assert timing.can_be_timed(own, read)
    monkeypatch.setattr(timing, "MOST_ROWS_OF_MODEL", len(read.item_ids) - 1)
    assert not timing.can_be_timed(own, read)
