"""Replicas and reservations, and the config that says them to Ray Serve."""

import importlib
import math
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError
from ray.serve._private import constants
from ray.serve._private.common import DeploymentID, ReplicaID
from ray.serve.config import AutoscalingConfig, AutoscalingContext
from ray.serve.schema import ServeDeploySchema

from rails_ray.errors import UnavailableError
from rails_ray.on_ray.environment import (
    ENVIRONMENT,
    PORT_VARIABLES,
    PRODUCTION_ENVIRONMENT,
    ProxyPorts,
    chosen_ports,
    set_profile,
)
from rails_ray.on_ray.serving.plan import (
    IMPORT_PATH,
    QUEUED_OF_SHARD,
    DeploymentSize,
    Profile,
    ServeArgs,
    assignment,
    commented,
    deployments,
    serve_config,
)
from rails_ray.on_ray.serving.scaling import ONGOING, by_all_calls
from rails_ray.schema.deployment import RankerArgs, RankerPlacement
from rails_ray.schema.items import MOST_CHANGES
from support.ports import free_ports

ROOT = Path(__file__).parents[3]
ARGS = ServeArgs(storage="s3://bucket/prefix", version="demo-1", keys_file="/etc/rails-ray/keys")


def test_there_is_a_router_and_a_deployment_for_each_shard() -> None:
    assert list(deployments(DeploymentSize(), 3)) == ["Router", "Shard000", "Shard001", "Shard002"]


def test_replicas_are_fixed_or_between_bounds() -> None:
    fixed = deployments(DeploymentSize(replicas=3), 1)["Shard000"]
    assert fixed["num_replicas"] == 3
    assert "autoscaling_config" not in fixed
    between = deployments(DeploymentSize(replicas=2, max_replicas=5), 1)
    scaling = {"min_replicas": 2, "max_replicas": 5, "target_ongoing_requests": 8}
    assert between["Router"]["autoscaling_config"] == scaling
    policy = between["Shard000"]["autoscaling_config"].pop("policy")["policy_function"]
    assert between["Shard000"]["autoscaling_config"] == scaling
    assert "num_replicas" not in between["Shard000"]
    module, name = policy.split(":")
    assert getattr(importlib.import_module(module), name) is by_all_calls


def test_a_shard_has_replicas_for_what_is_asked_by_handle_and_directly() -> None:
    """20 calls by Serve's handles, and 3 and 9 that two replicas are asked directly, with 8 calls for each."""
    deployment = DeploymentID(name="Shard000", app_name="rails-ray")
    replicas = [ReplicaID(unique_id=name, deployment_id=deployment) for name in ("one", "other")]
    context = AutoscalingContext(
        deployment_id=deployment,
        deployment_name=deployment.name,
        app_name=deployment.app_name,
        current_num_replicas=2,
        target_num_replicas=2,
        running_replicas=replicas,
        total_num_requests=20.0,
        total_queued_requests=0.0,
        aggregated_metrics={ONGOING: dict(zip(replicas, (3.0, 9.0), strict=True))},
        raw_metrics=None,
        capacity_adjusted_min_replicas=1,
        capacity_adjusted_max_replicas=8,
        policy_state={},
        last_scale_up_time=None,
        last_scale_down_time=None,
        current_time=None,
        config=AutoscalingConfig(target_ongoing_requests=8),
    )
    assert by_all_calls(context) == (4, {})


@pytest.mark.parametrize(
    ("replicas", "num_nodes", "bound"),
    [(1, 3, None), (2, 1, None), (2, 2, 1), (2, 3, 1), (3, 2, 2), (4, 3, 2), (8, 3, 3)],
)
def test_no_node_holds_all_replicas_of_a_deployment_if_there_are_two(
    replicas: int, num_nodes: int, bound: int | None
) -> None:
    """And no replica is left without a place."""
    own = RankerPlacement(replicas=replicas)
    placement = DeploymentSize(replicas=replicas, nodes=num_nodes, ranker=own)
    placed = deployments(placement, 2, RankerArgs(path="my_rankers:Careful"), changes_items=True)
    assert "max_replicas_per_node" not in placed.pop("Items")
    assert {options.get("max_replicas_per_node") for options in placed.values()} == {bound}
    if bound is not None:
        assert bound < replicas <= bound * num_nodes
    config = serve_config(ARGS, placement, 2, host="0.0.0.0", port=8000)
    ServeDeploySchema.model_validate(config)
    text = commented(config, "production")
    assert ("holds max_replicas_per_node of" in text) == (bound is not None)
    assert ("print it with --nodes" in text) == (replicas > 1 and num_nodes == 1)


