"""What KubeRay 1.7 does with its kinds, as far as a manifest can be checked by it without a cluster.

Its schemas, made strict, refuse what the API server would drop without a word; `objections` are the operator's own
rules (ray-operator/controllers/ray/utils/validation.go), which no schema knows; `pods` are those that it will make.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

REPOSITORY = Path(__file__).parents[2]
CRDS = {
    "RayCluster": "rayclusters",
    "RayJob": "rayjobs",
    "RayCronJob": "raycronjobs",
    "RayService": "rayservices",
}
# -serve-svc, and -xxxxx before it, are added; a RayCronJob adds what tells its jobs apart.
LONGEST_NAME = {"RayCluster": 53, "RayJob": 47, "RayCronJob": 35, "RayService": 47}
KEPT = {"type", "enum", "pattern", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems"}
CLUSTER = {"RayCluster": "spec", "RayJob": "spec.rayClusterSpec", "RayService": "spec.rayClusterConfig"}
Object = dict[str, Any]


@dataclass(frozen=True)
class Pod:
    """A pod that an object leads to, with the labels that it will have."""

    of: str
    labels: dict[str, str]
    spec: Object


def at(value: Any, path: str) -> Any:
    """The part of an object at a dotted path, in which a number is a place in a list."""
    for word in path.split(".") if path else ():
        value = value[int(word) if word.isdecimal() else word]
    return value


def cluster_of(manifest: Object) -> Object:
    """The specification of the Ray cluster that it makes."""
    cluster: Object = at(manifest, CLUSTER[manifest["kind"]])
    return cluster


def groups(cluster: Object) -> list[tuple[str, Object]]:
    """Head and worker groups by the type of their nodes."""
    return [("head", cluster["headGroupSpec"]), *(("worker", group) for group in cluster["workerGroupSpecs"])]


def pods(manifest: Object) -> Iterator[Pod]:
    """The pods of a KubeRay object, with the labels that the operator adds (labelPod in common/pod.go)."""
    name = f"{manifest['kind']}/{manifest['metadata']['name']}"
    if manifest["kind"] == "RayCronJob":
        template = manifest["spec"]["jobTemplate"]["submitterPodTemplate"]
        yield Pod(f"{name} submitter", template["metadata"]["labels"], template["spec"])
        return
    for node_type, group in groups(cluster_of(manifest)):
        added = {"ray.io/node-type": node_type, "ray.io/group": group.get("groupName", "headgroup")}
        added |= {"ray.io/is-ray-node": "yes"}
        labels = group["template"].get("metadata", {}).get("labels", {})
        yield Pod(f"{name} {node_type}", labels | added, group["template"]["spec"])
        if node_type == "head" and "gcsFaultToleranceOptions" in cluster_of(manifest):
            cleaning = labels | added | {"ray.io/node-type": "redis-cleanup"}
            yield Pod(f"{name} redis-cleanup", cleaning, group["template"]["spec"])
    if manifest["kind"] == "RayJob":
        template = manifest["spec"]["submitterPodTemplate"]
        yield Pod(f"{name} submitter", template["metadata"]["labels"], template["spec"])


@cache
def validator(kind: str) -> Draft202012Validator:
    """Of a kind's strict schema. A clone has none: the test is skipped there."""
    folder = REPOSITORY / os.environ.get("RAILS_RAY_CRDS", "../shared/kuberay-crds")
    if not folder.is_dir():
        pytest.skip(f"needs KubeRay's CRDs in {folder.resolve()}: set RAILS_RAY_CRDS")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # a megabyte takes the other one ten seconds
    definition = yaml.load((folder / f"ray.io_{CRDS[kind]}.yaml").read_text(), loader)
    [schema] = [at(version, "schema.openAPIV3Schema") for version in at(definition, "spec.versions") if is_v1(version)]
    return Draft202012Validator(strict(schema))


def is_v1(version: Object) -> bool:
    return version["name"] == "v1"


