"""Entrypoints in manifests and in docs/kubernetes.md are commands of ours; images are of this version."""

import re
import shlex
from itertools import pairwise

import pytest
import ray

from support.kuberay import REPOSITORY
from support.manifests import K8S, VERSION, every_folder, every_overlay, of_kind, parsed, rendered, the, values


@every_folder
def test_every_entrypoint_is_a_command_of_ours(name: str) -> None:
    jobs = of_kind(name, "RayJob")
    assert jobs
    for job in jobs:
        command = parsed(job["spec"]["entrypoint"])
        assert command.storage.startswith("s3://"), "what a pod writes elsewhere is lost with it"
        assert command.run_name, "a try on a new cluster goes on only under a name that stays"
        assert job["spec"]["entrypointNumCpus"] >= 1, "the head has no CPUs for a driver"


@every_folder
def test_a_refresh_is_a_command_of_ours(name: str) -> None:
    [job] = of_kind(name, "RayCronJob")
    template = job["spec"]["jobTemplate"]
    command = parsed(template["entrypoint"])
    assert command.storage.startswith("s3://")
    assert command.folder.startswith("s3://")
    assert template["entrypointNumCpus"] >= 1
    assert template["clusterSelector"] == {"ray.io/cluster": "rails-ray-batch"}


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


def commands(heading: str) -> list[str]:
    """Lines of the first shell block after a heading."""
    text = (REPOSITORY / "docs" / "kubernetes.md").read_text()
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
    named_there = set(re.findall(r"component[= ](\w+)", (REPOSITORY / "docs" / "kubernetes.md").read_text()))
    labels = {manifest["metadata"]["labels"]["app.kubernetes.io/component"] for manifest in rendered("cpu")}
    assert labels <= named_there


def test_entrypoints_in_the_readme_are_commands_of_ours() -> None:
    entrypoints = re.findall(r"python -m rails_ray\.jobs\.[^\n`]*", (REPOSITORY / "docs" / "kubernetes.md").read_text())
    assert entrypoints
    for entrypoint in entrypoints:
        parsed(entrypoint)
