"""`serve deploy` on a cluster that others run: keys, limits, replicas on parts of a logical GPU, and faults under load.

In both profiles: the proxies, and the way that a request goes to a replica, are different programs.
"""

import asyncio
import os
import re
import signal
import ssl
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families
from ray.dashboard.modules.serve.sdk import ServeSubmissionClient

from jobs.benches import chaos_clients
from jobs.benches import chaos_faults as chaos
from rails_ray.errors import AccessError, RailsRayError
from rails_ray.on_ray.environment import ENVIRONMENT, PORT_VARIABLES, PRODUCTION_ENVIRONMENT, ProxyPorts
from rails_ray.on_ray.serving.plan import NAME, DeploymentSize, ServeArgs, serve_config
from rails_ray.serving import client
from support.data_folders import write_text_data
from support.examples import publish_untrained
from support.head_node import HeadNode, head_node
from support.ports import free_ports
from support.processes import wait_for, with_token

pytestmark = [pytest.mark.cluster, pytest.mark.long]

ROOT = Path(__file__).parents[3]
KEY = "a-key-of-the-test"
NUM_CLIENTS = 3
LOGS_QUERIES = "production"  # the profile whose server is asked to
TEXTS = ["red", "blue hat", "gold ring"]
# A replica that is replaced answers on until HAProxy has heard of it. Ray's 30 s hold for a busy cluster too.
DRAINING = {"RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "10"}
ENVIRONMENTS = {"local": ENVIRONMENT, "production": PRODUCTION_ENVIRONMENT | DRAINING}


@dataclass(frozen=True)
class Deployed:
    """A cluster that serves v1 in 2 shards, two replicas of each deployment."""

    profile: str
    head: HeadNode
    serve: ServeSubmissionClient
    config: dict[str, Any]
    url: str

    def application(self) -> dict[str, Any]:
        found: dict[str, Any] = self.serve.get_serve_details()["applications"][NAME]
        return found

    def num_running(self, deployment: str) -> int:
        replicas = self.application()["deployments"][deployment]["replicas"]
        return sum(replica["state"] == "RUNNING" for replica in replicas)

    def replicas(self, deployment: str) -> list[psutil.Process]:
        title, found = f"ServeReplica:{NAME}:{deployment}", []
        for process in with_token(self.head.mark):
            with suppress(psutil.Error):  # it may end while it is looked at
                found += [process] if title in " ".join(process.cmdline()) else []
        return found

    def logged(self) -> str:
        files = [file for file in self.head.logs.rglob("*") if file.is_file()]
        return "".join(file.read_text(errors="replace") for file in files)

    def search(self, k: int = 5) -> list[list[str]]:
        answer = client.search(self.url, [{"text": "red"}, {"text": "blue hat"}], k, key=KEY, cutoff={"top_k": k})
        return [result["items"] for result in answer["results"]]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory, ray_cluster: None) -> Iterator[dict[str, Deployed]]:
    """A cluster of each profile, of one version. The replicas of the first start while the head of the second does."""
    root = tmp_path_factory.mktemp("deployed")
    for seed, version in enumerate(("v1", "v2")):
        publish_untrained(root, write_text_data(root / "my-data"), version=version, seed=seed)
    with ExitStack() as stack:
        made = {profile: stack.enter_context(_deploying(profile, root)) for profile in ENVIRONMENTS}
        for one in made.values():
            wait_for(lambda one=one: one.application()["status"] in ("RUNNING", "DEPLOY_FAILED"), timeout_s=180)
            assert one.application()["status"] == "RUNNING", one.application()
            wait_for(lambda one=one: _answers(one))
        yield made


@pytest.fixture(scope="module", params=list(ENVIRONMENTS))
def deployed(request: pytest.FixtureRequest, both: dict[str, Deployed]) -> Deployed:
    return both[request.param]


@contextmanager
def _deploying(profile: str, root: Path) -> Iterator[Deployed]:
    keys = root / f"keys-{profile}"
    keys.write_text(f"{KEY}\n")
    limits = {"max_queries": 8, "max_body_bytes": 5000}
    args = ServeArgs(storage=str(root), version="v1", keys_file=str(keys), shadow_fraction=1, **limits)
    args.log_queries = profile == LOGS_QUERIES
    (port,) = free_ports(1)
    config = serve_config(args, DeploymentSize(replicas=2, num_gpus=0.125), 2, host="127.0.0.1", port=port)
    # Two clusters of one machine must not share them.
    ports = ProxyPorts(**dict(zip(PORT_VARIABLES, free_ports(3), strict=True)))
    environment = {"PYTHONPATH": str(ROOT), **ENVIRONMENTS[profile], **ports.variables}
    environment["RAY_enable_metrics_collection"] = "1"
    with head_node(num_cpus=4, num_gpus=1, environment=environment) as head:
        serve = ServeSubmissionClient(head.address)
        serve.deploy_applications(config)
        yield Deployed(profile, head, serve, config, f"http://127.0.0.1:{port}")


