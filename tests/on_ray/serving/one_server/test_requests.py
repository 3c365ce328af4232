"""Requests and their answers, which equal those of the same version in this process."""

from pathlib import Path
from typing import Any

import httpx
import pytest
import ray
import torch

from rails_ray.errors import DamagedError, NotFoundError, UnavailableError
from rails_ray.families import calibrations
from rails_ray.families.version import Version
from rails_ray.on_ray.serving.app import served
from rails_ray.on_ray.serving.plan import DeploymentSize, ServeArgs, serve_config
from rails_ray.search.searcher import METHODS
from rails_ray.serving import client, local
from rails_ray.serving.cutoffs import Cutoffs
from rails_ray.serving.http.ports import check_port
from rails_ray.serving.http.streaming import PIECE_BYTES
from rails_ray.storage import manifest
from rails_ray.storage.filesystem import Storage
from support.ports import free_port
from support.served_version import ASKED, NO_CHUNKS, TEXTS, Served

pytestmark = pytest.mark.cluster


def test_served_answers_equal_offline_brute_force(served_version: Served) -> None:
    answer = client.search(served_version.url, ASKED, k=10, cutoff={"top_k": 10})
    assert [result["items"] for result in answer["results"]] == served_version.offline(TEXTS, 10)
    assert answer["is_exact"]
    assert answer["version"] == "v1"
    assert (
        answer["coverage"] == {"shards_answered": 2, "num_shards": 2, "items_searched": 60, "num_items": 60} | NO_CHUNKS
    )
    for result in answer["results"]:
        assert result["scores"] == sorted(result["scores"], reverse=True)
        assert result["threshold"] is None
        assert result["num_kept"] == 10


def test_no_collection_takes_what_is_served(served_version: Served) -> None:
    """The deployment has a lease, and each router has one."""
    assert len(Storage(str(served_version.root)).walk("readers/v1")) >= 2


@pytest.mark.parametrize("method", METHODS)
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
    response = served_version.explain(**body)
    assert (response.status_code, response.json()) == (422, {"error": message})


def test_excluded_items_are_searched_around_in_every_shard(served_version: Served) -> None:
    best = served_version.offline(TEXTS[:2], 6)
    queries = [{"text": TEXTS[0], "exclude": [*best[0], "no such item"]}, {"text": TEXTS[1], "exclude": []}]
    answer = served_version.search(queries=queries, k=6, cutoff={"top_k": 6}).json()
    expected = served_version.offline(TEXTS[:2], 6, [best[0], []])
    assert [result["items"] for result in answer["results"]] == expected


def test_the_cut_off_is_the_versions_own_unless_the_request_names_one(served_version: Served) -> None:
    version = Version(Storage(str(served_version.root)), served_version.manifest)
    calibrated = Cutoffs.read(version).resolve(None, 60)
    expected = calibrated.model_dump(exclude_none=True, exclude_defaults=True)
    own = client.search(served_version.url, [{"text": "red"}])
    named = client.search(served_version.url, [{"text": "red"}], k=60, cutoff=expected)
    assert own["cutoff"] == expected
    assert list(expected) == ["mass", "min_items"]
    assert own["results"] == named["results"]
    everything = client.search(served_version.url, [{"text": "red"}], k=60, cutoff={"score": -1})["results"][0]
    assert everything["num_kept"] == 60
    threshold = own["results"][0]["threshold"]
    num_reached = sum(score >= threshold for score in everything["scores"])
    assert own["results"][0]["num_kept"] == max(num_reached, expected["min_items"])
    listed = client.search(served_version.url, [{"text": "red"}], k=60)  # which names k alone
    assert (listed["cutoff"], len(listed["results"][0]["items"])) == (expected, 60)
    assert listed["results"][0]["num_kept"] == own["results"][0]["num_kept"]
    cut_short = client.search(served_version.url, [{"text": "red"}], k=5, cutoff={"score": -1})["results"][0]
    assert (cut_short["num_kept"], cut_short["is_truncated"]) == (5, True)
    assert not everything["is_truncated"]


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