@pytest.mark.parametrize(
    ("replicas", "rooms", "bound"),
    [
        (2, [2], None),
        (2, [0, 2, 0], None),  # one node with GPUs
        (4, [4, 1], 3),
        (4, [1, 2, 1], 2),
        (3, [2, 0.0], None),  # no bound makes room
        (2, [math.inf, math.inf], 1),
    ],
)
def test_replicas_are_as_far_apart_as_the_room_of_nodes_allows(
    replicas: int, rooms: list[float], bound: int | None
) -> None:
    """The rooms are those for a ranker; routers and shards fit wherever they like."""

    def room(num_cpus: float, num_gpus: float) -> list[float]:
        return rooms if (num_cpus, num_gpus) == (2, 1) else [math.inf, math.inf]

    own = RankerPlacement(replicas=replicas, num_cpus=2, num_gpus=1)
    placed = deployments(DeploymentSize(replicas=2, nodes=room, ranker=own), 1, RankerArgs(path="my_rankers:Careful"))
    assert placed.pop("Ranker").get("max_replicas_per_node") == bound
    assert {options["max_replicas_per_node"] for options in placed.values()} == {1}


def test_autoscaling_keeps_replicas_apart() -> None:
    between = deployments(DeploymentSize(replicas=2, max_replicas=6, nodes=2), 1)["Shard000"]
    assert between["max_replicas_per_node"] == 1


def test_parts_of_a_gpu_are_reserved_by_each_replica_that_holds_shards() -> None:
    def reserved(num_shards: int, **sizes: float) -> list[float | None]:
        placed = deployments(DeploymentSize(num_gpus=0.25, num_cpus=0.5, **sizes), num_shards)
        assert all(options["ray_actor_options"]["num_cpus"] == 0.5 for options in placed.values())
        return [options["ray_actor_options"].get("num_gpus") for options in placed.values()]

    assert reserved(2) == [None, 0.25, 0.25]
    assert reserved(2, router_gpus=0.1) == [0.1, 0.25, 0.25]
    assert reserved(0) == [0.25], "all shards are in the router"
    assert deployments(DeploymentSize(), 1)["Router"]["ray_actor_options"] == {"num_cpus": 0.1}


def test_every_queue_behind_a_router_is_bounded() -> None:
    placed = deployments(DeploymentSize(replicas=2, max_replicas=5), 2, RankerArgs(path="my_rankers:Careful"))
    assert {name: options.get("max_queued_requests") for name, options in placed.items()} == {
        "Router": None,
        "Shard000": QUEUED_OF_SHARD,
        "Shard001": QUEUED_OF_SHARD,
        "Ranker": 32,
    }


def test_what_changes_items_is_one_replica_with_a_bounded_queue() -> None:
    assert "Items" not in deployments(DeploymentSize(replicas=2), 1)
    own = deployments(DeploymentSize(replicas=2, max_replicas=5, num_gpus=1), 1, changes_items=True)["Items"]
    assert own == {
        "num_replicas": 1,
        "max_ongoing_requests": MOST_CHANGES,
        "max_queued_requests": MOST_CHANGES,
        "ray_actor_options": {"num_cpus": 0.1},
    }
    args = ARGS.model_copy(update={"change_items": True, "follow_s": 5.0})
    config = serve_config(args, DeploymentSize(), 1, host="127.0.0.1", port=8000)
    ServeDeploySchema.model_validate(config)
    assert [deployed["name"] for deployed in config["applications"][0]["deployments"]] == [
        "Router",
        "Shard000",
        "Items",
    ]
    assert "follow_s: 5.0  # serve what is current" in commented(config, "local")


