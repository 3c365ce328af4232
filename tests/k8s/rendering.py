"""Overlays as they would be applied."""

import shutil
import subprocess
from copy import deepcopy
from functools import cache
from typing import Any

import pytest
import yaml

from k8s.kuberay import CRDS, REPOSITORY, Object, Pod, pods

OVERLAYS = ["cpu", "gpu"]
FOLDERS = {"cpu": "k8s/overlays/cpu", "gpu": "k8s/overlays/gpu", "example": "k8s/examples/training"}


@cache
def _built(folder: str) -> list[Object]:
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
