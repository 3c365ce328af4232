"""What k8s/ holds, and whether a cluster would take it: schemas, and the rules of KubeRay's operator."""

from collections.abc import Callable

import pytest

from support.kuberay import CRDS, Object, errors, objections
from support.manifests import (
    OVERLAYS,
    change,
    every_folder,
    every_overlay,
    move,
    named,
    of_kind,
    rendered,
    secrets,
    the,
)

pytestmark = pytest.mark.long

PLAIN_KINDS_OF = "1.30"  # of Kubernetes: old enough for most clusters


@every_overlay
def test_an_overlay_holds_what_serving_and_training_take(overlay: str) -> None:
    found = {named(manifest) for manifest in rendered(overlay)}
    assert found >= {
        ("Namespace", "rails-ray"),
        ("RayCluster", "rails-ray-batch"),
        ("RayJob", "rails-ray-pipeline"),
        ("RayJob", "rails-ray-training"),
        ("RayCronJob", "rails-ray-refresh"),
        ("RayService", "rails-ray"),
        ("StatefulSet", "rails-ray-redis"),
        ("PodDisruptionBudget", "rails-ray-serving"),
        ("NetworkPolicy", "deny-by-default"),
    }
    assert "Secret" not in {kind for kind, _ in found}, "secrets are made, not kept in the repository"
    assert "ConfigMap" not in {kind for kind, _ in found}, "the one that carries the Serve config is not deployed"


@every_overlay
def test_all_objects_are_of_our_namespace_and_of_a_component(overlay: str) -> None:
    for manifest in rendered(overlay):
        assert manifest["metadata"].get("namespace", "rails-ray") == "rails-ray", named(manifest)
        component = manifest["metadata"]["labels"]["app.kubernetes.io/component"]
        assert component in {"platform", "batch", "pipeline", "training", "refresh", "serving"}, named(manifest)


def test_overlays_differ_in_profile_alone() -> None:
    cpu, gpu = ({named(manifest): manifest for manifest in rendered(overlay)} for overlay in OVERLAYS)
    assert cpu.keys() == gpu.keys()
    assert {kind for kind, name in cpu if cpu[kind, name] != gpu[kind, name]} == set(CRDS)


@every_folder
def test_kuberays_kinds_are_valid(name: str) -> None:
    manifests = of_kind(name, *CRDS)
    assert len(manifests) == 5
    for manifest in manifests:
        assert errors(manifest) == [], named(manifest)


@pytest.mark.parametrize(
    ("kind", "mistake"),
    [
        ("RayCluster", move("spec.workerGroupSpecs.0.maxReplicas", "maxReplica")),
        ("RayCluster", move("spec.authOptions.secretName", "secret")),
        ("RayCluster", change("spec.authOptions.mode", "tokn")),
        ("RayCluster", move("spec.gcsFaultToleranceOptions", "gcsFaultTolerance")),
        ("RayCluster", change("spec.rayVersion", 2.6)),
        ("RayCluster", move("spec.headGroupSpec.template.spec.containers.0.name", "names")),
        ("RayCluster", change("spec.headGroupSpec.rayStartParams.num-cpus", 0)),
        ("RayJob", move("spec.entrypointNumCpus", "entrypointNumCpu")),
        ("RayJob", change("spec.backoffLimit", "2")),
        ("RayJob", change("spec.ttlSecondsAfterFinished", "soon")),
        ("RayJob", move("spec.rayClusterSpec.headGroupSpec.template.spec.containers.0.resources", "resource")),
        ("RayJob", change("spec.rayClusterSpec.workerGroupSpecs.0.minReplicas", None)),
        ("RayService", move("spec.upgradeStrategy", "upgradStrategy")),
        ("RayService", move("spec.rayClusterConfig", "rayClusterSpec")),
        ("RayService", change("spec.excludeHeadPodFromServeSvc", "yes")),
        ("RayService", change("spec.rayClusterConfig.headGroupSpec.template.spec.securityContext.runAsNonRot", True)),
        ("RayService", change("spec.serveConfigV2", {"applications": []})),
    ],
)
def test_a_mistake_in_kuberays_kinds_is_an_error(kind: str, mistake: Callable[[Object], None]) -> None:
    manifest = of_kind("cpu", kind)[0]
    mistake(manifest)
    assert errors(manifest)


