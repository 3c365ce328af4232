"""`rails-ray query`: what it asks for, and how it prints what a server answered."""

from pathlib import Path

import pytest

from rails_ray.cli.main import EXIT_BAD_ARGUMENT, main, parse
from rails_ray.cli.query import Query, read_filter, typed
from rails_ray.serving import client, local
from rails_ray.storage.filesystem import Storage
from support.attributes import random_items, with_attributes
from support.examples import publish_here
from support.responses import search_response


@pytest.mark.parametrize(
    ("method", "remedy"),
    [
        ("inverted", "the buckets looked up hold no more items; raise --num-probes to look up more"),
        ("average", "the index found no more items; raise --nprobe or --ef-search to look at more"),
        ("ann", "the index found no more items; raise --nprobe or --ef-search to look at more"),
    ],
)
@pytest.mark.parametrize("is_short", [True, False])
def test_a_short_list_says_what_finds_more(
    method: str, remedy: str, is_short: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(client, "index", lambda url: {"query": {"text": "string"}})
    answer = search_response(is_short=is_short).model_copy(update={"method": method})
    monkeypatch.setattr(client, "search", lambda *asked, **how: answer)
    Query(texts=("red",), method=method).run()
    told = " ".join(capsys.readouterr().out.split())
    assert (f"'red': {remedy}" in told) == is_short
    assert ("raise --" in told) == is_short


def test_ids_are_asked_for_as_the_index_has_them() -> None:
    assert typed("42", "int64") == 42
    assert typed("42", "string") == "42"
    assert typed("b42", "int64") == "b42"


def test_queries_by_all_that_an_index_can_take() -> None:
    words = ["query", "pizza", "--user-id", "7", "--history", "3", "x", "--features", "17:0.5", "4"]
    command = parse([*words, "--embedding", "1", "-2.5", "--embeddings", '{"title": [1], "body": [0.5, 2]}'])
    assert isinstance(command, Query)
    assert command.queries({"user_id": "int64", "history": "string"}) == [
        ("pizza", {"text": "pizza"}),
        ("user 7", {"user_id": 7}),
        ("after 3 x", {"history": ["3", "x"]}),
        ("17:0.5 4", {"features": {"17": 0.5, "4": 1.0}}),
        ("vector of 2 numbers", {"embedding": (1.0, -2.5)}),
        ("vectors title, body", {"embeddings": {"title": [1], "body": [0.5, 2]}}),
    ]


@pytest.mark.parametrize("word", ["x", "1:", "1:2:3", ":2", "1.5:2", "7:much", "7:inf", "7:nan"])
def test_features_that_are_none(word: str) -> None:
    with pytest.raises(
        ValueError, match=rf"--features must be numbers with finite values, such as 17:0.5, got '{word}'"
    ):
        Query(features=(word,)).queries({})


def test_a_feature_that_is_named_twice_and_a_vector_that_is_not_finite() -> None:
    with pytest.raises(ValueError, match="--features must name each feature once, got 17 twice"):
        Query(features=("17:1", "017:2")).queries({})
    with pytest.raises(ValueError, match=r"--embedding must be finite numbers, got 1.0 inf"):
        Query(embedding=(1.0, float("inf"))).queries({})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("title=1", r"""--embeddings must be JSON, such as '{"title": \[0.5, 1\]}', got 'title=1': Expecting value"""),
        ("[1, 2]", r"""--embeddings must be vectors by name, such as '{"title": \[0.5, 1\]}', got '\[1, 2\]'"""),
    ],
)
def test_vectors_by_name_that_are_none(given: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Query(embeddings=given).queries({})


def test_a_filter_in_json() -> None:
    command = parse(["query", "red", "--filter", '{"price": {"$lt": 20}}', "--fields", "price", "lang"])
    assert isinstance(command, Query)
    assert read_filter(command.filter) == {"price": {"$lt": 20}}
    assert (command.fields, read_filter(None)) == (("price", "lang"), None)
    with pytest.raises(ValueError, match=r"--filter must be JSON, such as .*, got 'price < 3': Expecting value"):
        read_filter("price < 3")


def test_a_filter_and_attributes_in_a_search_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    publish_here(tmp_path)
    items = random_items(60)
    with_attributes(Storage(str(tmp_path)), items)
    words = ["--filter", '{"year": {"$gt": 2010}, "tags": "a"}', "--fields", "year", "tags", "--storage", str(tmp_path)]
    assert main(["query", "red", "--local", *words]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    [found] = local.open(str(tmp_path)).search(["red"], k=4, filter={"year": {"$gt": 2010}, "tags": "a"}).results
    for item, score in zip(found.items, found.scores, strict=True):
        own = items[int(item.removeprefix("item-"))]
        assert f"{item} {score:.2f}; year {own['year']}; tags {', '.join(own['tags'])}" in printed
    assert main(["query", "red", "--local", "--filter", '{"size": 1}', "--storage", str(tmp_path)]) == EXIT_BAD_ARGUMENT
    assert "filter must name attributes of the version" in " ".join(capsys.readouterr().err.split())
