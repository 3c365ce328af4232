"""RBE over HTTP: a budget beside the same one in this process, and a heavy ranker that fails, is slow or is killed."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import ray

from rails_ray.on_ray.serving.plan import DeploymentSize, ServeArgs
from rails_ray.schema.deployment import RankerArgs, RankerPlacement
from rails_ray.serving import client, local
from support.one_serve import served
from support.ranked import NUM_SUPPORTS, by_pairs
from support.served_version import FromRoot

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("ray_cluster")]
NUM_REPLICAS = 2
TROUBLED = RankerArgs(path="support.ranked:troubled", timeout_s=4, max_in_flight=8)


@pytest.fixture(scope="module")
def server(rbe_root: Path) -> Iterator[FromRoot]:
    """Two shards, and a ranker of two replicas."""
    args = ServeArgs(storage=str(rbe_root), allow_anonymous=True, ranker=TROUBLED)
    placement = DeploymentSize(ranker=RankerPlacement(replicas=NUM_REPLICAS, num_cpus=0.1))
    with served(args, placement) as url:
        yield FromRoot(url, rbe_root)


def asked(*texts: str, **budget: Any) -> dict[str, Any]:
    return {"queries": [{"text": text} for text in texts], "k": 5, **({"budget": budget} if budget else {})}


def without_calls(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Results without what depends on whether a query was asked before."""
    return [{**result, "budget": {**result["budget"], "calls_used": None}} for result in results]


@pytest.mark.parametrize("budget", [{}, {"calls": 30}, {"calls": 30, "rounds": 3}, {"calls": 60}])
def test_a_server_answers_as_a_version_in_this_process(server: FromRoot, budget: dict[str, Any]) -> None:
    texts = ["red hat", "blue", "green boat"]
    response = server.search(**asked(*texts, **budget))
    assert response.status_code == 200, response.text
    here = local.open(str(server.root), ranker=by_pairs)
    expected = here.search(texts, k=5, budget=budget or None).model_dump()
    assert without_calls(response.json()["results"]) == without_calls(expected["results"])
    assert response.json()["is_exact"] == expected["is_exact"]


def test_the_index_names_the_ranker(server: FromRoot) -> None:
    facts = client.index(server.url)
    assert (facts["ranker"], facts["takes_budget"]) == (TROUBLED.path, True)


def test_calls_are_told(server: FromRoot) -> None:
    [first] = server.search(**asked("quite new", calls=20)).json()["results"]
    [again] = server.search(**asked("quite new", calls=20)).json()["results"]
    assert first["budget"]["calls_used"] == 20
    assert again["budget"]["calls_used"] == 20 - NUM_SUPPORTS
    assert again["items"] == first["items"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("raise", "the heavy ranker must score 6 items, got RuntimeError: out of memory"),
        ("nan", "the heavy ranker must answer with finite scores, got nan for item"),
        ("short", "must answer with 6 scores, one for each item, got an answer of shape [5]"),
        ("sleep", "the heavy ranker must answer within 4 s, got no answer"),
    ],
)
def test_supports_that_fail_fail_their_query_alone(server: FromRoot, wrong: str, told: str) -> None:
    response = server.search(**asked("red hat", f"{wrong} hat", "blue", calls=30))
    assert response.status_code == 200, response.text
    results = response.json()["results"]
    assert [result["error"] is None for result in results] == [True, False, True]
    assert told in results[1]["error"]
    alone = server.search(**asked(f"{wrong} hat"))
    assert alone.status_code == 503
    assert told in alone.json()["error"]
    expected = local.open(str(server.root), ranker=by_pairs).search(["red hat", "blue"], k=5, budget={"calls": 30})
    assert [results[0]["items"], results[2]["items"]] == [result.items for result in expected.results]


@pytest.mark.long
@pytest.mark.parametrize("wrong", ["raise", "nan", "short", "sleep"])
def test_a_reranking_that_fails_leaves_the_order_of_the_index(server: FromRoot, wrong: str) -> None:
    text = f"later {wrong}"
    [plain] = server.search(**asked(text)).json()["results"]
    [result] = server.search(**asked(text, calls=30)).json()["results"]
    assert not result["budget"]["is_reranked"]
    assert result["budget"]["reason"].startswith("the heavy ranker must")
    assert (result["items"], result["scores"]) == (plain["items"], plain["scores"])


def test_a_deadline_comes_first(server: FromRoot) -> None:
    server.search(**asked("later sleep"))
    started = time.monotonic()
    [result] = server.search(**asked("later sleep", calls=30, deadline_ms=300)).json()["results"]
    assert time.monotonic() - started < 2
    assert result["budget"] == {
        "calls_used": 0,
        "is_reranked": False,
        "reason": "the deadline of 300 ms came first",
    }


def test_bad_budgets_are_told(server: FromRoot) -> None:
    response = server.search(**asked("red", calls=5))
    assert response.status_code == 422
    assert response.json()["error"] == (
        "budget.calls must be at least 6, which a query of version v1 spends on its supports, got 5"
    )
    assert server.search(**asked("red", calls=30, deadline=5)).status_code == 422


def rankers() -> list[str]:
    """The names of the ranker's replicas."""
    named = ray.util.list_named_actors(all_namespaces=True)
    return [actor["name"] for actor in named if "#Ranker#" in actor["name"]]


def wait_until(is_so: Callable[[], bool]) -> None:
    """Look, a few times a second, until something is so.

    Raises:
        TimeoutError: if it is not within three minutes.
    """
    deadline = time.monotonic() + 180
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.1)


@pytest.mark.faults
def test_a_ranker_that_is_killed_under_load_fails_no_request(server: FromRoot) -> None:
    stop, answers, started = threading.Event(), list[httpx.Response](), time.monotonic()

    def load(number: int) -> None:
        while not stop.is_set():
            answers.append(server.search(**asked(f"load {number} {len(answers)}", calls=20)))

    while time.monotonic() < started + 30 and server.search(**asked("ready?", calls=20)).elapsed.total_seconds() > 0.5:
        pass  # calls that were told to sleep still hold replicas
    threads = [threading.Thread(target=load, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(answers) > 10)
    before = len(answers)
    killed = rankers()[0]
    ray.kill(ray.get_actor(killed, namespace="serve"), no_restart=True)
    wait_until(lambda: killed not in rankers())
    wait_until(lambda: len(answers) > before + 10 and len(rankers()) == NUM_REPLICAS)  # it was replaced
    stop.set()
    for thread in threads:
        thread.join()
    assert [answer.text for answer in answers if answer.status_code != 200] == []
    results = [answer.json()["results"][0] for answer in answers]
    assert all(result["error"] is None for result in results)
    assert all(result["budget"]["is_reranked"] for result in results)
