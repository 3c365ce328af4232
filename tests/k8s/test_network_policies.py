"""Who reaches what in the namespace: the router by gateways, and hardly anything else by anyone."""

import pytest

from rails_ray.on_ray.environment import ProxyPorts
from support.manifests import OVERLAYS, all_pods, of_kind
from support.network import Peer, reaches, selects

GATEWAY = Peer({}, {"rails-ray/gateway": "allowed"})
OPERATOR = Peer({"app.kubernetes.io/name": "kuberay-operator"}, {"kubernetes.io/metadata.name": "kuberay-system"})
PROMETHEUS = Peer({"app.kubernetes.io/name": "prometheus"}, {"kubernetes.io/metadata.name": "monitoring"})
OUTSIDERS = {
    "a pod of another namespace": Peer({}, {"kubernetes.io/metadata.name": "default"}),
    "one that has taken over our labels": Peer(
        {"app.kubernetes.io/component": "serving", "ray.io/node-type": "worker", "rails-ray/gateway": "allowed"},
        {"kubernetes.io/metadata.name": "default"},
    ),
    "a neighbour of the operator": Peer({}, OPERATOR.namespace),
    "a neighbour of Prometheus": Peer({}, PROMETHEUS.namespace),
}
PORTS = [22, 53, 443, 6379, 8000, 8076, 8080, 8265, 8404, 8500, 9101, 10001, 30000, 44217, 44227, 52365]
every_overlay = pytest.mark.parametrize("overlay", OVERLAYS)


def peers(overlay: str) -> dict[str, Peer]:
    """Our pods by what they are of."""
    return {pod.of: Peer(pod.labels) for pod in all_pods(overlay)}


def reached(overlay: str, source: Peer) -> set[tuple[str, int]]:
    """Pods of ours and ports that a pod can connect to."""
    policies = of_kind(overlay, "NetworkPolicy")
    ours = peers(overlay).items()
    return {(of, port) for of, peer in ours for port in PORTS if reaches(policies, source, peer, port)}


@every_overlay
def test_a_gateway_reaches_the_router_and_nothing_else(overlay: str) -> None:
    assert reached(overlay, GATEWAY) == {("RayService/rails-ray worker", 8000)}


@every_overlay
@pytest.mark.parametrize("who", OUTSIDERS)
def test_an_outsider_reaches_nothing(overlay: str, who: str) -> None:
    assert reached(overlay, OUTSIDERS[who]) == set()


@every_overlay
def test_the_operator_reaches_heads_alone(overlay: str) -> None:
    heads = {of for of in peers(overlay) if of.endswith(" head")}
    assert len(heads) == 4
    assert reached(overlay, OPERATOR) == {(of, port) for of in heads for port in (8265, 8000)}


@every_overlay
def test_prometheus_reaches_metrics_alone(overlay: str) -> None:
    assert ProxyPorts().metrics_port == 9101
    assert {port for _, port in reached(overlay, PROMETHEUS)} == {8080, 9101, 44217, 44227}
    assert "StatefulSet" not in {of for of, _ in reached(overlay, PROMETHEUS)}


@every_overlay
def test_serving_and_batch_talk_among_themselves_and_not_to_each_other(overlay: str) -> None:
    ours = peers(overlay)
    serving = {of for of in ours if of.startswith("RayService")}
    for of, peer in ours.items():
        if peer.labels.get("ray.io/node-type") == "worker":
            same = serving if of in serving else {each for each in ours if "submitter" not in each} - serving
            assert reached(overlay, peer) == {(each, port) for each in same - {"StatefulSet"} for port in PORTS}


@every_overlay
def test_heads_reach_redis_and_workers_do_not(overlay: str) -> None:
    for of, peer in peers(overlay).items():
        is_head = peer.labels.get("ray.io/node-type") in ("head", "redis-cleanup")
        found = {port for target, port in reached(overlay, peer) if target == "StatefulSet"}
        assert found == ({6379} if is_head else set()), of


@every_overlay
def test_a_submitter_reaches_the_dashboards_of_batch_heads_alone(overlay: str) -> None:
    ours = peers(overlay)
    heads = {of for of in ours if of.endswith(" head") and not of.startswith("RayService")}
    for of, peer in ours.items():
        if of.endswith("submitter"):
            assert reached(overlay, peer) == {(head, 8265) for head in heads}


@every_overlay
def test_every_selector_of_our_pods_selects_some(overlay: str) -> None:
    """A label that is misspelt selects nothing, which lets in nobody, or everybody to what it was to protect."""
    labels = [pod.labels for pod in all_pods(overlay)]
    for policy in of_kind(overlay, "NetworkPolicy"):
        spec = policy["spec"]
        rules = [*spec.get("ingress", []), *spec.get("egress", [])]
        here = [each for rule in rules for each in rule.get("from", rule.get("to", [])) if "podSelector" in each]
        selectors = [each["podSelector"] for each in here if "namespaceSelector" not in each]
        for selector in [spec["podSelector"], *selectors]:
            if "rails-ray/gateway" not in selector.get("matchLabels", {}):  # a gateway's pod is not ours
                assert any(selects(selector, each) for each in labels), policy["metadata"]["name"]


@every_overlay
def test_without_the_policies_everything_is_open(overlay: str) -> None:
    """So that what the others find closed is closed by the policies."""
    for peer in peers(overlay).values():
        assert reaches([], OUTSIDERS["a pod of another namespace"], peer, 10001)


@every_overlay
def test_pods_leave_for_the_object_store_and_heads_for_the_api_server(overlay: str) -> None:
    outside = {"redis": set(), "worker": {443}, "head": {443, 6443}, "redis-cleanup": {443}, "submitter": set()}
    for of, peer in peers(overlay).items():
        rules = [
            (each["ipBlock"], {port["port"] for port in rule["ports"]})
            for policy in of_kind(overlay, "NetworkPolicy")
            if selects(policy["spec"]["podSelector"], peer.labels)
            for rule in policy["spec"].get("egress", [])
            for each in rule["to"]
            if "ipBlock" in each and each["ipBlock"]["cidr"] != "169.254.20.10/32"  # of the name service
        ]
        kind = peer.labels.get("ray.io/node-type", peer.labels["app.kubernetes.io/component"])
        assert set().union(*(ports for _, ports in rules)) == outside[kind], of
        assert all("except" in block for block, _ in rules), "the node's credentials are at link-local addresses"
