"""A cluster's head node in a process of its own, as `ray start --head` leaves it on a machine, and jobs on it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from rails_ray import on_ray
from support.ports import HOST, free_ports
from support.processes import PATIENCE, wait_for, with_token

ROOT = Path(__file__).parents[2]
MARK = "RAILS_RAY_HEAD_NODE"  # stands in the environment of all processes of one cluster


@dataclass(frozen=True)
class HeadNode:
    """
    address: of the dashboard, to which jobs and configs of Serve are sent.
    gcs_address: what RAY_ADDRESS must be for a driver of this cluster.
    mark: text in the environment of each process of this cluster, and of no other.
    logs: folder of Ray's logs; gone with the cluster.
    metrics: URL at which Ray shows the metrics of this node, if the environment turns them on.
    """

    address: str
    gcs_address: str
    mark: str
    logs: Path
    metrics: str


@contextmanager
def head_node(
    *,
    num_cpus: int = 4,
    num_gpus: int = 0,
    environment: Mapping[str, str] | None = None,
    python: str = sys.executable,
    working_dir: Path | None = None,
) -> Iterator[HeadNode]:
    """A cluster of one node that takes jobs, until the block ends; then nothing of it is left.

    It has this process's environment and token, less the credentials of S3: whoever needs those must bring them.

    Args:
        num_gpus: logical ones, which no device need stand behind.
        environment: more variables of all its processes.
        python: interpreter of all its processes.
        working_dir: where it is started; Ray's processes import from there too.
    """
    gcs, dashboard, agent, client, metrics = free_ports(5)
    mark = f"{MARK}={uuid.uuid4().hex}"
    # The path of a unix socket has at most 107 characters, and Ray's own folders take 60 of them.
    folder = Path(tempfile.mkdtemp(prefix="rr"))
    log = folder / "start.log"
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    variables = {
        "PATH": os.pathsep.join([str(Path(python).parent), os.environ["PATH"]]),  # `python` of a job is ours
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",  # by default SIGTERM is followed by 30 s of draining
        "RAY_USAGE_STATS_ENABLED": "0",
        MARK: mark.partition("=")[2],
    }
    options = {
        "--port": gcs,
        "--dashboard-host": HOST,
        "--dashboard-port": dashboard,
        "--dashboard-agent-listen-port": agent,
        "--ray-client-server-port": client,
        "--metrics-export-port": metrics,
        "--min-worker-port": 0,  # any free one: another cluster on this machine has workers too
        "--max-worker-port": 0,
        "--num-cpus": num_cpus,
        "--num-gpus": num_gpus,
        "--temp-dir": folder,
    }
    arguments = [str(word) for option in options.items() for word in option]
    with log.open("w") as output:
        process = subprocess.Popen(
            [python, "-m", "ray.scripts.scripts", "start", "--head", "--block", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=inherited | variables | (environment or {}),
            cwd=working_dir,
        )
    try:
        address = f"http://{HOST}:{dashboard}"
        # Both are public. Jobs are taken by the dashboard and run by the agent, which is there some seconds later.
        for url in (f"{address}/api/version", f"http://{HOST}:{agent}/api/local_raylet_healthz"):
            wait_for(lambda url=url: process.poll() is not None or _answers(url))
        if process.poll() is not None:
            raise RuntimeError(f"the head node must start, got exit status {process.returncode}: {log.read_text()}")
        logs = folder / "session_latest" / "logs"
        yield HeadNode(address, f"{HOST}:{gcs}", mark, logs, f"http://{HOST}:{metrics}/metrics")
    finally:
        _stop(process, mark)
        shutil.rmtree(folder)


def _answers(url: str) -> bool:
    token = os.environ["RAY_AUTH_TOKEN"]
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    with suppress(OSError), urllib.request.urlopen(request, timeout=5) as response:
        return response.status == 200
    return False


def _stop(process: subprocess.Popen[bytes], mark: str) -> None:
    """End the head node by its process id, and by theirs what it leaves: jobs that still run, say."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=PATIENCE * 30)
    finally:
        for left in with_token(mark):
            with suppress(psutil.Error):
                left.kill()
        process.wait(timeout=PATIENCE * 30)
    wait_for(lambda: not with_token(mark))


@dataclass
class Heard:
    """What a job's submitter hears."""

    code: int | None = None
    pieces: list[str] = field(default_factory=list)

    @property
    def log(self) -> str:
        return "".join(self.pieces)

    @property
    def told(self) -> dict[str, Any]:
        """What a job of ours ends with."""
        told: dict[str, Any] = json.loads(self.log.splitlines()[-1])
        return told


def submit(head: HeadNode, *entrypoint: str, heard: Heard | None = None, **options: Any) -> Heard:
    """What is heard of a job to its end."""
    heard = heard or Heard()
    heard.code = on_ray.submit(entrypoint, address=head.address, **{"on_log": heard.pieces.append, **options})
    return heard