def test_a_ranker_has_replicas_reservations_and_limits_of_its_own() -> None:
    ranker = RankerArgs(path="my_rankers:Careful", concurrency=4, max_in_flight=16)
    own = RankerPlacement(replicas=3, num_cpus=2, num_gpus=0.25)
    placed = deployments(DeploymentSize(replicas=2, max_replicas=5, num_gpus=1, ranker=own), 1, ranker)
    assert list(placed) == ["Router", "Shard000", "Ranker"]
    assert placed["Ranker"] == {
        "num_replicas": 3,
        "max_ongoing_requests": 4,
        "max_queued_requests": 16,
        "ray_actor_options": {"num_cpus": 2, "num_gpus": 0.25},
    }
    alone = deployments(DeploymentSize(), 1, RankerArgs(path="my_rankers:Careful"))["Ranker"]
    assert (alone["num_replicas"], alone["max_ongoing_requests"]) == (1, 1)
    assert alone["ray_actor_options"] == {"num_cpus": 1}
    assert "Ranker" not in deployments(DeploymentSize(ranker=own), 1)


def test_a_config_with_a_ranker_is_one_that_serve_takes() -> None:
    ranker = RankerArgs(path="my_rankers:Careful", folder="s3://bucket/ranker", timeout_s=3)
    args = ARGS.model_copy(update={"ranker": ranker})
    config = serve_config(args, DeploymentSize(ranker=RankerPlacement(num_gpus=0.5)), 2, host="0.0.0.0", port=8000)
    ServeDeploySchema.model_validate(config)
    text = commented(config, "production")
    assert yaml.safe_load(text) == config
    assert "in 2 shards" in text
    assert ServeArgs.model_validate(config["applications"][0]["args"]).ranker == ranker


@pytest.mark.parametrize("profile", ["local", "production"])
@pytest.mark.parametrize("placement", [DeploymentSize(), DeploymentSize(replicas=2, max_replicas=4, num_gpus=0.25)])
@pytest.mark.parametrize("num_shards", [1, 12])
def test_a_config_is_one_that_serve_takes(profile: Profile, placement: DeploymentSize, num_shards: int) -> None:
    config = serve_config(ARGS, placement, num_shards, host="0.0.0.0", port=8000)
    text = commented(config, profile)
    assert yaml.safe_load(text) == config
    ServeDeploySchema.model_validate(config)
    assert "&id" not in text  # each deployment is to be changed alone
    for name, value in PRODUCTION_ENVIRONMENT.items():
        assert (f"#   {assignment(name, value)}\n" in text) == (profile == "production" or name in ENVIRONMENT)
    assert ("8404" in text) == ("9101" in text) == ("8500" in text) == (profile == "production")


def test_a_config_names_the_ports_that_are_chosen_and_no_others() -> None:
    config = serve_config(ARGS, DeploymentSize(), 1, host="0.0.0.0", port=8000)
    ports = ProxyPorts(stats_port=7001, metrics_port=7002, fallback_port=7003)
    text = commented(config, "production", ports)
    for line in (
        "#   RAY_SERVE_HAPROXY_STATS_PORT=7001\n",
        "#   RAY_SERVE_HAPROXY_METRICS_PORT=7002\n",
        "#   RAY_SERVE_FALLBACK_PROXY_HTTP_PORT=7003\n",
        "#   7001 and 7002, on all interfaces",
        "#   7003, on the head",
    ):
        assert line in text
    assert not re.search("8404|9101|8500", text)


def test_rays_variables_of_the_ports_are_called_so_and_have_our_defaults() -> None:
    """Ray ignores variables that it does not know, and would open its default ports."""
    for name, port in ProxyPorts().variables.items():
        assert getattr(constants, name) == int(port)


def test_the_config_in_the_repository_is_what_the_command_prints() -> None:
    config = serve_config(ARGS, DeploymentSize(), 2, host="127.0.0.1", port=8000)
    assert (ROOT / "serve" / "config.yaml").read_text() == commented(config, "local")