@every_folder
def test_the_operator_objects_to_nothing(name: str) -> None:
    for manifest in of_kind(name, *CRDS):
        assert objections(manifest) == [], named(manifest)


@pytest.mark.parametrize(
    ("kind", "mistake", "objection"),
    [
        ("RayCluster", change("spec.rayVersion", "2.51.1"), "at least 2.52 with tokens, got 2.51.1"),
        ("RayCluster", change("metadata.name", "Rails"), "DNS-1035 label"),
        ("RayJob", change("metadata.name", "r" * 48), "at most 47 characters"),
        ("RayCluster", change("spec.headGroupSpec.template.spec.restartPolicy", "Always"), "restartPolicy of a head"),
        ("RayCluster", change("spec.workerGroupSpecs.0.minReplicas", 5), "from 0 to 4 maxReplicas, got 5"),
        (
            "RayService",
            change("spec.rayClusterConfig.headGroupSpec.template.spec.containers.0.env", [{"name": "REDIS_PASSWORD"}]),
            "gcsFaultToleranceOptions",
        ),
        ("RayJob", change("spec.shutdownAfterJobFinishes", False), "must come with shutdownAfterJobFinishes"),
        ("RayJob", change("spec.deletionStrategy", {"deletionRules": []}), "must come without"),
        ("RayJob", change("spec.clusterSelector", {"ray.io/cluster": "c"}), "backoffLimit must be 0"),
        ("RayJob", change("spec.activeDeadlineSeconds", 0), "activeDeadlineSeconds must be positive, got 0"),
        ("RayService", change("spec.upgradeStrategy.type", "Recreate"), "one of KubeRay's, got Recreate"),
        (
            "RayService",
            change("spec.upgradeStrategy.type", "NewClusterWithIncrementalUpgrade"),
            "must have clusterUpgradeOptions",
        ),
    ],
)
def test_the_operator_objects_to_a_mistake(kind: str, mistake: Callable[[Object], None], objection: str) -> None:
    manifest = of_kind("cpu", kind)[0]
    mistake(manifest)
    assert objection in "; ".join(objections(manifest))


def test_an_incremental_upgrade_takes_the_autoscaler() -> None:
    service = the("cpu", "RayService", "rails-ray")
    service["spec"]["upgradeStrategy"] = {"type": "NewClusterWithIncrementalUpgrade", "clusterUpgradeOptions": {}}
    assert objections(service) == []
    service["spec"]["rayClusterConfig"]["enableInTreeAutoscaling"] = False
    assert objections(service) == ["an incremental upgrade must have the autoscaler"]


def plain_error(manifest: Object) -> str | None:
    """What Kubernetes has against one of its own kinds."""
    kubernetes = pytest.importorskip("kubernetes_validate", reason="needs kubernetes-validate: the schemas of kinds")
    try:
        kubernetes.validate(manifest, PLAIN_KINDS_OF, strict=True)
    except kubernetes.ValidationError as error:
        return f"{'.'.join(map(str, error.absolute_path))}: {error.message}"
    return None


@every_overlay
def test_kubernetes_own_kinds_are_valid(overlay: str) -> None:
    plain = [manifest for manifest in rendered(overlay) if manifest["kind"] not in CRDS]
    for manifest in [*plain, *secrets()]:
        assert plain_error(manifest) is None, named(manifest)


@pytest.mark.parametrize(
    ("kind", "mistake"),
    [
        ("PodDisruptionBudget", move("spec.minAvailable", "minAvailabel")),
        ("NetworkPolicy", move("spec.policyTypes", "policyType")),
        ("StatefulSet", move("spec.template.spec.containers.0.readinessProbe", "readynessProbe")),
        ("StatefulSet", change("spec.replicas", "1")),
    ],
)
def test_a_mistake_in_kubernetes_own_kinds_is_an_error(kind: str, mistake: Callable[[Object], None]) -> None:
    manifest = of_kind("cpu", kind)[0]
    mistake(manifest)
    assert plain_error(manifest)