def _answers(made: Deployed) -> bool:
    with suppress(RailsRayError, ValueError):  # whatever a proxy answers before the application is behind it
        return bool(made.search())
    return False


def test_each_shard_has_its_replicas_on_parts_of_a_gpu_and_the_router_on_none(deployed: Deployed) -> None:
    deployments = deployed.application()["deployments"]
    assert set(deployments) == {"Router", "Shard000", "Shard001"}
    for name, deployment in deployments.items():
        assert deployed.num_running(name) == 2
        reserved = deployment["deployment_config"]["ray_actor_options"].get("num_gpus")
        assert reserved == (None if name == "Router" else 0.125)


@pytest.mark.parametrize("path", ["/v1/health", "/v1/index", "/openapi.json", "/v1/search"])
def test_nothing_is_told_without_a_key(deployed: Deployed, path: str) -> None:
    response = httpx.get(f"{deployed.url}{path}")
    expected = {"error": "a request must have the header `Authorization: Bearer KEY`, got none"}
    assert (response.status_code, response.json()) == (401, expected)
    response = httpx.get(f"{deployed.url}{path}", headers={"authorization": f"Bearer {KEY}2"})
    expected = {"error": "the bearer key must be one that this server knows, got another"}
    assert (response.status_code, response.json()) == (403, expected)


SERVED = ("/v1/index", "/v1/search", "/openapi.json", "/metrics", "/num_items", "/search", "/api/jobs/", "/api/actors")
METRICS = re.compile(
    r"# (HELP|TYPE) |<!DOCTYPE html[^>]*>\s*<html[^>]*>\s*<head>\s*<title>Statistics Report for HAProxy"
)


def doors_of(mark: str) -> dict[int, str]:
    """What listens on this machine, by port: the address and the title of the process."""
    found = dict[int, str]()
    for process in with_token(mark):
        with suppress(psutil.Error):  # it may end while it is looked at
            listening = [own for own in process.net_connections(kind="tcp") if own.status == psutil.CONN_LISTEN]
            title = " ".join(process.cmdline()).replace(f"{sys.prefix}/", "")
            found |= {own.laddr.port: f"{own.laddr.ip} {title}" for own in listening}
    return found


def test_no_door_tells_anything_without_a_key(deployed: Deployed, capsys: pytest.CaptureFixture[str]) -> None:
    """Tries each port of the cluster, and lists them. Ray's metrics, which this cluster shows because the tests want
    them, and HAProxy's statistics and metrics, of which docs/serving.md tells, show these whatever they are asked."""
    doors = doors_of(deployed.head.mark)
    show_metrics = {httpx.URL(deployed.head.metrics).port}
    show_metrics |= {
        port for port, title in doors.items() if "haproxy -" in title and not deployed.url.endswith(f":{port}")
    }
    assert len(show_metrics) == (3 if deployed.profile == "production" else 1)
    titles = " ".join(doors.values())
    for expected in ("gcs_server", "dashboard", "ServeReplica:rails-ray:Router", "ServeReplica:rails-ray:Shard"):
        assert expected in titles
    told = dict[str, int]()
    for port, title in sorted(doors.items(), key=lambda door: door[1]):
        host = title.partition(" ")[0].removeprefix("::ffff:").replace("::", "127.0.0.1")
        for path in SERVED:
            for verb in ("GET", "POST"):
                status, is_metrics = 0, False
                with suppress(httpx.TransportError):  # gRPC, which is no HTTP of this kind and asks for Ray's token
                    response = httpx.request(verb, f"http://{host}:{port}{path}", timeout=5)
                    status, is_metrics = response.status_code, bool(METRICS.match(response.text))
                tells_nothing = status in (0, 401, 403, 404, 405)
                if not (tells_nothing or (port in show_metrics and (status >= 500 or is_metrics))):
                    told[f"{title[:80]} {verb} {port}{path}"] = status
        with capsys.disabled():
            print(f"{deployed.profile} {title[:80]} {port}")
    assert not told


def test_probes_need_no_key(deployed: Deployed) -> None:
    assert httpx.get(f"{deployed.url}/-/healthz").status_code == 200


