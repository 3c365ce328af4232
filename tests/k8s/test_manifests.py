"""Everything in k8s/ that a cluster would refuse, drop or fail on, as far as it can be found without one."""

import base64
import binascii
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator
from copy import deepcopy
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import ray
import yaml
from pydantic import BaseModel
from ray.serve.config import AutoscalingConfig
from ray.serve.schema import ServeDeploySchema

from k8s.kuberay import CRDS, REPOSITORY, Object, Pod, at, cluster_of, errors, groups, objections
from k8s.network import selects
from k8s.rendering import FOLDERS, OVERLAYS, all_pods, of_kind, rendered, serve_config, the
from rails_ray import cli
from rails_ray.on_ray.serving import plan
from rails_ray.on_ray.serving.plan import Placement, ServeArgs

K8S = REPOSITORY / "k8s"
VERSION = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
PLAIN_KINDS_OF = "1.30"  # of Kubernetes: old enough for most clusters

every_folder = pytest.mark.parametrize("name", FOLDERS)
every_overlay = pytest.mark.parametrize("overlay", OVERLAYS)


def named(manifest: Object) -> tuple[str, str]:
    return manifest["kind"], manifest["metadata"]["name"]


def values(value: Any, key: str) -> Iterator[Any]:
    """All values under this key, however deep."""
    if isinstance(value, dict):
        yield from ([value[key]] if key in value else [])
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from values(inner, key)


# What there is