def strict(schema: Object) -> Object:
    """An openAPIV3Schema as a JSON schema to which a field that it does not know is an error.

    The API server drops such a field without a word. Metadata is left out: the schemas say next to nothing of it.
    """
    made = {key: value for key, value in schema.items() if key in KEPT}
    fields = schema.get("properties", {})
    made["properties"] = {name: {} if name == "metadata" else strict(field) for name, field in fields.items()}
    # A default is put in before required fields are asked for.
    made["required"] = [name for name in schema.get("required", []) if "default" not in fields[name]]
    for inner in ("items", "additionalProperties"):
        if inner in schema:
            made[inner] = strict(schema[inner])
    if schema.get("x-kubernetes-int-or-string"):
        made.pop("type", None)
        made["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    if fields and "additionalProperties" not in made and not schema.get("x-kubernetes-preserve-unknown-fields"):
        made["additionalProperties"] = False
    return made


def errors(manifest: Object) -> list[str]:
    """What the schema of its kind has against it."""
    found = validator(manifest["kind"]).iter_errors(manifest)
    return [f"{'.'.join(map(str, error.absolute_path))}: {error.message}" for error in found]


def objections(manifest: Object) -> list[str]:
    """What the operator would have against it once the API server has taken it."""
    kind, spec, name = manifest["kind"], manifest["spec"], manifest["metadata"]["name"]
    said = []
    if not re.fullmatch("[a-z]([-a-z0-9]*[a-z0-9])?", name) or len(name) > LONGEST_NAME[kind]:
        said.append(f"name must be a DNS-1035 label of at most {LONGEST_NAME[kind]} characters, got {name}")
    if kind == "RayCronJob":
        spec = spec["jobTemplate"]
    if kind in ("RayJob", "RayCronJob"):
        said += _of_job(spec)
    if kind == "RayService":
        said += _of_service(spec)
    return [*said, *(() if "clusterSelector" in spec else _of_cluster(cluster_of(manifest)))]


def _of_cluster(cluster: Object) -> Iterator[str]:
    head_variables = {entry["name"] for entry in at(cluster, "headGroupSpec.template.spec.containers.0").get("env", [])}
    version = tuple(int(part) for part in cluster.get("rayVersion", "0").split("."))
    if cluster.get("authOptions", {}).get("mode") == "token" and version < (2, 52):
        yield f"rayVersion must be at least 2.52 with tokens, got {cluster.get('rayVersion')}"
    if head_variables & {"RAY_REDIS_ADDRESS", "REDIS_PASSWORD", "REDIS_USERNAME"}:
        yield "Redis must be named in gcsFaultToleranceOptions, got variables of the head"
    for node_type, group in groups(cluster):
        if group["template"]["spec"].get("restartPolicy", "Never") != "Never":
            yield f"restartPolicy of a {node_type} must be Never or unset with autoscaler v2"
        if "labels" in group["rayStartParams"]:
            yield f"labels of a {node_type} must not be among its rayStartParams"
    for group in cluster["workerGroupSpecs"]:
        if not 0 <= group["minReplicas"] <= group["maxReplicas"]:
            yield f"minReplicas must be from 0 to {group['maxReplicas']} maxReplicas, got {group['minReplicas']}"


def _of_job(spec: Object) -> Iterator[str]:
    has_selector, is_shut_down = "clusterSelector" in spec, spec.get("shutdownAfterJobFinishes", False)
    if has_selector == ("rayClusterSpec" in spec):
        yield "one of clusterSelector and rayClusterSpec must be given"
    if has_selector and spec.get("backoffLimit", 0) > 0:
        yield "backoffLimit must be 0 with clusterSelector: there is no new cluster for another try"
    if spec.get("ttlSecondsAfterFinished", 0) > 0 and not is_shut_down:
        yield "ttlSecondsAfterFinished must come with shutdownAfterJobFinishes"
    if "deletionRules" in spec.get("deletionStrategy", {}) and is_shut_down:
        yield "deletionRules must come without shutdownAfterJobFinishes, and so without ttlSecondsAfterFinished"
    if spec.get("suspend") and (has_selector or not is_shut_down):
        yield "suspend must come with shutdownAfterJobFinishes and a cluster of the job's own"
    if spec.get("submissionMode") == "SidecarMode" and "submitterPodTemplate" in spec:
        yield "submitterPodTemplate must not be given in SidecarMode"
    for name in ("activeDeadlineSeconds", "preRunningDeadlineSeconds"):
        if spec.get(name, 1) <= 0:
            yield f"{name} must be positive, got {spec[name]}"


def _of_service(spec: Object) -> Iterator[str]:
    strategy = spec.get("upgradeStrategy", {})
    if strategy.get("type") not in (None, "None", "NewCluster", "NewClusterWithIncrementalUpgrade"):
        yield f"upgradeStrategy.type must be one of KubeRay's, got {strategy['type']}"
    if strategy.get("type") == "NewClusterWithIncrementalUpgrade":
        if not spec["rayClusterConfig"].get("enableInTreeAutoscaling"):
            yield "an incremental upgrade must have the autoscaler"
        if "clusterUpgradeOptions" not in strategy:
            yield "an incremental upgrade must have clusterUpgradeOptions"
    if spec.get("rayClusterDeletionDelaySeconds", 0) < 0:
        yield "rayClusterDeletionDelaySeconds must be at least 0"
