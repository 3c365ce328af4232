"""SOLAR over HTTP: the same application, with items that are found by their codes."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
import pytest

from rails_ray.cli.main import main
from rails_ray.families.shards import Items
from rails_ray.families.solar.model import Solar
from rails_ray.families.version import Version
from rails_ray.on_ray.serving.plan import ServeArgs
from rails_ray.search.masks import Exclusions
from rails_ray.search.spec import SearchSpec
from rails_ray.storage.filesystem import Storage
from support.data_folders import write_text_data
from support.examples import publish_solar
from support.one_serve import served
from support.searchers import make_searchable
from support.served_version import ASKED, TEXTS, AtUrl

pytestmark = [pytest.mark.cluster, pytest.mark.long]


@dataclass(frozen=True)
class Server(AtUrl):
    """A server, and the same version in this process."""

    model: Solar
    items: Items

    def offline(self, k: int, exclude: list[int] | None = None) -> tuple[list[list[str]], list[list[float]]]:
        query = self.model.encode_queries(self.model.query_features(TEXTS))
        searcher = make_searchable(self.model.similarity, self.items.state)
        found = searcher.search(query, SearchSpec(k, mask=Exclusions.of([exclude or []] * len(TEXTS))))
        return [[self.items.item_ids[row] for row in line] for line in found.item_rows.tolist()], found.scores.tolist()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, ray_cluster: None) -> Iterator[Server]:
    """Two shards of a model of which three of four chunks are trained."""
    root = tmp_path_factory.mktemp("solar")
    published = publish_solar(root, write_text_data(root / "my-data"), chunks=[0, 1, 3])
    store = Storage(str(root))
    model = Version(store, published).model
    assert isinstance(model, Solar)
    with served(ServeArgs(storage=str(root), timeout_s=30, allow_anonymous=True)) as url:
        yield Server(url, model, Version(store, published).items())


def results(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    found: list[dict[str, Any]] = response.json()["results"]
    return found


def test_the_full_search_is_that_of_this_process(server: Server) -> None:
    expected, scores = server.offline(7)
    found = results(server.search(queries=ASKED, k=7))
    assert [result["items"] for result in found] == expected
    assert np.allclose([result["scores"] for result in found], scores, atol=1e-6)
    assert all(result["certificate"] == {"is_exact": True, "gap": 0.0, "reason": None} for result in found)


def test_what_is_missing_of_the_model_is_said(server: Server) -> None:
    coverage = server.search(queries=ASKED, k=7).json()["coverage"]
    assert (coverage["chunks_trained"], coverage["num_chunks"]) == (3, 4)
    assert (coverage["items_searched"], coverage["num_items"]) == (60, 60)


def test_inverted_with_all_buckets_is_exact(server: Server) -> None:
    expected, _ = server.offline(7)
    found = results(server.search(queries=ASKED, k=7, method="inverted", num_probes=20))
    assert [result["items"] for result in found] == expected
    assert all(result["certificate"]["is_exact"] for result in found)


def test_inverted_scores_few_and_proves_what_it_can(server: Server) -> None:
    _, scores = server.offline(60)
    found = results(server.search(queries=ASKED, k=3, method="inverted", num_probes=4))
    for result, all_scores in zip(found, scores, strict=True):
        assert result["num_scored"] < 60
        assert not result["is_short"]
        missed = all_scores[2] - result["scores"][-1]  # of the score that the last of the list could have had
        assert missed <= result["certificate"]["gap"] + 1e-6
        if result["certificate"]["is_exact"]:
            assert missed == pytest.approx(0, abs=1e-6)


def test_a_list_that_is_short_says_so(server: Server) -> None:
    found = results(server.search(queries=ASKED, k=50, method="inverted", num_probes=1))
    for result in found:
        assert 0 < result["num_kept"] < 50
        assert result["num_kept"] == len(result["items"]) == len(set(result["items"]))
        assert (result["is_short"], result["is_truncated"]) == (True, False)
        assert result["certificate"]["is_exact"] is False
        assert "fewer items than were asked for" in result["certificate"]["reason"]


def test_items_by_score(server: Server) -> None:
    _, scores = server.offline(60)
    threshold = float(np.median([line[5] for line in scores]))
    found = results(server.search(queries=ASKED, cutoff={"score": threshold}, method="inverted", num_probes=20))
    for result, line in zip(found, scores, strict=True):
        assert result["num_kept"] == sum(score >= np.float32(threshold) for score in line)


def test_excluded_items(server: Server) -> None:
    expected, _ = server.offline(5, exclude=[0, 31])
    queries = [{**query, "exclude": ["item-0", "item-31"]} for query in ASKED]
    for more in ({}, {"method": "inverted", "num_probes": 20}):
        assert [result["items"] for result in results(server.search(queries=queries, k=5, **more))] == expected


def test_a_query_of_which_nothing_is_known_is_answered_and_flagged(server: Server) -> None:
    known, unknown, other = results(server.search(queries=[{"text": "red"}, {"text": "qqqq"}, {"text": "!"}], k=4))
    assert (known["is_known"], unknown["is_known"], other["is_known"]) == (True, False, False)
    assert unknown["items"] == other["items"] != known["items"]


def test_explanations_are_of_chunks(server: Server) -> None:
    (best, *_), (score, *_) = (values[0] for values in server.offline(1))
    answer = server.explain(query=ASKED[0], items=[best]).json()
    (item,) = answer["items"]
    assert item["score"] == pytest.approx(score, abs=1e-6)
    assert np.shape(item["cosines"]) == np.shape(item["gates"]) == (1, 4)
    assert item["score"] == pytest.approx(float((np.array(item["cosines"]) * item["gates"]).sum()), abs=1e-6)


def test_the_command_says_what_an_answer_lacks(server: Server, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["red", "qqqq", "--show", "50", "--k", "50", "--method", "inverted", "--num-probes", "1"]
    assert main(["query", *words, "--url", server.url]) == 0
    told = " ".join(capfd.readouterr().out.split())
    assert "3 of 4 chunks of the model are trained" in told
    assert "'red': the buckets looked up hold no more items; raise --num-probes to look up more" in told
    assert "training saw no part of 'qqqq': this is the answer to an empty query" in told
    assert "nothing of 'red'" not in told


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (
            {"method": "inverted", "num_probes": 21},
            422,
            "num_probes must be at least 1 and at most the 20 buckets, got 21",
        ),
        ({"method": "inverted", "num_candidates": 3}, 422, "num_candidates must be at least 10, the k of the search"),
        ({"method": "two_pass"}, 422, "method must be one of brute_force, inverted for items that are found by their"),
        ({"cutoff": {"nucleus": 0.5}}, 409, "got loss bucket_cross_entropy: take coverage, score or top_k"),
        ({"cutoff": {"mass": 0.5}}, 409, "cutoff mass needs a model with a trained tau_q"),
        ({"queries": [{"embedding": [1.0]}]}, 422, "queries[0] must be given by text for this index, got embedding"),
        ({"queries": [{"features": {"1": 1.0}}]}, 422, "queries[0] must be given by text for this index, got features"),
    ],
)
def test_what_cannot_be_asked(server: Server, body: dict[str, Any], status: int, message: str) -> None:
    response = server.search(**{"queries": ASKED, "k": 10, **body})
    assert response.status_code == status
    assert message in response.json()["error"]
