"""Advice on what to try first, from facts alone."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from rails_ray.cli.inspect import remarks
from rails_ray.cli.inspecting import advice, baselines
from rails_ray.cli.inspecting.report import inspect
from rails_ray.cli.main import main
from rails_ray.data.sources import Sources
from rails_ray.families.recipes import names
from support.data_folders import write_sequence_data, write_text_data, write_vector_data
from support.inspected import looked, write
from support.text_vectors import save_sentence_transformer


def texts(num_train: int, pairs: int = 300, named: float = 0.09) -> dict[str, Any]:
    relevance = {"training_pairs": pairs, "items_named_in_training_fraction": named}
    return {"items": {"texts": {}}, "queries": {"train": num_train}, "relevance": relevance}


def test_few_training_queries_are_warned_of_and_what_trains_nothing_comes_first() -> None:
    first, warning = advice.first(texts(135), names(), "mine")
    assert first.startswith(
        "try first baseline-bm25 (`rails-ray encode --recipe baseline-bm25 --folder mine`), then a pretrained encoder"
    )
    assert (
        "`rails-ray train vector-cosine --encoder.kind sentence_transformer --encoder.pretrained MODEL --data." in first
    )
    assert warning == (
        "135 training queries: a model that learns words needs about 4,000; the 300 training pairs name 9.0% of the "
        "items"
    )
    assert advice.first(texts(1), names(), "mine")[1].startswith("1 training query: ")


@pytest.mark.parametrize(("num_train", "first"), [(3_999, "baseline-bm25"), (4_000, "text-dot")])
def test_the_number_of_training_queries_decides_for_texts(num_train: int, first: str) -> None:
    assert advice.first(texts(num_train), names(), "mine")[0].startswith(f"try first {first}")


VECTORS = {"items": {"vectors": {}}, "queries": {"train": 9}}


@pytest.mark.parametrize(
    ("facts", "fits", "first"),
    [
        (
            VECTORS,
            ["vector-mol", "vector-dot", "vector-cosine"],
            "vector-cosine, which trains nothing, then vector-dot",
        ),
        (VECTORS, ["vector-mol", "vector-dot"], "vector-dot: queries and items differ in width"),
        ({"items": {"vectors": {}}}, ["vector-cosine"], "vector-cosine (`rails-ray encode --recipe vector-cosine --fo"),
        ({"items": {"texts": {}}}, ["baseline-bm25"], "baseline-bm25 (`rails-ray encode --recipe baseline-bm25 --fold"),
        ({"items": {}, "queries": {}, "histories": {}}, ["ml1m-sasrec", "sasrec"], "sasrec: a dot product"),
        ({"items": {}, "queries": {}}, ["features-solar"], "features-solar: it is the only recipe that reads features"),
        ({"items": {}, "queries": {}}, ["vector-solar"], "vector-solar: no vectors of items are read"),
    ],
)
def test_what_comes_first_for_other_data(facts: dict[str, Any], fits: list[str], first: str) -> None:
    [sentence] = advice.first(facts, fits, "mine")
    assert sentence.startswith(f"try first {first}")
    assert ("nothing can be trained or measured" in sentence) is ("queries" not in facts)


def test_no_recipe_that_does_not_fit_comes_first() -> None:
    assert advice.first({"items": {}, "queries": {}}, [], "mine") == []
    assert "baseline-bm25" in advice.first(texts(10**6), ["baseline-bm25"], "mine")[0]


@pytest.mark.parametrize(
    ("form", "first"), [("text", "baseline-bm25"), ("history", "sasrec"), ("vectors", "vector-cosine")]
)
def test_the_command_ends_its_recipes_with_what_to_try_first(
    form: str, first: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "my data"
    write_vector_data(folder) if form == "vectors" else write(folder, form)
    assert main(["inspect", str(folder), "--no-timing"]) == 0
    found, text = looked(folder), capsys.readouterr().out
    assert found["try_first"][0].startswith(f"try first {first}")
    assert text.index("because") < text.index(found["try_first"][0]) < text.index("what there is to beat")
    assert (f"--folder '{folder}'" in text) is (form == "text")


def test_places_without_a_folder_are_no_folder(tmp_path: Path) -> None:
    folder = write_text_data(tmp_path)
    places = {name: str(folder / f"{name}.parquet") for name in ("items", "queries", "relevance")}
    found = inspect(Sources(None, places), num_sampled=10, has_timing=False)
    assert "--folder FOLDER`" in found["try_first"][0]


def test_training_pairs_and_named_items_are_counted(tmp_path: Path) -> None:
    found = looked(write_text_data(tmp_path))["facts"]["text"]["relevance"]
    queries = {row["query_id"]: row["split"] for row in pq.read_table(tmp_path / "queries.parquet").to_pylist()}
    pairs = pq.read_table(tmp_path / "relevance.parquet").to_pylist()
    named = [row["item_id"] for row in pairs if queries[row["query_id"]] == "train"]
    assert found["training_pairs"] == len(named)
    assert found["items_named_in_training_fraction"] == pytest.approx(len(set(named)) / 60)


# a pretrained encoder


def test_that_an_encoder_can_be_tried_is_said_where_texts_are(tmp_path: Path) -> None:
    sentence = (
        "--encoder.pretrained MODEL measures a pretrained encoder too: MODEL is the folder of a model of "
        "sentence-transformers"
    )
    assert sentence in remarks(looked(write_text_data(tmp_path / "texts")))
    assert sentence not in remarks(looked(write_sequence_data(tmp_path / "histories")))


def test_how_to_compare_a_mixture_is_said_where_one_fits(tmp_path: Path) -> None:
    sentence = (
        "--compare {} trains that recipe and a dot product of as many numbers, both for a few steps, and says which "
        "finds more"
    )
    found = {
        name: [own for own in remarks(looked(folder)) if own.startswith("--compare")]
        for name, folder in (
            ("texts", write_text_data(tmp_path / "texts")),
            ("histories", write_sequence_data(tmp_path / "histories")),
        )
    }
    assert found["texts"] == [sentence.format("text-mol")]
    [of_histories] = found["histories"]
    assert of_histories.endswith("says which finds more")
    report = looked(tmp_path / "histories")
    for changed in ({"compared": {"sentence": "said"}}, {"problems": ["one"]}):
        assert of_histories not in remarks({**report, **changed})


@pytest.mark.parametrize("form", ["data that are read as history", "items alone"])
def test_an_encoder_needs_texts_and_queries(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_sequence_data(tmp_path / "data") if "history" in form else write_text_data(tmp_path / "data")
    for table in ("queries", "relevance") if form == "items alone" else ():
        (folder / f"{table}.parquet").unlink()
    assert main(["inspect", str(folder), "--no-timing", "--encoder.pretrained", str(tmp_path)]) == 2
    message = f"--encoder.pretrained needs texts of items and of test queries, got {form}"
    assert message in capsys.readouterr().err


def test_an_encoder_that_is_none_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_text_data(tmp_path / "data")
    assert main(["inspect", str(folder), "--no-timing", "--encoder.pretrained", "nowhere"]) == 2
    assert "encoder.pretrained must be the folder of a model, or the name of one in" in capsys.readouterr().err


@pytest.mark.long
def test_an_encoder_is_measured_on_a_part_and_bm25_on_that_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sentence_transformers")
    folder = write_text_data(tmp_path / "data")
    words = {word for text in pq.read_table(folder / "items.parquet")["text"].to_pylist() for word in text.split()}
    save_sentence_transformer(tmp_path / "model", sorted(words))
    whole = inspect(Sources(str(folder)), num_sampled=10, has_timing=False, pretrained=str(tmp_path / "model"))
    bm25, encoder = whole["baselines"]
    assert encoder["name"] == f"pretrained {tmp_path}/model"
    assert (encoder["num_queries"], encoder["num_items"]) == (bm25["num_queries"], bm25["num_items"])
    assert encoder["hit_rate"]["10"] > 0.5  # random vectors of whole words find those that share one
    monkeypatch.setattr(baselines, "MOST_TRIED", 2)
    monkeypatch.setattr(baselines, "MOST_ENCODED", 30)
    assert main(["inspect", str(folder), "--no-timing", "--encoder.pretrained", str(tmp_path / "model")]) == 0
    text = capsys.readouterr().out
    assert "30 of 60" in text
    assert "2 of " in text
    assert "baseline-bm25 on that part ranked 30 of 60 items" in text
    assert "measures a pretrained encoder too" not in text
