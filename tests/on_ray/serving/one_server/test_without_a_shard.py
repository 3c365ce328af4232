"""A shard that is missing. Last of its folder by its name: the server that the folder shares is harmed for a while."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import httpx
import pytest
import ray

from support.processes import wait_for
from support.served_version import NO_CHUNKS, Served

pytestmark = [pytest.mark.cluster, pytest.mark.long]


def test_a_missing_shard_is_503_unless_the_request_can_do_with_less(served_version: Served) -> None:
    """A shard's part is damaged and its replica killed, so that no new one comes up."""
    part = served_version.root / served_version.manifest.parts[-1].path
    whole = part.read_bytes()
    part.write_bytes(whole[:-1])
    (actor,) = [actor for actor in ray.util.list_named_actors(all_namespaces=True) if "Shard001#" in actor["name"]]
    ray.kill(ray.get_actor(actor["name"], namespace=actor["namespace"]))

    queries = [{"text": "red"}]
    with ThreadPoolExecutor() as at_once:  # each waits as long as a shard may take to answer
        search = partial(at_once.submit, served_version.search, queries=queries)
        whole_corpus = search(k=5)
        half = search(k=30, min_coverage=0.5, cutoff={"top_k": 30})
        more = search(k=31, min_coverage=0.5, cutoff={"top_k": 31})
        nucleus = search(k=30, min_coverage=0.5, cutoff={"nucleus": 0.999})
        too_much = search(k=5, min_coverage=0.6)
        health = at_once.submit(httpx.get, f"{served_version.url}/v1/health", timeout=30)
    response = whole_corpus.result()
    assert response.status_code == 503
    assert response.json()["error"] == (
        "100% of 60 items must be searched (min_coverage), got 30 from 1 of 2 shards: try again or ask for less"
    )
    assert response.headers["retry-after"] == "1"
    of_half = half.result().json()
    assert (
        of_half["coverage"]
        == {"shards_answered": 1, "num_shards": 2, "items_searched": 30, "num_items": 60} | NO_CHUNKS
    )
    assert set(of_half["results"][0]["items"]) == set(served_version.item_ids[:30])
    assert more.result().json()["results"] == of_half["results"], "what there is"
    assert set(nucleus.result().json()["results"][0]["items"]) <= set(served_version.item_ids[:30])
    assert too_much.result().status_code == 503
    assert (health.result().status_code, health.result().json()) == (
        503,
        {"error": "2 shards must answer, got none from shard 1"},
    )

    part.write_bytes(whole)  # with its bytes back, the shard comes back
    wait_for(lambda: served_version.search(queries=queries, k=5).status_code == 200)
