"""The baseline from its recipe to an answer over HTTP: what trains nothing goes the way of every family."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import oracles.ranking
import oracles.scores
from rails_ray import on_ray
from rails_ray.data.dataset import DataSet
from rails_ray.errors import UnsupportedError
from rails_ray.families.config import DataConfig
from rails_ray.families.data import read_data
from rails_ray.families.recipes import by_name
from rails_ray.on_ray.serving.plan import ServeArgs
from rails_ray.storage import runs, versions
from rails_ray.storage.filesystem import Storage
from support.data_folders import write_text_data
from support.one_serve import served
from support.served_version import ASKED, NO_CHUNKS, TEXTS, AtUrl

pytestmark = [pytest.mark.cluster, pytest.mark.long]


@dataclass(frozen=True)
class Server(AtUrl):
    """A server, and the same data in this process."""

    root: Path
    data: DataSet

    def scores(self, text: str) -> list[float]:
        """Of all items, by the equation."""
        items = [item.split() for item in self.data.item_inputs]
        return [oracles.scores.bm25(text.split(), item, items, k1=1.2, b=0.75) for item in items]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, ray_cluster: None) -> Iterator[Server]:
    """Two shards of the recipe's run."""
    root = tmp_path_factory.mktemp("bm25")
    config = by_name("baseline-bm25")
    config = replace(config, data=DataConfig(folder=str(write_text_data(root / "my-data"))))
    on_ray.train(config, str(root), run="r")
    on_ray.encode(str(root), "r", version="v1", num_shards=2, part_items=17)
    on_ray.publish(str(root), "v1")
    with served(ServeArgs(storage=str(root), timeout_s=30, allow_anonymous=True)) as url:
        yield Server(url, root, read_data(config, Storage(str(root))))


def results(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    found: list[dict[str, Any]] = response.json()["results"]
    return found


def test_the_run_took_no_step(server: Server) -> None:
    found = runs.read(Storage(str(server.root)), "r")
    assert found.cutoff_mass is None
    assert [path for path, _ in runs.weights(Storage(str(server.root)), found)] == ["model.safetensors"]
    assert versions.current(Storage(str(server.root))).num_items == 60


def test_answers_are_those_of_the_equation(server: Server) -> None:
    found = results(server.search(queries=ASKED, k=7))
    for text, result in zip(TEXTS, found, strict=True):
        scores = server.scores(text)
        rounded = np.array(scores, dtype=np.float32).round(5).tolist()  # equal words weigh the same to some digits
        best = [row for row in oracles.ranking.top_k(rounded, 7) if rounded[row] > 0]
        assert result["items"] == [f"item-{row}" for row in best]
        assert np.allclose(result["scores"], [scores[row] for row in best], atol=1e-5)
        assert result["certificate"] == {"is_exact": True, "gap": 0.0, "reason": None}
        assert result["is_known"]


def test_the_answer_says_what_was_searched(server: Server) -> None:
    coverage = server.search(queries=ASKED, k=7).json()["coverage"]
    assert (coverage["items_searched"], coverage["num_items"]) == (60, 60)
    assert {name: coverage[name] for name in NO_CHUNKS} == NO_CHUNKS


def test_excluded_items_and_items_by_score(server: Server) -> None:
    (best,) = results(server.search(queries=ASKED[:1], k=3))
    (others,) = results(server.search(queries=[{**ASKED[0], "exclude": best["items"]}], k=3))
    assert not set(others["items"]) & set(best["items"])
    for threshold in (0.5, 2.0):  # scores are not in [-1, 1]
        found = results(server.search(queries=ASKED, cutoff={"score": threshold}))
        for text, result in zip(TEXTS, found, strict=True):
            assert result["num_kept"] == sum(score >= threshold for score in server.scores(text))
    assert found[1]["num_kept"] > 0, "or nothing was seen of scores above 1"


def test_words_that_no_item_holds_are_told(server: Server) -> None:
    known, unknown = results(server.search(queries=[{"text": "RED!"}, {"text": "qqqq"}], k=4))
    assert (known["is_known"], unknown["is_known"]) == (True, False)
    assert (unknown["scores"], unknown["is_short"]) == ([], False)


def test_explanations_are_of_words(server: Server) -> None:
    answer = server.explain(query={"text": "red car car"}, items=["item-0", "item-59"])
    assert answer.status_code == 200, answer.text
    scores = server.scores("red car car")
    for row, item in zip([0, 59], answer.json()["items"], strict=True):
        assert item["score"] == pytest.approx(scores[row], abs=1e-5)
        assert np.shape(item["cosines"]) == np.shape(item["gates"]) == (1, 2)
        assert item["score"] == pytest.approx(float((np.array(item["cosines"]) * item["gates"]).sum()), abs=1e-5)


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"method": "two_pass"}, 422, "method must be one of brute_force for items that have terms, got 'two_pass'"),
        (
            {"cutoff": {"nucleus": 0.5}},
            409,
            "trained by a softmax over items, got loss none: take score or top_k",
        ),
        ({"cutoff": {"mass": 0.5}}, 409, "cutoff mass needs a model with a trained tau_q"),
        ({"cutoff": {"coverage": 0.5}}, 409, "calibration needs scores in [-1, 1], got a model whose scores may be"),
        ({"queries": [{"embedding": [1.0]}]}, 422, "queries[0] must be given by text for this index, got embedding"),
        ({"queries": [{"text": "!"}]}, 422, "queries[0].text must hold a letter or a digit, got '!'"),
        ({"k": 0}, 422, "k must be greater than or equal to 1, got 0"),
    ],
)
def test_what_cannot_be_asked(server: Server, body: dict[str, Any], status: int, message: str) -> None:
    response = server.search(**{"queries": ASKED, "k": 10, **body})
    assert response.status_code == status
    assert message in response.json()["error"]


def test_a_run_and_its_version_are_evaluated_alike(server: Server) -> None:
    of_run = on_ray.evaluate(str(server.root), run="r")
    of_version = on_ray.evaluate(str(server.root), version="v1")
    assert of_run == of_version
    assert of_run.num_queries == len(server.data.queries["test"])
    assert of_run.mrr > 0.5  # its queries are words of the items
    assert (of_run.cutoff_mass, of_run.lists) == (None, None)


def test_scores_without_bounds_are_not_calibrated(server: Server) -> None:
    with pytest.raises(UnsupportedError, match=r"scores may be any number \(loss none\): take score or top_k"):
        on_ray.calibrate(str(server.root))
