"""The application over HTTP: a router, a query encoder and two shards on a real cluster."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import ray
import torch

from examples import publish_untrained, write_text_data
from rails_ray import build, client, on_ray
from rails_ray.cutoffs.policies import cut
from rails_ray.encoders.model import Model
from rails_ray.errors import DamagedError, NotFoundError, UnavailableError
from rails_ray.on_ray.serving.app import check_port, served
from rails_ray.on_ray.serving.cutoffs import Cutoffs
from rails_ray.on_ray.serving.plan import ServeArgs
from rails_ray.on_ray.serving.schemas import CutoffInput
from rails_ray.retrieval.brute_force import BruteForce
from rails_ray.similarities.states import ItemState
from rails_ray.storage import calibrations, manifest, shards
from rails_ray.storage.filesystem import Storage
from rails_ray.top_k import Exclusions
from s3_server import free_port

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("ray_cluster")]


@dataclass(frozen=True)
class Served:
    """A server, and the same version in this process."""

    url: str
    root: Path
    manifest: manifest.Manifest
    model: Model
    item_ids: list[str]
    items: ItemState

    def search(self, **body: Any) -> httpx.Response:
        return httpx.post(f"{self.url}/v1/search", json=body, timeout=30)

    def offline(self, texts: list[str], k: int, exclude: list[list[str]] | None = None) -> list[list[str]]:
        query = self.model.encode_queries(self.model.query_features(texts))
        rows = [[self.item_ids.index(item) for item in ids] for ids in exclude or [[] for _ in texts]]
        found = BruteForce(self.model.similarity, self.items).search(query, k, Exclusions.of(rows))
        return [[self.item_ids[row] for row in line] for line in found.top_k.item_rows.tolist()]


@pytest.fixture(scope="module")
def served_version(tmp_path_factory: pytest.TempPathFactory, ray_cluster: None) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("served")
    published = publish_untrained(root, write_text_data(root / "my-data"))
    on_ray.calibrate(str(root), split="train")
    storage = Storage(str(root))
    items = shards.read_shards(storage, published, range(2))
    with served(ServeArgs(storage=str(root), timeout_s=5, allow_anonymous=True), port=free_port()) as url:
        yield Served(url, root, published, build.version_model(storage, published), items.item_ids, items.state)


TEXTS = ["red", "blue hat", "tree", "gold ring", "car"]
ASKED = [{"text": text} for text in TEXTS]


def test_served_answers_equal_offline_brute_force(served_version: Served) -> None:
    answer = client.search(served_version.url, ASKED, k=10, cutoff={"top_k": 10})
    assert [result["items"] for result in answer["results"]] == served_version.offline(TEXTS, 10)
    assert answer["is_exact"]
    assert answer["version"] == "v1"
    assert answer["coverage"] == {"shards_answered": 2, "num_shards": 2, "items_searched": 60, "num_items": 60}
    for result in answer["results"]:
        assert result["scores"] == sorted(result["scores"], reverse=True)
        assert result["threshold"] is None
        assert result["num_kept"] == 10


@pytest.mark.parametrize("method", build.METHODS)
def test_every_method_answers_with_its_certificate(served_version: Served, method: str) -> None:
    """With wide lists nothing is left out, which is certified; with narrow ones what is said of the gap is true."""
    wide = client.search(served_version.url, ASKED, k=10, method=method, cutoff={"top_k": 10})
    assert [result["items"] for result in wide["results"]] == served_version.offline(TEXTS, 10)
    assert wide["is_exact"]
    widths = {"num_candidates": 3, "num_per_embedding": 1}
    narrow = client.search(served_version.url, ASKED, k=3, method=method, cutoff={"top_k": 3}, **widths)
    exact = client.search(served_version.url, ASKED, k=3, cutoff={"top_k": 3})
    assert narrow["method"] == method
    for result, best in zip(narrow["results"], exact["results"], strict=True):
        certificate = result["certificate"]
        assert result["num_scored"] <= result["num_searched"] == 60
        if method == "average":
            assert (certificate["is_exact"], certificate["gap"]) == (False, None)
            assert "any cosine" in certificate["reason"]
            continue
        assert certificate["is_exact"] == (certificate["gap"] == 0)
        missed = [
            score for item, score in zip(best["items"], best["scores"], strict=True) if item not in result["items"]
        ]
        assert max(missed, default=-2) <= result["scores"][-1] + certificate["gap"] + 1e-6
        if certificate["is_exact"]:
            assert result["items"] == best["items"]
    assert narrow["is_exact"] == all(result["certificate"]["is_exact"] for result in narrow["results"])


def test_a_score_is_explained_by_cosines_and_gates(served_version: Served) -> None:
    best = client.search(served_version.url, [{"text": "blue hat"}], k=3, cutoff={"top_k": 3})["results"][0]
    asked = [best["items"][2], "item-59", best["items"][0]]  # of both shards, in an order of one's own
    answer = client.explain(served_version.url, {"text": "blue hat"}, asked)
    assert answer["version"] == "v1"
    assert [item["item"] for item in answer["items"]] == asked
    assert answer["items"][2]["score"] == pytest.approx(best["scores"][0], abs=1e-5)
    for item in answer["items"]:
        cosines, gates = torch.tensor(item["cosines"]), torch.tensor(item["gates"])
        assert cosines.shape == gates.shape == served_version.model.similarity.num_components
        assert gates.sum().item() == pytest.approx(1, abs=1e-5)
        assert (gates * cosines).sum().item() == pytest.approx(item["score"], abs=1e-5)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"query": {"text": "red"}, "items": ["nothing"]}, "items[0] must be an item of the index, got 'nothing'"),
        ({"query": {"text": "red"}, "items": []}, "items must have a length of at least 1, got []"),
        ({"query": {"text": "!"}, "items": ["item-0"]}, "query.text must hold a letter or a digit, got '!'"),
    ],
)
def test_what_cannot_be_explained(served_version: Served, body: dict[str, Any], message: str) -> None:
    response = httpx.post(f"{served_version.url}/v1/explain", json=body, timeout=30)
    assert (response.status_code, response.json()) == (422, {"error": message})


def test_excluded_items_are_searched_around_in_every_shard(served_version: Served) -> None:
    best = served_version.offline(TEXTS[:2], 6)
    queries = [{"text": TEXTS[0], "exclude": [*best[0], "no such item"]}, {"text": TEXTS[1], "exclude": []}]
    answer = served_version.search(queries=queries, k=6, cutoff={"top_k": 6}).json()
    expected = served_version.offline(TEXTS[:2], 6, [best[0], []])
    assert [result["items"] for result in answer["results"]] == expected


def test_the_cut_off_is_the_versions_own_unless_the_request_names_one(served_version: Served) -> None:
    own = client.search(served_version.url, [{"text": "red"}], k=60)
    named = client.search(served_version.url, [{"text": "red"}], k=60, cutoff={"mass": 0.999})
    assert own["cutoff"] == {"mass": 0.999}
    assert own["results"] == named["results"]
    everything = client.search(served_version.url, [{"text": "red"}], k=60, cutoff={"score": -1})["results"][0]
    assert everything["num_kept"] == 60
    threshold = own["results"][0]["threshold"]
    assert own["results"][0]["num_kept"] == sum(score >= threshold for score in everything["scores"])
    cut_short = client.search(served_version.url, [{"text": "red"}], k=5, cutoff={"score": -1})["results"][0]
    assert (cut_short["num_kept"], cut_short["is_truncated"]) == (5, True)
    assert not everything["is_truncated"]


CUTOFFS = {
    "mass": {"mass": 0.99},
    "mass on the sphere": {"mass": 0.5, "background": "sphere"},
    "mass fitted": {"mass": 0.5, "background": "fitted"},
    "coverage": {"coverage": 0.8},
    "nucleus": {"nucleus": 0.5},
    "probability": {"probability": 0.01},
    "score": {"score": 0.1},
    "score that none reaches": {"score": 1.0},
    "at least": {"score": 1.0, "min_items": 4},
    "at most": {"score": -1, "max_items": 7},
    "top_k": {"top_k": 5},
}


@pytest.mark.parametrize("method", ["brute_force", "two_pass", "combined"])
@pytest.mark.parametrize("cutoff", CUTOFFS.values(), ids=CUTOFFS)
def test_each_cut_off_keeps_what_its_policy_keeps_of_all_scores(
    served_version: Served, cutoff: dict[str, Any], method: str
) -> None:
    """Two shards that search by a threshold, against one list of all items that is cut at its end."""
    k = 60 if "top_k" not in cutoff else None
    answer = served_version.search(queries=ASKED, k=k, cutoff=cutoff, method=method).json()
    assert answer["cutoff"] == cutoff
    assert answer["is_exact"]
    query = served_version.model.encode_queries(served_version.model.query_features(TEXTS))
    scores = BruteForce(served_version.model.similarity, served_version.items).scores(query)
    store = Storage(str(served_version.root))
    offline = Cutoffs.read(store, served_version.manifest, ServeArgs(storage=str(store), allow_anonymous=True))
    asked = CutoffInput(**cutoff)
    logits = build.logit(offline.config)(scores, query.temperature).double()
    policy = offline.policy(asked, offline.limit(asked, k), logits.logsumexp(1).numpy(force=True))
    ordered = scores.sort(dim=1, descending=True)
    done = cut(ordered.values.numpy(), query.temperature.numpy(force=True), policy, np.zeros(len(TEXTS), dtype=bool))
    for number, result in enumerate(answer["results"]):
        num_kept = int(done.num_kept[number])
        assert result["num_kept"] == len(result["items"]) == num_kept
        rows = ordered.indices[number, :num_kept].tolist()
        assert result["items"] == [served_version.item_ids[row] for row in rows]
        assert result["is_truncated"] == bool(done.is_truncated[number])
        if result["threshold"] is not None:
            assert result["threshold"] == pytest.approx(float(done.threshold[number]), abs=1e-5)


def test_a_threshold_spares_the_shards_work(served_version: Served) -> None:
    """What cannot reach it is not scored: a high one leaves less to do than the ten best."""
    high = served_version.search(queries=ASKED, k=10, cutoff={"score": 0.99}).json()["results"]
    best = served_version.search(queries=ASKED, k=10, cutoff={"top_k": 10}).json()["results"]
    assert sum(result["num_scored"] for result in high) < sum(result["num_scored"] for result in best)
    assert all(result["num_scored"] == result["num_searched"] for result in best)


def test_excluded_items_count_neither_in_a_nucleus_nor_in_a_list(served_version: Served) -> None:
    best = served_version.offline(["red"], 60)[0]
    queries = [{"text": "red", "exclude": best[:30]}]
    (result,) = served_version.search(queries=queries, k=60, cutoff={"nucleus": 0.999}).json()["results"]
    assert result["items"]
    assert result["items"] == best[30 : 30 + result["num_kept"]]


def test_a_coverage_beyond_the_calibration_says_what_it_needs(served_version: Served) -> None:
    response = served_version.search(queries=[{"text": "red"}], cutoff={"coverage": 0.9999})
    assert response.status_code == 422
    assert response.json()["error"].startswith("coverage 0.9999 needs at least 9999 calibration queries, got ")


def test_an_embedding_asks_like_the_text_it_is_of(served_version: Served) -> None:
    model = served_version.model
    with torch.no_grad():
        embedding = model.encoder.queries(model.query_features(["red"]))[0].tolist()
    queries = [{"embedding": embedding}, {"text": "blue hat"}, {"text": "red"}]
    first, second, third = served_version.search(queries=queries, k=5, cutoff={"top_k": 5}).json()["results"]
    assert first["items"] == third["items"]
    assert second["items"] == served_version.offline(["blue hat"], 5)[0]


def test_many_clients_at_once_get_their_own_answers(served_version: Served) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def ask(text: str) -> list[str]:
        return client.search(served_version.url, [{"text": text}], k=5, cutoff={"top_k": 5})["results"][0]["items"]

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, TEXTS * 6)) == [served_version.offline([text], 5)[0] for text in TEXTS] * 6


def test_health_index_and_description(served_version: Served) -> None:
    url = served_version.url
    assert httpx.get(f"{url}/v1/health").json() == {"status": "ok", "version": "v1", "num_shards": 2}
    facts = client.index(url)
    assert facts.items() >= manifest.summary(served_version.manifest).items()
    assert facts["cutoff"] == {"mass": 0.999}
    stored = calibrations.read_current(Storage(str(served_version.root)), "v1")
    assert facts["calibration"] == stored.summary()
    paths = httpx.get(f"{url}/openapi.json").json()["paths"]
    assert set(paths) == {"/v1/explain", "/v1/search", "/v1/health", "/v1/index"}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "queries must be given, got none"),
        ({"queries": []}, "queries must have a length of at least 1, got []"),
        ({"queries": [{"text": "a"}] * 1025}, "queries must have a length of at most 1024, got 1025"),
        ({"queries": [{"text": "a"}], "k": 0}, "k must be greater than or equal to 1, got 0"),
        ({"queries": [{"text": "a"}], "k": 61}, "k must be at most the 60 indexed items, got 61"),
        ({"queries": [{"text": "a"}], "k": "ten"}, "k must be an integer, got 'ten'"),
        ({"queries": [{"text": "a"}], "speed": 9}, "speed must not be given, it is no field of this request, got 9"),
        ({"queries": [{"texts": "a"}]}, "queries[0].texts must not be given, it is no field of this request, got 'a'"),
        ({"queries": [{"text": ""}]}, "queries[0].text must have a length of at least 1, got ''"),
        ({"queries": [{}]}, "queries[0] must have exactly one of text, embedding, history, user_id, got none"),
        (
            {"queries": [{"text": "a", "embedding": [1.0]}]},
            "queries[0] must have exactly one of text, embedding, history, user_id, got text and embedding",
        ),
        ({"queries": [{"embedding": [1.0]}]}, "queries[0].embedding must have 8 numbers, got 1"),
        (
            {"queries": [{"text": "a"}, {"history": ["x"]}]},
            "queries[1] must be a text or an embedding for this index, got a history",
        ),
        ({"queries": [{"text": "🍕!"}]}, "queries[0].text must hold a letter or a digit, got '🍕!'"),
        (
            {"queries": [{"text": "a"}, {"embedding": [1e39, *[0.0] * 7]}]},
            "queries[1].embedding must hold numbers up to 1e+06, got 1e+39",
        ),
        (
            {"queries": [{"text": "a"}], "method": "magic"},
            "method must be 'brute_force', 'two_pass', 'per_embedding', 'average' or 'combined', got 'magic'",
        ),
        (
            {"queries": [{"text": "a"}], "cutoff": {"top_k": 10}, "method": "average", "num_candidates": 9},
            "num_candidates must be at least 10, the k of the search, got 9",
        ),
        (
            {"queries": [{"text": "a"}], "cutoff": {"top_k": 10}, "method": "per_embedding", "num_per_embedding": 2},
            "num_per_embedding must be at least 3 for k 10, with 4 pairs of components and 0 items by average, got 2",
        ),
        (
            {"queries": [{"text": "a"}], "method": "combined", "num_per_embedding": 0},
            "num_per_embedding must be greater than or equal to 1, got 0",
        ),
        (
            {"queries": [{"text": "a", "exclude": [f"item-{row}" for row in range(60)]}], "cutoff": {"top_k": 1}},
            "k must be at most the 0 items searched and not excluded, got 1",
        ),
        ({"queries": [{"text": "a"}], "cutoff": {"mass": 1}}, "cutoff.mass must be less than 1, got 1"),
        (
            {"queries": [{"text": "a"}], "cutoff": {"mass": 0.5, "score": 0}},
            "cutoff must have exactly one of mass, coverage, nucleus, probability, score, top_k, got mass and score",
        ),
        ({"queries": [{"text": "a"}], "cutoff": {"mass": 0}}, "cutoff.mass must be greater than 0, got 0"),
        ({"queries": [{"text": "a"}], "cutoff": {"coverage": 1}}, "cutoff.coverage must be less than 1, got 1"),
        ({"queries": [{"text": "a"}], "cutoff": {"nucleus": 2}}, "cutoff.nucleus must be less than 1, got 2"),
        (
            {"queries": [{"text": "a"}], "cutoff": {"score": 1.5}},
            "cutoff.score must be less than or equal to 1, got 1.5",
        ),
        (
            {"queries": [{"text": "a"}], "cutoff": {"score": 0.5, "min_items": -1}},
            "cutoff.min_items must be greater than or equal to 0, got -1",
        ),
        (
            {"queries": [{"text": "a"}], "k": 5, "cutoff": {"score": 0.5, "min_items": 6}},
            "min_items must be at most the 5 items of a list, got 6",
        ),
        (
            {"queries": [{"text": "a"}], "cutoff": {"score": 0.5, "min_items": 6, "max_items": 5}},
            "cutoff must have min_items of at most the 5 of max_items, got 6",
        ),
        (
            {"queries": [{"text": "a"}], "cutoff": {"top_k": 61}},
            "k must be at most the 60 indexed items, got 61",
        ),
        (
            {"queries": [{"text": "a"}], "cutoff": {"score": 0.5, "background": "sphere"}},
            "cutoff must have a background with mass alone, got 'sphere' without mass",
        ),
        (
            {"queries": [{"text": "a"}], "cutoff": {"mass": 0.5, "background": "flat"}},
            "cutoff.background must be 'uniform', 'sphere' or 'fitted', got 'flat'",
        ),
        (
            {"queries": [{"text": "a", "exclude": ["item-0"]}], "k": 60, "cutoff": {"top_k": 60}},
            "k must be at most the 59 items searched and not excluded, got 60",
        ),
    ],
)
def test_a_bad_request_is_422_and_a_sentence(served_version: Served, body: dict[str, Any], message: str) -> None:
    response = served_version.search(**body)
    assert (response.status_code, response.json()) == (422, {"error": message})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"queries": [{"embedding": [NaN]}]}', "queries[0].embedding[0] must be a finite number, got nan"),
        (b'{"queries": [{"embedding": [1e999]}]}', "queries[0].embedding[0] must be a finite number, got inf"),
        (b'{"queries": [', "the body must be JSON, got something else: Expecting value"),
        (b"[]", "the body must be a JSON object, got []"),
        (b"", "the body must be given, got none"),
    ],
)
def test_a_body_that_is_no_request(served_version: Served, body: bytes, message: str) -> None:
    response = httpx.post(f"{served_version.url}/v1/search", content=body)
    assert (response.status_code, response.json()) == (422, {"error": message})


def test_unknown_paths_and_methods(served_version: Served) -> None:
    response = httpx.get(f"{served_version.url}/v2/search")
    expected = "the path must be one of /v1/explain, /v1/health, /v1/index, /v1/search, got /v2/search"
    assert (response.status_code, response.json()) == (404, {"error": expected})
    assert httpx.get(f"{served_version.url}/v1/search").status_code == 405


def test_clients_say_what_is_wrong(served_version: Served) -> None:
    with pytest.raises(ValueError, match="k must be at most the 60 indexed items, got 99"):
        client.search(served_version.url, [{"text": "red"}], k=99)
    with pytest.raises(UnavailableError, match=r"a rails-ray server must answer at .*; `rails-ray serve` starts one"):
        client.search(f"http://127.0.0.1:{free_port()}", [{"text": "red"}], k=1)


def test_a_port_in_use(served_version: Served) -> None:
    port = int(served_version.url.rsplit(":", 1)[1])
    with pytest.raises(UnavailableError, match=f"port must be free, got {port}, which another program uses"):
        check_port("127.0.0.1", port)


def test_a_list_of_all_that_is_left_is_not_truncated(served_version: Served) -> None:
    queries = [{"text": "red", "exclude": ["item-0", "item-59"]}, {"text": "red"}]
    first, second = served_version.search(queries=queries, k=58, cutoff={"score": -1}).json()["results"]
    assert (first["num_kept"], first["is_truncated"]) == (58, False)
    assert (second["num_kept"], second["is_truncated"]) == (58, True)


def test_a_cluster_that_serves_already_is_left_alone(served_version: Served) -> None:
    with (
        pytest.raises(UnavailableError, match=r"Ray Serve must not run yet on this cluster, .* to `serve deploy`"),
        served(ServeArgs(storage=str(served_version.root), allow_anonymous=True), port=free_port()),
    ):
        pass
    assert httpx.get(f"{served_version.url}/v1/health").status_code == 200


def test_versions_that_cannot_be_served(served_version: Served, tmp_path: Path) -> None:
    with (
        pytest.raises(NotFoundError, match="version must be one of v1, got 'v9'"),
        served(ServeArgs(storage=str(served_version.root), version="v9", allow_anonymous=True), port=free_port()),
    ):
        pass
    (tmp_path / "CURRENT").write_text("not JSON")
    with (
        pytest.raises(DamagedError, match="CURRENT must be JSON"),
        served(ServeArgs(storage=str(tmp_path), allow_anonymous=True), port=free_port()),
    ):
        pass


def test_a_missing_shard_is_503_unless_the_request_can_do_with_less(served_version: Served) -> None:
    """The last test of the module: a shard's part is damaged and its replica killed, so that no new one comes up."""
    part = served_version.root / "versions" / "v1" / served_version.manifest.parts[-1].path
    whole = part.read_bytes()
    part.write_bytes(whole[:-1])
    (actor,) = [actor for actor in ray.util.list_named_actors(all_namespaces=True) if "Shard001#" in actor["name"]]
    ray.kill(ray.get_actor(actor["name"], namespace=actor["namespace"]))

    queries = [{"text": "red"}]
    response = served_version.search(queries=queries, k=5)
    assert response.status_code == 503
    assert response.json()["error"] == (
        "min_coverage must be reached, 1 of 60 items, got 30 from 1 of 2 shards: try again or ask for less"
    )
    assert response.headers["retry-after"] == "1"
    partial = served_version.search(queries=queries, k=30, min_coverage=0.5, cutoff={"top_k": 30}).json()
    assert partial["coverage"] == {"shards_answered": 1, "num_shards": 2, "items_searched": 30, "num_items": 60}
    assert set(partial["results"][0]["items"]) == set(served_version.item_ids[:30])
    too_many = served_version.search(queries=queries, k=31, min_coverage=0.5, cutoff={"top_k": 31})
    assert too_many.status_code == 422
    nucleus = served_version.search(queries=queries, k=30, min_coverage=0.5, cutoff={"nucleus": 0.999}).json()
    assert set(nucleus["results"][0]["items"]) <= set(served_version.item_ids[:30])
    assert served_version.search(queries=queries, k=5, min_coverage=0.6).status_code == 503
    health = httpx.get(f"{served_version.url}/v1/health", timeout=30)
    assert (health.status_code, health.json()) == (
        503,
        {"error": "2 shards must answer, got none from shard 1"},
    )

    part.write_bytes(whole)  # with its bytes back, the shard comes back
    deadline = time.monotonic() + 60
    while served_version.search(queries=queries, k=5).status_code != 200:
        assert time.monotonic() < deadline
        time.sleep(0.5)
