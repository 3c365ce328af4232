"""The Dockerfile, as far as it can be read: no docker daemon builds it here."""

import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path

from support.kuberay import REPOSITORY

LINES = re.sub(r"\\\n\s*", "", (REPOSITORY / "k8s/Dockerfile").read_text()).splitlines()
INSTRUCTIONS = [line.split(maxsplit=1) for line in LINES if line and not line.startswith("#")]


def stages() -> dict[str, list[tuple[str, str]]]:
    """Instructions of each stage, after those of the stage that it begins with."""
    found: dict[str, list[tuple[str, str]]] = {}
    name = ""
    for instruction, arguments in INSTRUCTIONS:
        if instruction == "FROM":
            parent, _, name = arguments.split()
            found[name] = [*found.get(parent, [])]
        elif name:
            found[name].append((instruction, arguments))
    return found


def test_there_is_a_target_for_each_profile_that_does_not_run_as_root() -> None:
    for target in ("cpu", "gpu"):
        users = [arguments for instruction, arguments in stages()[target] if instruction == "USER"]
        assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", users[-1])


def test_manifests_run_as_the_user_of_the_image() -> None:
    [user] = {arguments for instruction, arguments in INSTRUCTIONS if instruction == "USER"}
    for file in ("ray-cluster.yaml", "ray-job-pipeline.yaml", "ray-service.yaml"):
        text = (REPOSITORY / "k8s/base" / file).read_text()
        assert set(re.findall(r"runAs(?:User|Group): (\d+)", text)) == set(user.split(":")), file


def test_what_is_copied_is_there_and_let_in_by_dockerignore() -> None:
    copied = [
        word
        for instruction, arguments in INSTRUCTIONS
        if instruction == "COPY" and not arguments.startswith("--from")
        for word in arguments.split()[:-1]
    ]
    assert set(copied) == {"pyproject.toml", "README.md", "LICENSE", "rails_ray", "jobs", "serve"}
    everything, *lines = [
        line for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")
    ]
    assert everything == "*"
    allowed = {line.removeprefix("!") for line in lines if line.startswith("!")}
    refused = [line for line in lines if not line.startswith("!")]
    assert allowed == set(copied)
    for word in copied:
        assert (REPOSITORY / word).exists()
        assert not any(fnmatch(word, pattern) for pattern in refused)


def test_jobs_and_serve_are_found_wherever_a_driver_starts() -> None:
    for target in ("cpu", "gpu"):
        [folder] = [arguments for instruction, arguments in stages()[target] if instruction == "WORKDIR"]
        environment = " ".join(arguments for instruction, arguments in stages()[target] if instruction == "ENV")
        assert f"PYTHONPATH={folder} " in environment


def test_the_image_has_what_probes_call_and_no_pip() -> None:
    for target in ("cpu", "gpu"):
        runs = " ".join(arguments for instruction, arguments in stages()[target] if instruction == "RUN")
        assert re.search(r"apt-get install [^&]* bash wget ", runs)
        assert "pip uninstall --yes pip" in runs
    for builder in ("build-cpu", "build-gpu"):
        last = [arguments for instruction, arguments in stages()[builder] if instruction == "RUN"][-1]
        assert "pip uninstall --yes pip" in last, "what is copied from here would bring it back"


def test_the_image_has_what_rankers_and_clusters_need() -> None:
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for target in ("cpu", "gpu"):
        [installed] = re.findall(r'"\.\[(.*?)\]"', " ".join(arguments for _, arguments in stages()[f"build-{target}"]))
        more = {"gpu"} if target == "gpu" else set()
        assert set(installed.split(",")) == {"ray", "rankers", "relevance"} | more <= extras.keys()
        assert "libgomp1" in " ".join(arguments for _, arguments in stages()[target])  # which lightgbm's wheel lacks


def test_the_gpu_image_has_a_compiler_for_triton() -> None:
    """Without one, a GPU would scan without the fused kernel."""
    has_compiler = {
        target: bool(
            re.search(r"apt-get install [^&]*gcc libc6-dev ", " ".join(words for _, words in stages()[target]))
        )
        for target in ("cpu", "gpu")
    }
    assert has_compiler == {"cpu": False, "gpu": True}


def test_the_cpu_image_alone_takes_torch_without_cuda() -> None:
    index = {
        builder: " ".join(arguments for _, arguments in stages()[builder]).count("download.pytorch.org/whl/cpu")
        for builder in ("build-cpu", "build-gpu")
    }
    assert index == {"build-cpu": 1, "build-gpu": 0}


def test_torch_and_python_are_those_of_the_project() -> None:
    arguments = dict(
        arguments.split("=", 1) for instruction, arguments in INSTRUCTIONS if instruction == "ARG" and "=" in arguments
    )
    assert f"torch=={arguments['TORCH_VERSION']}" in (REPOSITORY / "Makefile").read_text()
    project = tomllib.loads(Path(REPOSITORY / "pyproject.toml").read_text())["project"]
    oldest = project["requires-python"].removeprefix(">=")
    assert arguments["PYTHON_IMAGE"].startswith(f"python:{oldest}-slim")
