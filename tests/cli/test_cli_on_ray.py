"""The commands of README.md and docs/start.md: in processes on clusters of their own, or here on the session's."""

import ast
import json
import secrets
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from rails_ray.cli.main import EXIT_FAILED, EXIT_INTERRUPTED, main, parse
from rails_ray.cli.query import DEFAULT_URL
from rails_ray.storage import versions
from rails_ray.storage.filesystem import Storage
from support import processes
from support.command_line import ROOT, code_blocks, readme_commands, run
from support.ports import free_port

pytestmark = [pytest.mark.cluster, pytest.mark.long]


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """The quickstart at work and its storage. It waits for much: other commands can use the time."""
    storage = tmp_path_factory.mktemp("quickstart") / "storage"
    arguments = ["--storage", str(storage), "--steps", "20", "--port", str(free_port())]
    with processes.command("quickstart", *arguments) as process:
        try:
            yield storage, process
        finally:
            process.kill()


def here(*arguments: str, capfd: pytest.CaptureFixture[str]) -> subprocess.CompletedProcess[str]:
    """The command to its end, in this process, on the cluster that it is connected to."""
    capfd.readouterr()
    code = main(arguments)
    return subprocess.CompletedProcess(arguments, code, *capfd.readouterr())


@pytest.mark.usefixtures("quickstart", "no_serve")
def test_the_readmes_stage_commands(s3: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """As printed but for storage on S3, a port, a small training, and the server in the background.

    Serving and asking are processes, as a shell would start them. All else is spared the start of a process and of its
    cluster, which takes far longer than its work; `on_ray/test_kills.py` trains and encodes in processes.
    """
    storage, port = f"{s3}/storage", free_port()
    url, token = f"http://127.0.0.1:{port}", secrets.token_hex(32)
    small = {
        "data.num-valid": 50,
        "data.num-test": 200,
        "encoder.num-buckets": 4096,
        "training.num-steps": 8,
        "training.batch-size": 32,
        "negatives.num-items": 32,
    }
    more = {
        "train": ["--storage", storage, *(word for name, size in small.items() for word in (f"--{name}", str(size)))],
        "encode": ["--storage", storage],
        "publish": ["--storage", storage],
        "evaluate": ["--storage", storage],
        "calibrate": ["--storage", storage, "--plot", str(tmp_path / "calibration.png")],
        "tune": ["--storage", storage],
        "index": ["--storage", storage],
        "serve": ["--storage", storage, "--port", str(port)],
        "query": ["--url", url],
    }
    parsed = [shlex.split(line)[1:] for line in readme_commands("docs/start.md", "The stages as commands")]
    assert [command[0] for command in parsed] == [
        "train", "encode", "calibrate", "tune", "publish", "evaluate", "index", "serve", "query", "query"
    ]  # fmt: skip
    server: subprocess.Popen[str] | None = None
    try:
        for command in parsed:
            arguments = [*command, *more[command[0]]]
            if command[0] == "serve":
                server = processes.command(
                    *arguments, more_environment={"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
                )
                assert server.stdout is not None
                while "serving at" not in (line := server.stdout.readline()):
                    assert line or server.poll() is None, "the server ended"
                continue
            done = run(*arguments) if command[0] == "query" else here(*arguments, capfd=capfd)
            assert done.returncode == 0, done.stderr
            assert "Traceback" not in done.stderr
            if command[0] == "calibrate":
                assert "50 queries of split valid calibrate, split test measures" in done.stdout
                assert "left out: coverage 0.99 needs at least 99 calibration queries, got 50" in done.stdout
                assert (tmp_path / "calibration.png").read_bytes().startswith(b"\x89PNG")
            if command[0] == "tune":
                assert "demo-1: 50 queries of split valid choose, 50 queries of split valid calibrate" in " ".join(
                    done.stdout.split()
                )
            if command[0] == "query":
                assert all(text in done.stdout for text in parse(command).texts)
        _, code = code_blocks("README.md", "python")
        assert DEFAULT_URL in code
        assert "rails-ray-data" in code
        capfd.readouterr()
        exec(compile(code.replace(DEFAULT_URL, url).replace("rails-ray-data", storage), "README.md", "exec"), {})
        pizza, flag, here_too = capfd.readouterr().out.splitlines()
        assert pizza.endswith(" True")
        assert flag.endswith(" True")
        assert len(ast.literal_eval(here_too)) == 3
    finally:
        if server is not None:
            server.send_signal(signal.SIGINT)
            server.communicate(timeout=processes.PATIENCE * 60)
            assert server.returncode == EXIT_INTERRUPTED
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/v1/health")
    psutil.wait_procs(processes.with_token(token), timeout=10)
    assert not processes.with_token(token), "Ctrl-C must stop everything that the command started"

    store = Storage(storage)
    part = versions.read_manifest(store).parts[-1].path
    store.write(part, store.read(part)[:-1])
    done = here("serve", "--allow-anonymous", "--storage", storage, "--port", str(port), capfd=capfd)
    assert done.returncode == EXIT_FAILED
    assert f"{Path(part).name} of version demo-1 must have the sha256 of its manifest" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_cluster_that_does_not_answer_is_told_in_a_sentence(tmp_path: Path) -> None:
    """Ray itself would try for 80 s; here it does once, for a second at each step."""
    address = f"127.0.0.1:{free_port()}"
    quick = {
        "RAY_ADDRESS": address,
        "RAY_gcs_server_port_wait_time_s": "1",
        "RAY_gcs_rpc_server_connect_timeout_s": "1",
        "RAY_py_gcs_connect_timeout_s": "1",
    }
    with processes.command("evaluate", "--storage", str(tmp_path), more_environment=quick) as process:
        try:
            out, errors = process.communicate(timeout=processes.PATIENCE * 120)
        finally:
            process.kill()
    assert process.returncode == EXIT_FAILED
    assert "Traceback" not in out + errors
    (told,) = [line for line in errors.splitlines() if line.startswith("rails-ray: ")]
    assert told.startswith(
        f"rails-ray: the Ray cluster that RAY_ADDRESS names, {address}, must answer, got: Failed to connect to Ray "
        "cluster at "
    )
    assert told.endswith(": check RAY_ADDRESS, RAY_AUTH_TOKEN and that the cluster runs")


def test_the_readmes_quickstart_on_a_reduced_budget(quickstart: tuple[Path, subprocess.Popen[str]]) -> None:
    assert "`rails-ray quickstart`" in (ROOT / "README.md").read_text()
    storage, process = quickstart
    out, errors = process.communicate(timeout=processes.PATIENCE * 240)
    assert process.returncode == 0, errors
    assert "Traceback" not in out + errors
    for expected in (
        "without API keys",
        "pizza",
        "🍕",
        "고양이",
        "Mixture of Logits",
        "dot product",
        "HR@10",
        "MRR",
        "cut-off: mass 0.",
    ):
        assert expected in out
    assert "served top-10 by brute_force: recall 1.0000 against offline brute force" in out
    version = json.loads((storage / "CURRENT").read_text())["version"]
    assert (storage / "versions" / version / "manifest.json").exists()