@every_overlay
def test_an_overlay_holds_what_serving_and_training_take(overlay: str) -> None:
    found = {named(manifest) for manifest in rendered(overlay)}
    assert found >= {
        ("Namespace", "rails-ray"),
        ("RayCluster", "rails-ray-batch"),
        ("RayJob", "rails-ray-pipeline"),
        ("RayJob", "rails-ray-training"),
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
        assert component in {"platform", "batch", "pipeline", "training", "serving"}, named(manifest)


def test_overlays_differ_in_profile_alone() -> None:
    cpu, gpu = ({named(manifest): manifest for manifest in rendered(overlay)} for overlay in OVERLAYS)
    assert cpu.keys() == gpu.keys()
    assert {kind for kind, name in cpu if cpu[kind, name] != gpu[kind, name]} == set(CRDS)


# Schemas


@every_folder
def test_kuberays_kinds_are_valid(name: str) -> None:
    manifests = of_kind(name, *CRDS)
    assert len(manifests) == 4
    for manifest in manifests:
        assert errors(manifest) == [], named(manifest)


def change(path: str, value: Any) -> Callable[[Object], None]:
    """Sets what lies at a dotted path."""

    def changed(manifest: Object) -> None:
        *parent, last = path.split(".")
        at(manifest, ".".join(parent))[last] = value

    return changed


def move(path: str, name: str) -> Callable[[Object], None]:
    """Renames the field at a dotted path."""

    def moved(manifest: Object) -> None:
        *parent, last = path.split(".")
        holder = at(manifest, ".".join(parent))
        holder[name] = holder.pop(last)

    return moved


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


# The Serve config


def unknown_fields(given: Any, taken: Any, path: str = "") -> Iterator[str]:
    """Fields of a config that its schema has not taken over: Ray Serve ignores them, for the sake of later versions."""
    if isinstance(given, dict) and isinstance(taken, BaseModel | dict):
        fields = taken.model_dump(exclude_unset=True) if isinstance(taken, BaseModel) else taken
        for key, value in given.items():
            if key not in fields:
                yield f"{path}{key}"
            else:
                yield from unknown_fields(value, fields[key], f"{path}{key}.")
    elif isinstance(given, list):
        for place, (value, kept) in enumerate(zip(given, taken, strict=True)):
            yield from unknown_fields(value, kept, f"{path}{place}.")


def deployments(config: dict[str, Any]) -> dict[str, Any]:
    [application] = config["applications"]
    return {deployment["name"]: deployment for deployment in application["deployments"]}


def num_shards(config: dict[str, Any]) -> int:
    return sum(name.startswith("Shard") for name in deployments(config))


def check_serve_config(config: dict[str, Any]) -> None:
    """Raises:
    ValueError: if Ray Serve would refuse the config, or ignore a field of it.
    """
    ignored = list(unknown_fields(config, ServeDeploySchema.model_validate(deepcopy(config))))
    for deployment in deployments(config).values():  # looked at only when the application is deployed
        scaling = deployment.get("autoscaling_config", {})
        AutoscalingConfig.model_validate(scaling)
        ignored += scaling.keys() - AutoscalingConfig.model_fields.keys()
    if ignored:
        raise ValueError(f"Ray Serve must know every field, got {', '.join(ignored)}")


@every_overlay
def test_ray_serve_takes_the_config_and_every_field_of_it(overlay: str) -> None:
    check_serve_config(serve_config(overlay))


@pytest.mark.parametrize(
    "mistake",
    [
        change("applications.0.deployments.2.max_ongoing_requests", 0),
        change("applications.0.deployments.0.num_replicas", 2),  # beside autoscaling_config
        change("applications.0.deployments.0.autoscaling_config.max_replicas", 1),  # fewer than the least
        change("applications.0.import_path", "serve"),
        change("proxy_location", "EveryMachine"),
        move("proxy_location", "proxy_locations"),
        move("http_options.request_timeout_s", "timeout_s"),
        move("applications.0.route_prefix", "prefix"),
        move("applications.0.deployments.0.max_ongoing_requests", "max_ongoing_request"),
        move("applications.0.deployments.0.ray_actor_options", "actor_options"),
        move("applications.0.deployments.1.ray_actor_options.num_cpus", "num_cpu"),
        move("applications.0.deployments.1.autoscaling_config.target_ongoing_requests", "target_requests"),
    ],
)
def test_a_mistake_in_the_serve_config_is_an_error(mistake: Callable[[Object], None]) -> None:
    config = serve_config("gpu")
    mistake(config)
    with pytest.raises(ValueError, match=r"Ray Serve must know|validation error"):
        check_serve_config(config)


@every_overlay
def test_the_config_deploys_what_our_application_consists_of(overlay: str) -> None:
    from rails_ray.on_ray.serving import plan

    config = serve_config(overlay)
    [application] = config["applications"]
    assert application["import_path"] == "serve.app:build"
    assert find_spec("serve.app") is not None
    assert num_shards(config) >= 1
    assert list(deployments(config)) == list(plan.deployments(plan.Placement(), num_shards(config)))
    assert config["proxy_location"] == "EveryNode"
    assert config["http_options"]["port"] in container_ports(the(overlay, "RayService", "rails-ray"))


def container_ports(service: Object) -> set[int]:
    ports = at(cluster_of(service), "workerGroupSpecs.0.template.spec.containers.0.ports")
    return {port["containerPort"] for port in ports if port["name"] == "serve"}


@every_overlay
def test_the_application_takes_its_arguments_and_asks_for_keys(overlay: str) -> None:
    from serve.app import ServeArgs

    service = the(overlay, "RayService", "rails-ray")
    args = ServeArgs.model_validate(at(serve_config(overlay), "applications.0.args"))
    assert not args.allow_anonymous
    assert args.keys_file is not None
    worker = at(cluster_of(service), "workerGroupSpecs.0.template.spec")
    folder, key = str(Path(args.keys_file).parent), Path(args.keys_file).name
    [mount] = [mount for mount in worker["containers"][0]["volumeMounts"] if mount["mountPath"] == folder]
    assert "subPath" not in mount, "a file that is mounted by subPath never changes"
    [volume] = [volume for volume in worker["volumes"] if volume["name"] == mount["name"]]
    assert key in secret_keys()[volume["secret"]["secretName"]]


@every_overlay
def test_what_is_served_is_what_the_pipeline_publishes(overlay: str) -> None:
    args = at(serve_config(overlay), "applications.0.args")
    pipeline = parsed(the(overlay, "RayJob", "rails-ray-pipeline")["spec"]["entrypoint"])
    assert (args["storage"], args["version"]) == (pipeline.storage, pipeline.run_name)
    assert num_shards(serve_config(overlay)) == pipeline.shards
    assert {parsed(job["spec"]["entrypoint"]).storage for job in of_kind(overlay, "RayJob")} == {args["storage"]}


@every_overlay
def test_replicas_fit_on_the_workers(overlay: str) -> None:
    """The fewest on the fewest workers and the most on the most; two of each, so that one may go."""
    group = cluster_of(the(overlay, "RayService", "rails-ray"))["workerGroupSpecs"][0]
    limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
    options = deployments(serve_config(overlay)).values()
    for replicas, workers in (("min_replicas", "minReplicas"), ("max_replicas", "maxReplicas")):
        for resource, limit in (("num_cpus", "cpu"), ("num_gpus", "nvidia.com/gpu")):
            needed = sum(
                each["autoscaling_config"][replicas] * each["ray_actor_options"].get(resource, 0) for each in options
            )
            assert needed <= group[workers] * float(limits.get(limit, 0)), (replicas, resource)
    assert all(each["autoscaling_config"]["min_replicas"] >= 2 for each in options)
    assert group["minReplicas"] >= 2


@pytest.mark.parametrize(("overlay", "has_gpus"), [("cpu", False), ("gpu", True)])
def test_gpus_are_asked_for_by_the_gpu_overlay_alone(overlay: str, has_gpus: bool) -> None:
    for manifest in of_kind(overlay, *CRDS):
        for node_type, group in groups(cluster_of(manifest)):
            resources = group["template"]["spec"]["containers"][0]["resources"]
            expected = has_gpus and node_type == "worker"
            assert ("nvidia.com/gpu" in resources["limits"]) == expected, (named(manifest), node_type)
            assert resources["limits"].get("nvidia.com/gpu") == resources["requests"].get("nvidia.com/gpu")
    for options in deployments(serve_config(overlay)).values():
        assert ("num_gpus" in options["ray_actor_options"]) == has_gpus


def test_a_job_finds_a_gpu_for_each_of_its_workers_when_it_starts() -> None:
    """Training takes GPUs only if the cluster has enough of them by then."""
    for job in of_kind("gpu", "RayJob"):
        group = cluster_of(job)["workerGroupSpecs"][0]
        assert group["minReplicas"] >= parsed(job["spec"]["entrypoint"]).workers, named(job)


# Entrypoints


def parsed(entrypoint: str) -> Any:
    """The command of an entrypoint, as our own command line takes it."""
    python, option, module, *arguments = shlex.split(entrypoint)
    assert (python, option) == ("python", "-m")
    assert find_spec(module) is not None
    package, _, command = module.partition(".")
    assert package == "jobs"
    return cli.parse([command, *arguments])


@every_folder
def test_every_entrypoint_is_a_command_of_ours(name: str) -> None:
    jobs = of_kind(name, "RayJob")
    assert jobs
    for job in jobs:
        command = parsed(job["spec"]["entrypoint"])
        assert command.storage.startswith("s3://"), "what a pod writes elsewhere is lost with it"
        assert command.run_name, "a try on a new cluster goes on only under a name that stays"
        assert job["spec"]["entrypointNumCpus"] >= 1, "the head has no CPUs for a driver"


@pytest.mark.parametrize(
    ("flag", "other"),
    [("--workers", "--num-workers"), ("--run", "--run-id"), ("--shards", "--parts"), ("--max-drop", "--drop")],
)
def test_a_renamed_flag_breaks_the_build(flag: str, other: str) -> None:
    entrypoint = the("cpu", "RayJob", "rails-ray-pipeline")["spec"]["entrypoint"]
    assert f" {flag} " in entrypoint
    with pytest.raises(SystemExit):
        parsed(entrypoint.replace(f" {flag} ", f" {other} "))


def test_any_training_is_a_change_of_arguments() -> None:
    base, example = (of_kind(name, "RayJob") for name in ("cpu", "example"))
    [(before, after)] = [(was, now) for was, now in zip(base, example, strict=True) if was != now]
    assert parsed(after["spec"]["entrypoint"]).recipe != parsed(before["spec"]["entrypoint"]).recipe
    after["metadata"]["name"] = before["metadata"]["name"]
    after["spec"]["entrypoint"] = before["spec"]["entrypoint"]
    assert after == before


# Images and versions


def built_with(argument: str) -> str:
    """The value of a build argument of the image."""
    found = re.search(rf"^ARG {argument}=(.*)$", (K8S / "Dockerfile").read_text(), re.MULTILINE)
    assert found
    return found[1]


@every_overlay
def test_every_image_is_of_this_version_and_profile(overlay: str) -> None:
    images = {image for manifest in rendered(overlay) for image in values(manifest, "image")}
    ours = {image for image in images if "rails-ray" in image}
    assert {image.rpartition("/")[2] for image in ours} == {f"rails-ray:{VERSION}-{overlay}"}
    assert {image.partition(":")[0] for image in images - ours} == {"redis"}


@every_folder
def test_clusters_have_the_ray_of_the_image(name: str) -> None:
    versions = {version for manifest in rendered(name) for version in values(manifest, "rayVersion")}
    assert versions == {built_with("RAY_VERSION")} == {ray.__version__}


# Security


def containers(pod: Pod) -> list[Object]:
    return [*pod.spec["containers"], *pod.spec.get("initContainers", [])]


@every_folder
def test_no_container_runs_as_root_or_gains_rights(name: str) -> None:
    for pod in all_pods(name):
        together = pod.spec["securityContext"]
        assert together["runAsNonRoot"] is True, pod.of
        assert together["runAsUser"] > 0, "a number, by which kubelet can tell"
        assert together["seccompProfile"] == {"type": "RuntimeDefault"}, pod.of
        assert not any(pod.spec.get(key) for key in ("hostNetwork", "hostPID", "hostIPC")), pod.of
        assert not any("hostPath" in volume for volume in pod.spec.get("volumes", [])), pod.of
        for container in containers(pod):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }, (pod.of, container["name"])
    for manifest in of_kind(name, *CRDS):
        autoscaler = cluster_of(manifest)["autoscalerOptions"]["securityContext"]
        assert autoscaler["runAsNonRoot"], named(manifest)
        assert autoscaler["readOnlyRootFilesystem"], named(manifest)
        assert not autoscaler["allowPrivilegeEscalation"], named(manifest)
        assert autoscaler["capabilities"] == {"drop": ["ALL"]}, named(manifest)


