"""Who reaches what, by network policies as Kubernetes reads them.

A pod that no policy selects takes and sends everything; one that is selected, only what some rule of those allows.
Numbered ports and labels alone: our policies have no others towards pods.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

NAMESPACE = {"kubernetes.io/metadata.name": "rails-ray"}
Policy = dict[str, Any]


@dataclass(frozen=True)
class Peer:
    """A pod at either end, by its labels and those of its namespace."""

    labels: dict[str, str]
    namespace: dict[str, str] = field(default_factory=lambda: NAMESPACE)


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    """Whether a label selector does; an empty one selects all."""
    wanted = selector.get("matchLabels", {}).items()
    expressions = selector.get("matchExpressions", [])
    assert all(expression["operator"] == "In" for expression in expressions), "the only one that is in use"
    return wanted <= labels.items() and all(labels.get(each["key"]) in each["values"] for each in expressions)


def reaches(policies: Sequence[Policy], source: Peer, target: Peer, port: int) -> bool:
    """Whether a connection from one pod to another is let out and let in. Nothing is known of other namespaces' own."""
    ends = [(source, "Egress", target), (target, "Ingress", source)]
    return all(
        pod.namespace != NAMESPACE or _allows(policies, pod, direction, peer, port) for pod, direction, peer in ends
    )


def _allows(policies: Sequence[Policy], pod: Peer, direction: str, peer: Peer, port: int) -> bool:
    specs = [policy["spec"] for policy in policies]
    mine = [spec for spec in specs if direction in spec["policyTypes"] and selects(spec["podSelector"], pod.labels)]
    side = "from" if direction == "Ingress" else "to"
    rules = [rule for spec in mine for rule in spec.get(direction.lower(), [])]
    return not mine or any(
        any(_is_peer(each, peer) for each in rule[side])
        and ("ports" not in rule or port in [each["port"] for each in rule["ports"]])
        for rule in rules
    )


def _is_peer(rule: dict[str, Any], peer: Peer) -> bool:
    if "ipBlock" in rule:  # addresses outside; whether pods have one of them depends on the plugin
        return False
    in_namespace = (
        selects(rule["namespaceSelector"], peer.namespace)
        if "namespaceSelector" in rule
        else peer.namespace == NAMESPACE
    )
    return in_namespace and selects(rule.get("podSelector", {}), peer.labels)
