"""Ids of items in requests and answers: integers that JavaScript cannot hold, digits in their place, and ids that name
no item."""

import json
from pathlib import Path

import httpx
import numpy as np
import pyarrow as pa
import pytest

from rails_ray.serving import local
from rails_ray.serving.http.single import SingleProcessServer, listening
from rails_ray.serving.local import LocalVersion
from support.ports import free_port

LARGE = [2**53 + 1, 2**53 + 3, 2**63 - 1, 7]
UNSIGNED = [2**64 - 1, 2**63, 2**53 + 1, 7]
VECTORS = np.eye(4, 6)
ROUNDED = float(2**53 + 1)  # as JavaScript reads it


@pytest.fixture(scope="module", params=[LARGE, UNSIGNED], ids=["signed", "unsigned"])
def ids(request: pytest.FixtureRequest) -> list[int]:
    found: list[int] = request.param
    return found


@pytest.fixture(scope="module")
def version(ids: list[int]) -> LocalVersion:
    return local.build(VECTORS, ids)


def test_ids_are_answered_as_they_are_stored_or_as_strings(version: LocalVersion, ids: list[int]) -> None:
    stored, strings = version.search(VECTORS, k=1), version.search(VECTORS, k=1, ids="string")
    assert [result.items for result in stored.results] == [[own] for own in ids]
    assert [result.items for result in strings.results] == [[str(own)] for own in ids]
    assert [own.item for own in version.explain(VECTORS[0], ids, ids="string").items] == [str(own) for own in ids]


def test_integers_are_taken_as_digits(version: LocalVersion, ids: list[int]) -> None:
    query = {"embedding": VECTORS[0].tolist()}
    for excluded in (ids[:3], [str(own) for own in ids[:3]], [ids[0], str(ids[1]), ids[2]]):
        [result] = version.search([{**query, "exclude": excluded}], k=4).results
        assert (result.items, result.num_unknown_excluded) == ([ids[3]], 0)
    explained = version.explain(query, [str(own) for own in ids])
    assert [own.item for own in explained.items] == ids
    assert [own.score for own in explained.items] == [own.score for own in version.explain(query, ids).items]


@pytest.mark.parametrize(
    "unknown",
    ["07", "+7", " 7", "7.0", "-0", "a", "", str(2**70), 2**70, -1, int(ROUNDED), str(int(ROUNDED)), "\u0667"],
)
def test_what_names_no_item_is_counted(version: LocalVersion, ids: list[int], unknown: int | str) -> None:
    queries = [
        {"embedding": VECTORS[3].tolist(), "exclude": exclude} for exclude in ([unknown, "7"], [], [unknown] * 2)
    ]
    results = version.search(queries, k=4).results
    assert [result.num_unknown_excluded for result in results] == [1, 0, 2]
    assert [len(result.items) for result in results] == [3, 4, 4]
    with pytest.raises(ValueError, match=r"items\[1\] must be an item of the index, got"):
        version.explain(VECTORS[0], [7, unknown])


def test_digits_are_no_integer_where_ids_are_strings() -> None:
    version = local.build(VECTORS, ["7", "07", "a", "b"])
    [result] = version.search([{"embedding": VECTORS[0].tolist(), "exclude": ["7", 7, "07"]}], k=4).results
    assert (sorted(result.items), result.num_unknown_excluded) == (["a", "b"], 1)


def test_over_http(version: LocalVersion, ids: list[int]) -> None:
    body = {"queries": [{"embedding": VECTORS[0].tolist(), "exclude": [str(ids[1]), "none"]}], "k": 4}
    with listening(SingleProcessServer(version), port=(port := free_port())):
        url = f"http://127.0.0.1:{port}/v1"
        plain = httpx.post(f"{url}/search", json=body).json()["results"][0]
        strings = httpx.post(f"{url}/search", json={**body, "ids": "string"}).json()["results"][0]
        stream = httpx.post(f"{url}/search", json=body, headers={"accept": "application/vnd.apache.arrow.stream"})
        refused = httpx.post(f"{url}/search", json={**body, "ids": "number"})
        search = {"queries": body["queries"], "cutoff": {"top_k": 1}, "ids": "string"}
        judged = httpx.post(f"{url}/feedback", json={"search": search, "relevant": [[str(ids[0]), ids[0], ids[1]]]})
    left = [ids[0], *ids[2:]]
    assert (plain["items"], strings["items"]) == (left, [str(own) for own in left])
    assert plain["num_unknown_excluded"] == 1
    with pa.ipc.open_stream(stream.content) as reader:
        assert reader.read_all()["items"].to_pylist() == [left]
    assert refused.status_code == 422
    assert json.loads(refused.text)["error"] == "ids must be 'stored' or 'string', got 'number'"
    assert judged.json()["kept"] == [[True, True, False]]


def test_texts_that_cannot_be_stored_and_numbers_out_of_range(tmp_path: Path) -> None:
    """Half of a surrogate pair, as names of files may have, is no item's id, and refused where it would be kept."""
    vectors, half = np.eye(4, dtype=np.float32), "b\ud800"
    texts = local.build(vectors, [*"abcd"], attributes={"s": [*"wxyz"], "f": [0.5] * 4}, folder=str(tmp_path / "texts"))
    query = vectors[0].tolist()
    assert texts.delete([half]).num_unknown == 1
    assert len(texts.search([{"embedding": query, "exclude": [half]}], k=4).results[0].items) == 4
    assert texts.search([{"embedding": query, "include": [half]}], k=4).results[0].items == []
    numbers = local.build(vectors, [*range(4)], folder=str(tmp_path / "numbers"))
    for refused, message in [
        (lambda: texts.explain(query, [half]), r"items\[0\] must be an item of the index, got 'b\\ud800'"),
        (lambda: texts.search([query], filter={"s": half}), r"filter.s must be a string, .* got 'b\\ud800'"),
        (lambda: texts.add(vectors[:1], [half]), "ids must be all integers or all strings, got: "),
        (lambda: local.build(vectors, attributes={half: [1] * 4}), "attributes must have names of Unicode characters"),
        (
            lambda: texts.add(vectors[:1], ["e"], attributes={"s": ["x"], "f": [2**60]}),
            r"attribute 'f' must hold whole numbers within double up to 2\*\*53, as it rounds larger ones, got 11",
        ),
        (lambda: numbers.add(vectors[:1], [2**63]), "item_id must fit type int64, as those of version .* do: "),
        (lambda: local.build(vectors[:2], [2**64, 1]), "ids must be integers of 64 bits, all signed or all unsigned"),
        (lambda: local.build(vectors[:2], [-1, 2**63]), "ids must be integers of 64 bits, all signed or all unsigned"),
    ]:
        with pytest.raises(ValueError, match=message):
            refused()