@every_folder
def test_a_read_only_pod_can_write_where_it_must(name: str) -> None:
    for pod in all_pods(name):
        writable = {volume["name"] for volume in pod.spec.get("volumes", []) if "emptyDir" in volume}
        for container in containers(pod):
            mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
            if "rails-ray" in container["image"]:
                assert mounts["/tmp"] in writable, pod.of
                assert {"name": "HOME", "value": "/tmp"} in container["env"], pod.of


@every_folder
def test_only_heads_can_ask_the_api_server(name: str) -> None:
    for pod in all_pods(name):
        is_head = pod.labels.get("ray.io/node-type") in ("head", "redis-cleanup")
        assert pod.spec.get("automountServiceAccountToken", True) == is_head, pod.of


@every_folder
def test_every_container_has_requests_and_limits(name: str) -> None:
    for pod in all_pods(name):
        for container in containers(pod):
            resources = container["resources"]
            assert resources["requests"].keys() >= {"cpu", "memory"}, pod.of
            assert resources["limits"].keys() >= {"cpu", "memory"}, pod.of
            if "ray.io/node-type" in pod.labels:
                assert resources["requests"]["memory"] == resources["limits"]["memory"], "Ray counts on the limit"


@every_folder
def test_every_cluster_asks_for_tokens(name: str) -> None:
    for manifest in of_kind(name, *CRDS):
        options = cluster_of(manifest)["authOptions"]
        assert options["mode"] == "token"
        assert "auth_token" in secret_keys()[options["secretName"]]


