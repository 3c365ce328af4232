"""Overlays as they would be applied, what several tests ask of them, and mistakes to make in them."""

import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import cache
from importlib.util import find_spec
from typing import Any

import pytest
import yaml

from rails_ray.cli.main import parse
from support.kuberay import CRDS, REPOSITORY, Object, Pod, at, pods

OVERLAYS = ["cpu", "gpu"]
FOLDERS = {"cpu": "k8s/overlays/cpu", "gpu": "k8s/overlays/gpu", "example": "k8s/examples/training"}


K8S = REPOSITORY / "k8s"
VERSION = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
every_folder = pytest.mark.parametrize("name", FOLDERS)
every_overlay = pytest.mark.parametrize("overlay", OVERLAYS)


@cache
def _built(folder: str) -> list[Object]:
    """Of an overlay or an example. Not every machine has the client: the tests are skipped there."""
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl, the client alone, to build what kustomize describes")
    command = ["kubectl", "kustomize", str(REPOSITORY / folder)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return list(yaml.safe_load_all(built.stdout))


def rendered(name: str) -> list[Object]:
    """All objects of an overlay or an example, to be changed at will."""
    return deepcopy(_built(FOLDERS[name]))


def of_kind(name: str, *kinds: str) -> list[Object]:
    return [manifest for manifest in rendered(name) if manifest["kind"] in kinds]


def the(name: str, kind: str, called: str) -> Object:
    """The object of this kind and name."""
    [found] = [manifest for manifest in of_kind(name, kind) if manifest["metadata"]["name"] == called]
    return found


def all_pods(name: str) -> list[Pod]:
    """Every pod that an overlay leads to."""
    plain = [manifest["spec"]["template"] for manifest in of_kind(name, "StatefulSet")]
    made = [Pod("StatefulSet", template["metadata"]["labels"], template["spec"]) for template in plain]
    return [*made, *(pod for manifest in of_kind(name, *CRDS) for pod in pods(manifest))]


def serve_config(name: str) -> dict[str, Any]:
    """The Serve config inside the RayService."""
    config: dict[str, Any] = yaml.safe_load(the(name, "RayService", "rails-ray")["spec"]["serveConfigV2"])
    return config


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


def parsed(entrypoint: str) -> Any:
    """The command of an entrypoint, as our own command line takes it."""
    python, option, module, *arguments = shlex.split(entrypoint)
    assert (python, option) == ("python", "-m")
    assert find_spec(module) is not None
    package, _, command = module.rpartition(".")
    assert package == "rails_ray.jobs"
    return parse([command, *arguments])


def secrets() -> list[Object]:
    return list(yaml.safe_load_all((K8S / "secrets.example.yaml").read_text()))


def secret_keys() -> dict[str, set[str]]:
    return {secret["metadata"]["name"]: set(secret["data"]) for secret in secrets()}