def test_a_request_goes_through_the_batches_of_its_router(served_version: Served) -> None:
    """Only they tell how long it waited for others."""
    told = served_version.search(queries=[{"text": "red"}]).headers["server-timing"]
    stages = ["queue", "encode", "shards", "candidates", "score", "merge", "cut"]
    assert [part.split(";")[0] for part in told.split(", ")] == stages


def test_health_index_and_description(served_version: Served) -> None:
    url = served_version.url
    assert httpx.get(f"{url}/v1/health").json() == {"status": "ok", "version": "v1", "num_shards": 2}
    facts = client.index(url)
    assert facts.items() >= manifest.summary(served_version.manifest).items()
    stored = calibrations.read_current(Storage(str(served_version.root)), "v1")
    assert facts["calibration"] == stored.summary()
    assert facts["cutoff"] == {"mass": 0.999 if stored.mass is None else stored.mass, "min_items": 1}
    assert (facts["ranker"], facts["takes_budget"]) == (None, False)
    assert facts["search"] == {"method": "brute_force", "params": {}, "tuned": None}
    paths = httpx.get(f"{url}/openapi.json").json()["paths"]
    of_models = {"/v2/models/{name}", "/v2/models/{name}/infer", "/v2/models/{name}/ready"}
    of_health = {f"/{version}/health/{kind}" for version in ("v1", "v2") for kind in ("live", "ready")}
    own = {"/v1/embeddings", "/v1/explain", "/v1/feedback", "/v1/search", "/v1/health", "/v1/index", "/v2"}
    own |= {"/v1/items", "/v1/models", "/v1/models/{name}"}
    assert set(paths) == own | of_models | of_health


def test_clients_say_what_is_wrong(served_version: Served) -> None:
    with pytest.raises(ValueError, match="k must be greater than or equal to 1, got 0"):
        client.search(served_version.url, [{"text": "red"}], k=0)
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


def test_a_server_listens_as_a_deployed_config_says(served_version: Served) -> None:
    controller = ray.get_actor("SERVE_CONTROLLER_ACTOR", namespace="serve")
    found = ray.get(controller.get_http_config.remote()).model_dump()
    port = int(served_version.url.rpartition(":")[2])
    config = serve_config(
        ServeArgs(storage="x", allow_anonymous=True), DeploymentSize(), 1, host="127.0.0.1", port=port
    )
    assert found.items() >= config["http_options"].items()


def test_numbers_that_are_none_and_too_many_items_are_refused(served_version: Served) -> None:
    for k in ("3", True, 3.0):
        response = served_version.search(queries=[{"text": "red"}], k=k)
        assert (response.status_code, response.json()) == (
            422,
            {"error": f"k must be an integer, got {'true' if k is True else repr(k)}"},
        )


def test_a_large_answer_is_streamed_and_is_the_same(served_version: Served) -> None:
    """61,440 items, some 2 MB, in as many pieces as a proxy hands on."""
    texts = [TEXTS[number % len(TEXTS)] for number in range(1024)]
    response = served_version.search(queries=[{"text": text} for text in texts], k=60, cutoff={"top_k": 60})
    assert response.status_code == 200
    assert len(response.content) > 4 * PIECE_BYTES
    expected = dict(zip(TEXTS, served_version.offline(TEXTS, 60), strict=True))
    assert [result["items"] for result in response.json()["results"]] == [expected[text] for text in texts]


@pytest.mark.parametrize("method", ["brute_force", "two_pass", "combined"])
@pytest.mark.parametrize("cutoff", [{"top_k": 9}, {"coverage": 0.8}, {"nucleus": 0.5}, {"mass": 0.9, "min_items": 3}])
def test_a_version_in_this_process_answers_as_the_server(
    served_version: Served, method: str, cutoff: dict[str, float]
) -> None:
    here = local.open(str(served_version.root))
    options = {"k": 20, "method": method, "cutoff": cutoff}
    there = served_version.search(queries=ASKED, **options).raise_for_status().json()
    assert here.search(TEXTS, **options).model_dump() == there
    items = there["results"][0]["items"][:3]
    assert here.explain(TEXTS[0], items).model_dump() == served_version.explain(query=ASKED[0], items=items).json()