def secrets() -> list[Object]:
    return list(yaml.safe_load_all((K8S / "secrets.example.yaml").read_text()))


def secret_keys() -> dict[str, set[str]]:
    return {secret["metadata"]["name"]: set(secret["data"]) for secret in secrets()}


@every_overlay
def test_every_secret_that_is_asked_for_is_in_the_example(overlay: str) -> None:
    known = secret_keys()
    for manifest in rendered(overlay):
        for reference in values(manifest, "secretKeyRef"):
            assert reference["key"] in known[reference["name"]], named(manifest)
        for reference in values(manifest, "secretRef"):
            assert reference["name"] in known, named(manifest)
        assert set(values(manifest, "secretName")) <= known.keys(), named(manifest)


def test_the_example_holds_no_secret_and_cannot_be_applied_as_it_is() -> None:
    for secret in secrets():
        assert "stringData" not in secret
        for value in secret["data"].values():
            assert re.fullmatch(r"<[^<>]+>", value)
            with pytest.raises(binascii.Error):
                base64.b64decode(value, validate=True)


def test_the_script_makes_the_secrets_of_the_example() -> None:
    script = (K8S / "create-secrets.sh").read_text()
    for name, keys in secret_keys().items():
        assert name in script
        assert all(key.removeprefix("AWS_") in script for key in keys)


