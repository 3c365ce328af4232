"""The ranker's only replica is killed under load: what clients get until another is there."""

import re
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest
import ray

from rails_ray.on_ray.serving.app import served
from rails_ray.on_ray.serving.plan import DeploymentSize, ServeArgs
from rails_ray.schema.deployment import RankerArgs, RankerPlacement
from rails_ray.serving import local
from support.ports import free_port
from support.processes import wait_for
from support.ranked import BY_PAIRS, by_pairs
from support.served_version import FromRoot

pytestmark = [pytest.mark.cluster, pytest.mark.faults, pytest.mark.usefixtures("no_serve")]
DEADLINES: dict[str, dict[str, Any]] = {
    "red hat": {},
    "blue": {"deadline_ms": 1000},
    "green boat": {"deadline_ms": 1000},
}
"""Queries whose support scores the router keeps from before, and the deadline of each, shorter than a replica takes to
start."""


@pytest.fixture(scope="module")
def server(rbe_root: Path) -> Iterator[FromRoot]:
    """A ranker by default: one replica, one call at a time, ten seconds for each."""
    own = BY_PAIRS.path
    args = ServeArgs(storage=str(rbe_root), allow_anonymous=True, ranker=RankerArgs(path=own), allow_code=[own])
    with served(args, DeploymentSize(ranker=RankerPlacement(num_cpus=0.1)), port=free_port()) as url:
        yield FromRoot(url, rbe_root)


def ranker() -> str | None:
    """The name of the ranker's replica, if it has one."""
    named = ray.util.list_named_actors(all_namespaces=True)
    return next((actor["name"] for actor in named if "#Ranker#" in actor["name"]), None)


def ask(server: FromRoot, text: str, **deadline: Any) -> httpx.Response:
    return server.search(queries=[{"text": text}], k=5, budget={"calls": 30, **deadline})


def is_reranked(response: httpx.Response) -> bool:
    return response.status_code == 200 and response.json()["results"][0]["budget"]["is_reranked"]


def test_lists_keep_the_order_of_the_index_until_the_ranker_is_back(server: FromRoot) -> None:
    here = local.open(str(server.root), ranker=by_pairs)
    reranked = {text: here.search([text], k=5, budget={"calls": 30}).results[0].items for text in DEADLINES}
    plain = {text: here.search([text], k=5).results[0].items for text in DEADLINES}
    assert all(reranked[text] != plain[text] for text in DEADLINES)
    assert all(is_reranked(ask(server, text)) for text in DEADLINES)

    stop, numbers = threading.Event(), count()
    known, new = list[tuple[str, httpx.Response]](), list[httpx.Response]()

    def load(text: str) -> None:
        while not stop.is_set():
            known.append((text, ask(server, text, **DEADLINES[text])))

    def load_new() -> None:
        while not stop.is_set():
            new.append(ask(server, f"new {next(numbers)}"))

    threads = [threading.Thread(target=load, args=(text,)) for text in DEADLINES]
    threads.append(threading.Thread(target=load_new))
    for thread in threads:
        thread.start()
    try:
        wait_for(lambda: len(known) > 10 and len(new) > 2)
        killed = ranker()
        assert killed is not None
        ray.kill(ray.get_actor(killed, namespace="serve"), no_restart=True)
        wait_for(lambda: ranker() not in (None, killed))
        since = len(known)
        wait_for(lambda: len(known) > since + 10 and is_reranked(known[-1][1]) and is_reranked(new[-1]))
    finally:
        stop.set()
        for thread in threads:
            thread.join()

    assert [answer.status_code for _, answer in known] == [200] * len(known)
    assert not all(is_reranked(answer) for _, answer in known)
    for text, answer in known:
        [result] = answer.json()["results"]
        assert result["error"] is None
        if result["budget"]["is_reranked"]:
            assert result["items"] == reranked[text]
        else:
            assert result["items"] == plain[text]
            assert re.match("the heavy ranker must answer|the deadline of 1000 ms", result["budget"]["reason"])
    for answer in new:  # no list without the ranker, as it scores the supports
        if answer.status_code != 200:
            assert answer.status_code == 503
            assert "must have its supports scored, got: the heavy ranker must answer" in answer.json()["error"]
    assert is_reranked(ask(server, "quite new"))