def test_clients_have_a_key(deployed: Deployed, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(deployed.search()) == 2
    with pytest.raises(AccessError, match=r"a request must have the header .*: set RAILS_RAY_API_KEY"):
        client.index(deployed.url)
    monkeypatch.setenv("RAILS_RAY_API_KEY", "another-one")
    with pytest.raises(AccessError, match="the bearer key must be one that this server knows"):
        client.index(deployed.url)
    monkeypatch.setenv("RAILS_RAY_API_KEY", KEY)
    assert client.index(deployed.url)["version"] == "v1"


def samples(deployed: Deployed, name: str) -> list[Any]:
    """Of one of our metrics, as Ray shows it."""
    families = text_string_to_metric_families(httpx.get(deployed.head.metrics).text)
    return [own for family in families for own in family.samples if own.name == f"ray_rails_ray_{name}"]


def test_ray_shows_what_the_routers_count(deployed: Deployed) -> None:
    body = {"queries": [{"text": "red"}], "method": "per_embedding", "num_per_embedding": 5, "cutoff": {"top_k": 5}}
    for _ in range(10):  # both routers
        client.search(deployed.url, body["queries"], key=KEY, **{k: v for k, v in body.items() if k != "queries"})

    wait_for(lambda: bool(samples(deployed, "shadow_recall")))
    for name in ("requests_total", "queries_total", "list_length_sum", "coverage_count", "version", "shadow_queries"):
        assert samples(deployed, name), name
    stages = {own.labels["stage"] for own in samples(deployed, "stage_seconds_bucket")}
    assert stages >= {"queue", "encode", "shards", "merge"}
    mean = next(own for own in samples(deployed, "shadow_recall") if own.labels["bound"] == "mean")
    assert (mean.labels["deployment"], mean.labels["application"]) == ("Router", NAME)
    assert 0 <= mean.value <= 1


def test_failures_are_logged_with_the_id_queries_where_that_is_asked_for_and_keys_nowhere(deployed: Deployed) -> None:
    headers = {"authorization": f"Bearer {KEY}", "x-request-id": "mine-of-the-test"}
    body = {"queries": [{"text": "a secret"}], "k": 3}
    assert httpx.post(f"{deployed.url}/v1/search", json=body, headers=headers, timeout=30).status_code == 200

    if deployed.profile == LOGS_QUERIES:
        told = 'request mine-of-the-test: {"queries":[{"text":"a secret"}],"k":3}\n'
        wait_for(lambda: told in deployed.logged())
    late = {**headers, "x-request-id": f"later-{deployed.profile}", "x-deadline-ms": "0.01"}
    assert httpx.post(f"{deployed.url}/v1/search", json=body, headers=late, timeout=30).status_code == 504
    wait_for(lambda: f"got 504 (request later-{deployed.profile})" in deployed.logged())
    assert ("a secret" in deployed.logged()) == (deployed.profile == LOGS_QUERIES)
    assert KEY not in deployed.logged()


def test_a_crowd_is_refused_and_counted(deployed: Deployed) -> None:
    """By the proxy in profile local, by the routers in production, while the shards stand still."""
    body = {"queries": [{"text": "red"}] * 8, "k": 5}
    shards = deployed.replicas("Shard000")
    assert len(shards) == 2

    async def crowd() -> list[httpx.Response]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(limits=limits, headers={"authorization": f"Bearer {KEY}"}, timeout=30) as asking:
            sent = [asyncio.ensure_future(asking.post(f"{deployed.url}/v1/search", json=body)) for _ in range(500)]
            try:
                for shard in shards:
                    shard.suspend()
                await asyncio.wait(sent, timeout=6, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for shard in shards:
                    shard.resume()
            return await asyncio.gather(*sent)

    answers = asyncio.run(crowd())
    refused = [answer for answer in answers if answer.status_code == 429]
    assert refused
    assert {answer.status_code for answer in answers} == {200, 429}
    assert all(answer.headers["x-request-id"] and answer.headers["retry-after"] for answer in refused)

    def num_counted() -> float:
        name = "refused_total" if deployed.profile == "local" else "requests_total"
        return sum(own.value for own in samples(deployed, name) if own.labels["status"] == "429")

    wait_for(lambda: num_counted() == len(refused), timeout_s=60)


def test_what_is_too_much_is_refused(deployed: Deployed) -> None:
    with pytest.raises(ValueError, match="queries must have a length of at most 8, got 9"):
        client.search(deployed.url, [{"text": "red"}] * 9, 5, key=KEY)
    response = httpx.post(
        f"{deployed.url}/v1/search", content=b" " * 5001, headers={"authorization": f"Bearer {KEY}"}, timeout=30
    )
    expected = {"error": "the body must have at most 5000 bytes, got 5001: ask fewer queries at once"}
    assert (response.status_code, response.json()) == (413, expected)
    pieces = (b" " * 1000 for _ in range(20))  # without a content-length
    response = httpx.post(
        f"{deployed.url}/v1/search", content=pieces, headers={"authorization": f"Bearer {KEY}"}, timeout=30
    )
    assert response.status_code == 413
    assert "the body must have at most 5000 bytes, got" in response.json()["error"]


def test_a_config_with_a_deployment_that_the_version_lacks_leaves_the_former_one_serving(deployed: Deployed) -> None:
    before = deployed.search()
    wrong = {**deployed.config["applications"][0]}
    wrong["deployments"] = [*wrong["deployments"], {"name": "Shard002", "num_replicas": 1}]
    deployed.serve.deploy_applications({**deployed.config, "applications": [wrong]})
    wait_for(lambda: deployed.application()["status"] == "DEPLOY_FAILED")
    assert "Shard002" in deployed.application()["message"]
    assert deployed.search() == before
    deployed.serve.deploy_applications(deployed.config)
    wait_for(lambda: deployed.application()["status"] == "RUNNING")
    assert deployed.search() == before


@pytest.mark.parametrize("deployment", ["Shard001", "Router"])
def test_a_replica_killed_under_load_costs_at_most_the_requests_in_flight(deployed: Deployed, deployment: str) -> None:
    expected = deployed.search()
    wait_for(lambda: deployed.num_running(deployment) == 2 and len(deployed.replicas(deployment)) == 2)
    stop, answered, failed, wrong = threading.Event(), [0] * NUM_CLIENTS, list[str](), list[Any]()

    def load(number: int) -> None:
        while not stop.is_set():
            try:
                found = deployed.search()
            except (RailsRayError, ValueError) as error:
                failed.append(f"{type(error).__name__}: {error}")
                continue
            answered[number] += 1
            if found != expected:
                wrong.append(found)

    def wait_for_answers(count: int) -> None:
        before = list(answered)
        wait_for(lambda: all(now >= then + count for now, then in zip(answered, before, strict=True)))

    clients = [threading.Thread(target=load, args=(number,)) for number in range(NUM_CLIENTS)]
    for one in clients:
        one.start()
    try:
        wait_for_answers(5)
        victim = deployed.replicas(deployment)[0]
        os.kill(victim.pid, signal.SIGKILL)
        wait_for_answers(20)
    finally:
        stop.set()
        for one in clients:
            one.join()
    assert not wrong
    # The router asks another replica of a shard again, so that its death is not to be seen from outside.
    assert len(failed) <= (NUM_CLIENTS if deployment == "Router" else 0), failed
    wait_for(lambda: deployed.num_running(deployment) == 2)
    assert victim.pid not in [one.pid for one in deployed.replicas(deployment)]


@pytest.mark.faults
def test_while_versions_are_swapped_each_answer_is_that_of_the_version_it_names(
    deployed: Deployed,
) -> None:
    """Routers and shards of both are up for some seconds, and are exchanged each for itself."""
    storage = deployed.config["applications"][0]["args"]["storage"]
    expected = chaos_clients.offline(storage, ["v1", "v2"], TEXTS, chaos_clients.K)
    assert all(one != other for one, other in zip(*expected.values(), strict=True))

    def swap(version: str) -> None:
        application = deepcopy(deployed.config["applications"][0])
        application["args"]["version"] = version
        deployed.serve.deploy_applications({**deployed.config, "applications": [application]})

    server = chaos_clients.Server(
        deployed.url, TEXTS, expected, swap, lambda title: [], {"authorization": f"Bearer {KEY}"}
    )
    for version in ("v2", "v1"):
        outcome = asyncio.run(chaos.swapped(server, version, NUM_CLIENTS, 4))
        assert (outcome["wrong"], outcome["failed"]) == (0, 0)
        assert outcome["refused"] < 0.2 * outcome["requests"]  # the bench has up to .05
        wait_for(lambda: deployed.application()["status"] == "RUNNING")


@pytest.mark.faults
def test_slow_headers_are_not_waited_for(deployed: Deployed) -> None:
    expected = chaos_clients.offline(
        deployed.config["applications"][0]["args"]["storage"], ["v1"], TEXTS, chaos_clients.K
    )
    headers = {"authorization": f"Bearer {KEY}"}
    server = chaos_clients.Server(deployed.url, TEXTS, expected, lambda version: None, lambda title: [], headers)
    found = asyncio.run(chaos.beside_slow_senders(server, chaos.slow_headers(headers), 20, 1, 16))
    assert found["closed_s"] < 15
    assert (found["failed"], found["refused"], found["wrong"]) == (0, 0, 0)


def test_keys_can_change_while_serving(deployed: Deployed) -> None:
    """The last test of the module: the file is read again at Serve's health checks, every ten seconds."""
    file = Path(deployed.config["applications"][0]["args"]["keys_file"])
    new = "another-key-of-the-test"
    file.write_text(f"{new}\n")

    context = ssl.create_default_context()  # httpx would make one for each request, which takes longer than the request

    def status(key: str) -> int:
        headers = {"authorization": f"Bearer {key}"}
        return httpx.get(f"{deployed.url}/v1/index", headers=headers, verify=context).status_code

    def have_changed() -> bool:  # in both routers
        return {(status(new), status(KEY)) for _ in range(8)} == {(200, 403)}

    wait_for(have_changed)