@every_folder
def test_nothing_is_installed_at_run_time(name: str) -> None:
    for manifest in rendered(name):
        for environment in [*values(manifest, "runtimeEnvYAML"), *values(manifest, "runtime_env")]:
            assert not {"pip", "uv", "conda"} & set(yaml.safe_load(environment)), named(manifest)
    assert "runtime_env" not in (K8S / "overlays/cpu/serve.yaml").read_text()


def test_no_file_names_a_place_of_the_machine_it_was_written_on() -> None:
    for file in [*K8S.rglob("*"), REPOSITORY / ".dockerignore", *Path(__file__).parent.glob("*.py")]:
        if file.is_file():
            text = file.read_text()
            assert not re.search(r"/(work|home|root|Users)/", text), file
            assert str(REPOSITORY) not in text, file


# Life and death


@every_overlay
def test_serving_has_serves_settings_on_every_machine(overlay: str) -> None:
    from rails_ray.on_ray.serving.plan import PRODUCTION_ENVIRONMENT

    for _, group in groups(cluster_of(the(overlay, "RayService", "rails-ray"))):
        env = {entry["name"]: entry["value"] for entry in group["template"]["spec"]["containers"][0]["env"]}
        assert env.items() >= PRODUCTION_ENVIRONMENT.items()


@every_overlay
def test_a_pod_that_ends_has_time_to_drain(overlay: str) -> None:
    """Ray drains, then replicas end what they have (Serve's default is 20 s), then there is some room."""
    for manifest in of_kind(overlay, *CRDS):
        for _, group in groups(cluster_of(manifest)):
            spec = group["template"]["spec"]
            env = {entry["name"]: entry["value"] for entry in spec["containers"][0]["env"]}
            drain_s = float(env.get("RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S", 30))
            assert spec["terminationGracePeriodSeconds"] >= drain_s + 20 + 10, named(manifest)
            assert "lifecycle" not in spec["containers"][0], "`ray stop` would cut the drain off"


