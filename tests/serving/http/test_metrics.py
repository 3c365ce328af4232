"""What a server counts, read as Prometheus reads it."""

from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from rails_ray.families import calibrations
from rails_ray.schema.requests import SearchRequest
from rails_ray.serving import local
from rails_ray.serving.drift import EVERY
from rails_ray.serving.engine import Answered
from rails_ray.serving.http.single import SingleProcessServer, listening
from rails_ray.serving.local import LocalVersion
from rails_ray.serving.request_limits import Limits
from rails_ray.storage.filesystem import Storage
from support.calibrations import STORED
from support.examples import publish_here
from support.ports import free_port
from support.processes import wait_for

BODY = {"queries": [{"text": "red"}, {"text": "blue hat"}], "k": 5, "cutoff": {"top_k": 5}}
APPROXIMATELY = {"method": "per_embedding", "num_per_embedding": 5}


def metrics_of(url: str, **headers: str) -> dict[tuple[str, ...], float]:
    """Each sample by its name and the values of its labels, by the names of these."""
    text = httpx.get(f"{url}/metrics", headers=headers).text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {(sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value for sample in samples}


def test_answers_are_counted_by_status_stage_and_method(version: LocalVersion) -> None:
    single, port = SingleProcessServer(version, shadow_fraction=1.0), free_port()
    with listening(single, port=port):
        url = f"http://127.0.0.1:{port}"
        for body in (BODY, BODY | APPROXIMATELY, BODY | {"k": 0}):
            httpx.post(f"{url}/v1/search", json=body)
        for path in ("/v1/health", "/nowhere", "/nowhere/else", "/v2/models/rails-ray", "/v2/models/v1"):
            httpx.get(url + path)
        wait_for(lambda: single.traffic.shadow.recall.num_queries == 2)
        found = metrics_of(url)
        told = httpx.get(f"{url}/v1/index").json()["shadow"]
    assert found["rails_ray_requests_total", "/v1/search", "200"] == 2
    assert found["rails_ray_requests_total", "/v1/search", "422"] == 1
    assert found["rails_ray_requests_total", "/v1/health", "200"] == 1
    assert found["rails_ray_requests_total", "other", "404"] == 2
    assert found["rails_ray_requests_total", "/v2/models/{name}", "200"] == 2
    for stage in ("queue", "encode", "shards", "candidates", "score", "merge", "cut"):
        assert found["rails_ray_stage_seconds_count", stage] == 2
    assert found["rails_ray_queries_total", "true", "brute_force"] == 2
    assert found["rails_ray_list_length_sum", "brute_force"] == 10
    assert found["rails_ray_list_length_bucket", "5.5", "per_embedding"] == 2
    assert found["rails_ray_coverage_bucket", "0.9999"] == 0
    assert found["rails_ray_coverage_bucket", "1.0"] == 2
    assert found["rails_ray_version", "v1"] == 1
    assert found["rails_ray_shadow_queries",] == 2
    assert found["rails_ray_shadow_recall", "mean"] == pytest.approx(told["recall"])
    exact = version.search(["red", "blue hat"], k=5, cutoff={"top_k": 5})
    found_fast = version.search(["red", "blue hat"], k=5, cutoff={"top_k": 5}, **APPROXIMATELY)
    both = zip(exact.results, found_fast.results, strict=True)
    assert told["recall"] == pytest.approx(sum(len(set(a.items) & set(b.items)) / 5 for a, b in both) / 2)
    assert told["low"] <= told["recall"] <= told["high"]


@pytest.mark.long
def test_feedback_and_drift_are_measured_against_the_calibration(tmp_path: Path) -> None:
    publish_here(tmp_path)
    calibrations.write(Storage(str(tmp_path)), "v1", STORED)
    version, port = local.open(str(tmp_path), limits=Limits()), free_port()
    body = {"queries": [{"text": "red"}], "cutoff": {"coverage": 0.8}}
    with listening(SingleProcessServer(version), port=port):
        url = f"http://127.0.0.1:{port}"
        assert ("rails_ray_cutoff_drift",) not in metrics_of(url), "nothing was compared yet"
        answers = [httpx.post(f"{url}/v1/search", json=body).json() for _ in range(EVERY)]
        (result,) = answers[0]["results"]
        report = {"search": body, "relevant": [[*result["items"][:1], "no-item"]]}
        told = httpx.post(f"{url}/v1/feedback", json=report)
        refused = httpx.post(f"{url}/v1/feedback", json=report | {"relevant": [["a"], ["b"]]})
        wrong = httpx.post(f"{url}/v1/feedback", json={**report, "search": {"queries": [{"text": "a"}], "k": 0}})
        index, found = httpx.get(f"{url}/v1/index").json(), metrics_of(url)
    assert result["temperature"] > 0
    assert told.json() == {"version": "v1", "cutoff": {"coverage": 0.8}, "kept": [[result["num_kept"] > 0, False]]}
    assert refused.json()["error"] == (
        "the body must have relevant items for each of the 1 queries of its search, got 2 lists"
    )
    assert (wrong.status_code, "k must be greater than" in wrong.json()["error"]) == (422, True)
    assert (index["feedback"]["num_queries"], index["feedback"]["promised"]) == (1, 0.8)
    assert found["rails_ray_feedback_coverage", "mean"] == index["feedback"]["coverage"]
    assert found["rails_ray_feedback_coverage", "promised"] == 0.8
    assert found["rails_ray_feedback_queries",] == 1
    assert index["drift"]["num_queries"] == EVERY
    assert found["rails_ray_cutoff_drift",] == index["drift"]["distance"] >= 0.5, "one query, a hundred times"


def test_a_fault_of_ours_is_counted_and_logged(
    version: LocalVersion, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    single, port = SingleProcessServer(version), free_port()

    async def fails(request: SearchRequest) -> Answered:
        raise RuntimeError("a fault")

    monkeypatch.setattr(single.traffic, "search", fails)
    with listening(single, port=port):
        url = f"http://127.0.0.1:{port}"
        assert httpx.post(f"{url}/v1/search", json=BODY, headers={"x-request-id": "mine-5"}).status_code == 500
        assert metrics_of(url)["rails_ray_requests_total", "/v1/search", "500"] == 1
    assert "POST '/v1/search' got 500 (request mine-5)" in caplog.messages


def test_with_keys_metrics_need_an_admins(version: LocalVersion, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("a-key-to-search-1 scope=search\nan-admins-key-11 scope=search,admin\n")
    port = free_port()
    with listening(SingleProcessServer(version, str(keys)), port=port):
        url = f"http://127.0.0.1:{port}/metrics"
        statuses = [
            httpx.get(url, headers={"authorization": f"Bearer {key}"} if key else {}).status_code
            for key in ("", "a-key-to-search-1", "an-admins-key-11")
        ]
    assert statuses == [401, 403, 200]