@pytest.mark.parametrize("path", [IMPORT_PATH, "serve.app:build"])
@pytest.mark.long
def test_what_serve_deploys_can_be_imported_where_the_repository_is(path: str) -> None:
    module, name = path.split(":")
    done = subprocess.run(
        [sys.executable, "-c", f"from {module} import {name} as b; from inspect import signature; print(signature(b))"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "args: rails_ray.on_ray.serving.plan.ServeArgs" in done.stdout  # a string would make it a plain dict


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"replicas": 0}, "replicas must be at least 1, got 0"),
        ({"replicas": 3, "max_replicas": 2}, "max_replicas must be at least the 3 replicas, got 2"),
        ({"nodes": 0}, "nodes must be at least 1, got 0"),
        ({"num_gpus": -1.0}, "num_cpus and num_gpus must be at least 0, got 0.1 and -1"),
        ({"num_gpus": 1.5}, "num_gpus must be a part of one GPU or a whole number, got 1.5"),
        ({"router_gpus": 2.5}, "router_gpus must be a part of one GPU or a whole number, got 2.5"),
        ({"router_gpus": -1.0}, "num_cpus and router_gpus must be at least 0, got 0 and -1"),
    ],
)
def test_a_placement_that_cannot_be(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DeploymentSize(**arguments)
    if not {"max_replicas", "nodes", "router_gpus"} & set(arguments):
        with pytest.raises(ValueError, match=message.replace("got 0.1", "got 1")):
            RankerPlacement(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "give keys_file, or allow_anonymous for a server without access control, got neither"),
        ({"keys_file": "k", "allow_anonymous": True}, "got both"),
        ({"allow_anonymous": True, "speed": 9}, "speed"),
        ({"allow_anonymous": True, "max_queries": 0}, "max_queries"),
        ({"allow_anonymous": True, "deadline_s": 0}, "deadline_s"),
        ({"allow_anonymous": True, "follow_s": 0}, "follow_s"),
        ({"allow_anonymous": True, "change_items": True}, "change_items must be given with keys_file, got allow_anon"),
        (
            {"allow_anonymous": True, "ranker": {"path": "my:rank", "timeout_s": 60}},
            "must be less than the 30 s of a whole request, got 60",
        ),
        ({"allow_anonymous": True, "ranker": {"folder": "/f"}}, "ranker.path"),
        ({"allow_anonymous": True, "ranker": {"path": "a:b", "timeout_s": 0}}, "ranker.timeout_s"),
        ({"allow_anonymous": True, "ranker": {"path": "a:b", "replicas": 2}}, "ranker.replicas"),
    ],
)
def test_arguments_of_the_application_that_cannot_be(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ServeArgs(storage="x", **arguments)


def test_variables_are_printed_as_bash_reads_them() -> None:
    for name, value in PRODUCTION_ENVIRONMENT.items():
        printed = subprocess.run(
            ["bash", "-c", f'{assignment(name, value)}; printf %s "${name}"'],
            capture_output=True,
            text=True,
            check=True,
        )
        assert printed.stdout == value


@pytest.mark.parametrize("profile", ["local", "production"])
def test_a_profile_sets_its_variables_and_leaves_those_that_are_set(
    profile: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {"RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "120", "RAY_SERVE_ENABLE_HA_PROXY": "1"}
    monkeypatch.setattr(os, "environ", environment)
    ports = ProxyPorts(stats_port=7001)
    set_profile(profile, ports)
    expected = PRODUCTION_ENVIRONMENT | ports.variables if profile == "production" else ENVIRONMENT
    assert environment == expected | {"RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "120"}


def test_ports_are_as_given_or_else_as_their_variables_say() -> None:
    environment = {"RAY_SERVE_HAPROXY_STATS_PORT": "7001", "RAY_SERVE_HAPROXY_METRICS_PORT": "7002"}
    given = {"stats_port": 7011, "metrics_port": None, "fallback_port": None}
    expected = ProxyPorts(stats_port=7011, metrics_port=7002, fallback_port=8500)
    assert chosen_ports(given, environment) == expected
    with pytest.raises(ValueError, match="RAY_SERVE_HAPROXY_METRICS_PORT must be a port from 1 to 65535, got 'x': set"):
        chosen_ports(given, environment | {"RAY_SERVE_HAPROXY_METRICS_PORT": "x"})


def test_a_port_that_another_program_uses_is_named_by_its_option() -> None:
    ports = free_ports(3)
    chosen = ProxyPorts(**dict(zip(PORT_VARIABLES, ports, strict=True)))
    chosen.check_free("127.0.0.1")
    for port, name in zip(ports, ("stats", "metrics", "fallback"), strict=True):
        with socket.create_server(("127.0.0.1", port)):
            option = f"--haproxy.{name}-port"
            message = f"^{option} must be free, got {port}, which another program uses: choose another {option}$"
            with pytest.raises(UnavailableError, match=message):
                chosen.check_free("127.0.0.1")