@every_overlay
def test_heads_run_no_work_and_take_no_requests(overlay: str) -> None:
    for manifest in of_kind(overlay, *CRDS):
        assert cluster_of(manifest)["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0", named(manifest)
    assert the(overlay, "RayService", "rails-ray")["spec"]["excludeHeadPodFromServeSvc"] is True


@every_overlay
def test_a_head_that_restarts_finds_its_cluster_in_redis(overlay: str) -> None:
    [redis] = of_kind(overlay, "StatefulSet")
    [service] = of_kind(overlay, "Service")
    assert selects({"matchLabels": service["spec"]["selector"]}, redis["spec"]["template"]["metadata"]["labels"])
    address = f"{service['metadata']['name']}:{service['spec']['ports'][0]['port']}"
    for name in (("RayCluster", "rails-ray-batch"), ("RayService", "rails-ray")):
        options = cluster_of(the(overlay, *name))["gcsFaultToleranceOptions"]
        assert options["redisAddress"] == address
        assert "externalStorageNamespace" not in options, "two clusters of an upgrade must not share their state"


@every_overlay
def test_a_drain_of_nodes_takes_serving_workers_one_by_one(overlay: str) -> None:
    [budget] = of_kind(overlay, "PodDisruptionBudget")
    selected = {pod.of for pod in all_pods(overlay) if selects(budget["spec"]["selector"], pod.labels)}
    assert selected == {"RayService/rails-ray worker"}
    workers = cluster_of(the(overlay, "RayService", "rails-ray"))["workerGroupSpecs"][0]["minReplicas"]
    # A number: KubeRay's kinds have no scale subresource, by which Kubernetes could evaluate anything else.
    assert budget["spec"]["minAvailable"] == workers - 1


@every_overlay
def test_spread_constraints_select_their_own_pods(overlay: str) -> None:
    for pod in all_pods(overlay):
        for constraint in pod.spec.get("topologySpreadConstraints", []):
            assert selects(constraint["labelSelector"], pod.labels), pod.of


@every_overlay
def test_accounts_that_are_named_exist(overlay: str) -> None:
    accounts = {account["metadata"]["name"] for account in of_kind(overlay, "ServiceAccount")}
    assert {name for manifest in rendered(overlay) for name in values(manifest, "serviceAccountName")} == accounts


# The README


def commands(heading: str) -> list[str]:
    """Lines of the first shell block after a heading."""
    text = (K8S / "README.md").read_text()
    block = text.split(f"## {heading}\n", 1)[1].split("```sh\n", 1)[1].split("```", 1)[0]
    return block.strip().splitlines()


def test_ten_commands_lead_from_an_empty_cluster_to_a_query() -> None:
    lines = commands("From an empty cluster to a query")
    assert len(lines) <= 10
    assert "rails-ray query" in lines[-1]
    for line in lines:
        words = shlex.split(line)
        for option, value in pairwise(words):
            if option == "-k":
                assert (REPOSITORY / value).is_dir()
            if option in ("--file", "-f") and value.startswith("k8s"):
                assert (REPOSITORY / value).is_file()
    applied = [re.findall(r"component=(\w+)", line) for line in lines if " apply -k " in line]
    assert applied == [["platform"], ["pipeline"], ["serving"]]
    assert f":{VERSION}-cpu" in " ".join(lines)


def test_the_readme_speaks_of_components_that_there_are() -> None:
    named_there = set(re.findall(r"component[= ](\w+)", (K8S / "README.md").read_text()))
    labels = {manifest["metadata"]["labels"]["app.kubernetes.io/component"] for manifest in rendered("cpu")}
    assert labels <= named_there


def test_entrypoints_in_the_readme_are_commands_of_ours() -> None:
    entrypoints = re.findall(r"python -m jobs\.[^\n`]*", (K8S / "README.md").read_text())
    assert entrypoints
    for entrypoint in entrypoints:
        parsed(entrypoint)


@pytest.mark.parametrize(("overlay", "num_gpus"), [("cpu", 0), ("gpu", 0.25)])
def test_the_serve_config_is_what_the_command_prints(overlay: str, num_gpus: float) -> None:
    args = ServeArgs(storage="s3://rails-ray-example/demo", version="emoji-1", keys_file="/etc/rails-ray/api-keys/keys")
    placement = Placement(replicas=2, max_replicas=4, num_cpus=0.5, num_gpus=num_gpus)
    config = plan.serve_config(args, placement, 2, host="0.0.0.0", port=8000)
    assert (K8S / "overlays" / overlay / "serve.yaml").read_text() == plan.commented(config, "production")
