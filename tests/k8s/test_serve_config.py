"""The Serve config inside the RayService: taken by Ray Serve, and what our command prints."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel
from ray.serve.config import AutoscalingConfig
from ray.serve.schema import ServeDeploySchema

from rails_ray.on_ray.serving import plan
from rails_ray.on_ray.serving.plan import DeploymentSize, ServeArgs
from rails_ray.schema.deployment import RankerArgs, RankerPlacement
from support.command_line import code_blocks
from support.kuberay import CLUSTER, Object, at, cluster_of, groups
from support.manifests import K8S, change, every_overlay, move, named, of_kind, parsed, secret_keys, serve_config, the


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
    assert application["import_path"] == plan.IMPORT_PATH
    assert num_shards(config) >= 1
    assert list(deployments(config)) == list(plan.deployments(plan.DeploymentSize(), num_shards(config)))
    assert config["proxy_location"] == "EveryNode"
    assert config["http_options"]["port"] in container_ports(the(overlay, "RayService", "rails-ray"))


def container_ports(service: Object) -> set[int]:
    ports = at(cluster_of(service), "workerGroupSpecs.0.template.spec.containers.0.ports")
    return {port["containerPort"] for port in ports if port["name"] == "serve"}


@every_overlay
def test_the_application_takes_its_arguments_and_asks_for_keys(overlay: str) -> None:
    from rails_ray.serve_app import ServeArgs

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
    for manifest in of_kind(overlay, *CLUSTER):
        for node_type, group in groups(cluster_of(manifest)):
            resources = group["template"]["spec"]["containers"][0]["resources"]
            expected = has_gpus and node_type == "worker"
            assert ("nvidia.com/gpu" in resources["limits"]) == expected, (named(manifest), node_type)
            assert resources["limits"].get("nvidia.com/gpu") == resources["requests"].get("nvidia.com/gpu")
    for name, options in deployments(serve_config(overlay)).items():
        assert ("num_gpus" in options["ray_actor_options"]) == (has_gpus and name != "Router")


def test_a_job_finds_a_gpu_for_each_of_its_workers_when_it_starts() -> None:
    """Training takes GPUs only if the cluster has enough of them by then."""
    for job in of_kind("gpu", "RayJob"):
        group = cluster_of(job)["workerGroupSpecs"][0]
        assert group["minReplicas"] >= parsed(job["spec"]["entrypoint"]).workers, named(job)


@pytest.mark.parametrize(("overlay", "num_gpus"), [("cpu", 0), ("gpu", 0.25)])
def test_the_serve_config_is_what_the_command_prints(overlay: str, num_gpus: float) -> None:
    args = ServeArgs(storage="s3://rails-ray-example/demo", version="emoji-1", keys_file="/etc/rails-ray/api-keys/keys")
    placement = DeploymentSize(replicas=2, max_replicas=4, num_cpus=0.5, num_gpus=num_gpus, nodes=2)
    config = plan.serve_config(args, placement, 2, host="0.0.0.0", port=8000)
    assert (K8S / "overlays" / overlay / "serve.yaml").read_text() == plan.commented(config, "production")


def test_the_ranker_in_the_readme_is_what_the_command_prints() -> None:
    [text] = code_blocks("docs/kubernetes.md", "yaml")
    [application] = yaml.safe_load(text)["applications"]
    ranker = RankerArgs(path="my_rankers:Careful", timeout_s=3)
    args = ServeArgs(storage="s3://rails-ray-example/demo", keys_file="/etc/rails-ray/api-keys/keys", ranker=ranker)
    placement = DeploymentSize(ranker=RankerPlacement(replicas=2, num_gpus=0.25))
    config = plan.serve_config(args, placement, 2, host="0.0.0.0", port=8000)
    check_serve_config(config)
    [printed] = config["applications"]
    assert application["args"]["ranker"] == printed["args"]["ranker"]
    assert application["deployments"] == printed["deployments"][-1:]
