"""A budget before a dot product and before a mixture, over HTTP: as in this process, and in time."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from rails_ray.on_ray.serving.plan import DeploymentSize, ServeArgs
from rails_ray.schema.deployment import RankerArgs, RankerPlacement
from rails_ray.serving import local
from support.data_folders import write_text_data
from support.examples import publish_untrained
from support.one_serve import served
from support.ranked import SLOW_S, by_pairs
from support.served_version import FromRoot

pytestmark = [pytest.mark.cluster, pytest.mark.long]
TEXTS = ["red hat", "blue", "green boat"]


@dataclass(frozen=True)
class Server(FromRoot):
    similarity: str


@pytest.fixture(scope="module", params=["dot product", "mixture"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, ray_cluster: None
) -> Iterator[Server]:
    """Two shards, and a ranker that may take longer than a request."""
    root = tmp_path_factory.mktemp("budget")
    publish_untrained(root, write_text_data(root / "data"), similarity=request.param, keep_texts=True)
    ranker = RankerArgs(path="support.ranked:troubled")
    args = ServeArgs(storage=str(root), allow_anonymous=True, ranker=ranker, deadline_s=2)
    placement = DeploymentSize(ranker=RankerPlacement(replicas=2, num_cpus=0.1))
    with served(args, placement) as url:
        yield Server(url, root, request.param)


def asked(*texts: str, **budget: Any) -> dict[str, Any]:
    return {"queries": [{"text": text} for text in texts], "k": 5, **({"budget": budget} if budget else {})}


@pytest.mark.parametrize("rounds", [1, 3])
def test_a_server_answers_as_a_version_in_this_process(server: Server, rounds: int) -> None:
    response = server.search(**asked(*TEXTS, calls=30, rounds=rounds))
    if server.similarity == "mixture" and rounds > 1:
        assert response.status_code == 422
        assert "budget.rounds must be 1 for version v1, whose items are not one vector" in response.json()["error"]
        return
    assert response.status_code == 200, response.text
    here = local.open(str(server.root), ranker=by_pairs)
    expected = here.search(TEXTS, k=5, budget={"calls": 30, "rounds": rounds}).model_dump()
    assert response.json()["results"] == expected["results"]
    assert [result["budget"]["is_reranked"] for result in expected["results"]] == [True] * 3


def test_a_slow_ranker_leaves_the_order_of_the_index_before_the_request_is_dropped(server: Server) -> None:
    """A request that names no deadline has the deployment's."""
    [plain] = server.search(**asked("sleep hat")).json()["results"]
    response = server.search(**asked("sleep hat", calls=30))
    assert response.status_code == 200, response.text
    assert response.elapsed.total_seconds() < SLOW_S
    [result] = response.json()["results"]
    assert (result["items"], result["scores"]) == (plain["items"], plain["scores"])
    assert result["budget"] == {
        "calls_used": 0,
        "is_reranked": False,
        "reason": "the deadline of 2000 ms came first",
    }
