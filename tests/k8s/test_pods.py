"""Pods: what they may do, the secrets they have, and how they begin and end."""

import base64
import binascii
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from rails_ray.serving.http.keys import Key
from support.kuberay import CLUSTER, REPOSITORY, Object, Pod, cluster_of, groups
from support.manifests import (
    K8S,
    all_pods,
    every_folder,
    every_overlay,
    named,
    of_kind,
    rendered,
    secret_keys,
    secrets,
    the,
    values,
)
from support.network import selects


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
    for manifest in of_kind(name, *CLUSTER):
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
    for manifest in of_kind(name, *CLUSTER):
        options = cluster_of(manifest)["authOptions"]
        assert options["mode"] == "token"
        assert "auth_token" in secret_keys()[options["secretName"]]


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


KUBECTL = """#!/bin/sh
# A kubectl whose Secrets are files: -n NAMESPACE get secret NAME [-o PATH], -n NAMESPACE create secret generic NAME ...
shift 2
field=$(echo "$5" | sed "s/.*data[.]//; s/}//")
case "$1 $4" in
"get -o") sed -n "s/^$field=//p" "$SECRETS/$3" | tr -d "\\n" | base64 ;;
get*) test -e "$SECRETS/$3" ;;
*) cat >"$SECRETS/$4" ;;
esac
"""
needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl, as the script does")


def made_secrets(folder: Path, **before: str) -> tuple[subprocess.CompletedProcess[str], dict[str, str]]:
    """What the script says, and the Secrets that there are then.

    Args:
        before: Secrets that there are before.
    """
    places = folder / "secrets"
    places.mkdir(exist_ok=True)
    for name, text in before.items():
        (places / name.replace("_", "-")).write_text(text)
    (folder / "kubectl").write_text(KUBECTL)
    (folder / "kubectl").chmod(0o755)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "SECRETS": str(places)}
    said = subprocess.run(["sh", K8S / "create-secrets.sh"], env=environment, capture_output=True, text=True)
    return said, {file.name: file.read_text() for file in places.iterdir()}


@needs_openssl
def test_the_server_has_the_hash_of_the_key_that_clients_have(tmp_path: Path) -> None:
    """Made once: what is there stays."""
    (_, first), (said, made) = made_secrets(tmp_path), made_secrets(tmp_path)
    assert first == made
    assert said.returncode == 0
    assert "secret/rails-ray-api-keys is there already" in said.stdout
    key = made["rails-ray-client"].removeprefix("key=").strip()
    assert re.fullmatch("[0-9a-f]{64}", key)
    assert Key.read(made["rails-ray-api-keys"].removeprefix("keys=").strip(), "line 1") == Key.of(key)
    assert all(key not in text for name, text in made.items() if name != "rails-ray-client")
    assert key not in said.stdout + said.stderr


@needs_openssl
@pytest.mark.parametrize("client", ["", "other=a-key-of-the-test\n", "key=short\n"])
def test_no_server_is_given_the_hash_of_nothing(client: str, tmp_path: Path) -> None:
    said, made = made_secrets(tmp_path, rails_ray_client=client)
    assert said.returncode == 1
    assert "secret/rails-ray-client must have a key of at least 16 characters, got" in said.stderr
    assert "rails-ray-api-keys" not in made


@needs_openssl
def test_keys_of_a_server_that_are_not_the_clients_are_told_and_left(tmp_path: Path) -> None:
    said, made = made_secrets(tmp_path, rails_ray_api_keys="keys=an-older-key-of-the-test\n")
    assert said.returncode == 1
    key = made["rails-ray-client"].removeprefix("key=").strip()
    assert said.stderr.endswith(f"add the line {Key.of(key).line()}\n")
    assert made["rails-ray-api-keys"] == "keys=an-older-key-of-the-test\n"


@every_overlay
def test_no_pod_has_the_clients_key(overlay: str) -> None:
    for manifest in rendered(overlay):
        assert "rails-ray-client" not in yaml.safe_dump(manifest), named(manifest)


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


@every_overlay
def test_serving_has_serves_settings_on_every_machine(overlay: str) -> None:
    from rails_ray.on_ray.environment import ProxyPorts, variables_of

    for _, group in groups(cluster_of(the(overlay, "RayService", "rails-ray"))):
        env = {entry["name"]: entry["value"] for entry in group["template"]["spec"]["containers"][0]["env"]}
        assert env.items() >= variables_of("production", ProxyPorts()).items()


@every_overlay
def test_a_pod_that_ends_has_time_to_drain(overlay: str) -> None:
    """Ray drains, then replicas end what they have (Serve's default is 20 s), then there is some room."""
    for manifest in of_kind(overlay, *CLUSTER):
        for _, group in groups(cluster_of(manifest)):
            spec = group["template"]["spec"]
            env = {entry["name"]: entry["value"] for entry in spec["containers"][0]["env"]}
            drain_s = float(env.get("RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S", 30))
            assert spec["terminationGracePeriodSeconds"] >= drain_s + 20 + 10, named(manifest)
            assert "lifecycle" not in spec["containers"][0], "`ray stop` would cut the drain off"


@every_overlay
def test_heads_run_no_work_and_take_no_requests(overlay: str) -> None:
    for manifest in of_kind(overlay, *CLUSTER):
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
