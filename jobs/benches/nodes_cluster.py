"""Ray cluster of several nodes on one machine, each as far from the others as the kernel permits.

With the right to make network namespaces (root, and `ip`), a node has an address of its own on a bridge, and its own
loopback and /tmp: no node reaches what another one offers on 127.0.0.1, or finds its local folders, and a cable can be
pulled. Without it, nodes are processes on 127.0.0.2, 127.0.0.3 and so on, which share both.
"""

import os
import random
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

MARK = "RAILS_RAY_NODE"  # in the environment of all processes of a node
ROOT = Path(__file__).parents[2]
START_S = 180.0


@dataclass(frozen=True)
class Place:
    """A place for a node.

    address: of the node, for all others.
    enter: words before a command that is to run there.
    space: its network namespace; None if it has none.
    cable: the other end of its cable.
    """

    address: str
    enter: tuple[str, ...] = ()
    space: str | None = None
    cable: str = ""


@dataclass
class RayNode:
    """A raylet with all its processes."""

    place: Place
    arguments: list[str]
    environment: Mapping[str, str]
    log: Path
    mark: str = field(default_factory=lambda: secrets.token_hex(16))

    @property
    def address(self) -> str:
        return self.place.address

    def start(self) -> None:
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *self.arguments]
        with self.log.open("a") as output:
            self.started = subprocess.Popen(
                [*self.place.enter, *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.environment, MARK: self.mark},
            )

    def processes(self) -> list[psutil.Process]:
        """All of them. Some of Ray's write a title over their environment; these are found by what started them."""
        found = set[psutil.Process]()
        if self.place.space is not None:
            listed = subprocess.run(
                ["ip", "netns", "pids", self.place.space], check=True, capture_output=True, text=True
            )
            pids = [int(line) for line in listed.stdout.split()]
        else:
            pids = [own for own in psutil.pids() if f"{MARK}={self.mark}" in _environment(own)]
        for pid in pids:
            with suppress(psutil.Error):
                found |= {psutil.Process(pid), *psutil.Process(pid).children(recursive=True)}
        return [process for process in found if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]

    def kill(self) -> None:
        """SIGKILL all its processes."""
        while left := self.processes():
            for process in left:
                with suppress(psutil.Error):
                    process.kill()
            self.started.wait(30)
            psutil.wait_procs(left, timeout=1)

    def cut(self) -> None:
        """Pull its cable: nothing reaches it any more, and nobody hears that a connection has ended."""
        self._cable("down")

    def connect(self) -> None:
        self._cable("up")

    def _cable(self, state: str) -> None:
        assert self.place.cable
        _ip("link", "set", self.place.cable, state)


@dataclass(frozen=True)
class SeveralNodes:
    """
    here: address at which nodes reach this process.
    nodes: the head, and the others.
    url: of the head's dashboard.
    gcs: what RAY_ADDRESS is for a process on a node.
    """

    here: str
    nodes: list[RayNode]
    url: str
    gcs: str

    @property
    def is_apart(self) -> bool:
        """Return whether nodes have networks and folders of their own."""
        return self.nodes[0].place.space is not None

    def state(self, of: str) -> list[dict[str, Any]]:
        """Ray's records of its `nodes`, `actors` or `tasks`."""
        headers = {"Authorization": f"Bearer {os.environ['RAY_AUTH_TOKEN']}"}
        answer = httpx.get(f"{self.url}/api/v0/{of}?limit=9999&detail=1", headers=headers, timeout=60, trust_env=False)
        found: list[dict[str, Any]] = answer.raise_for_status().json()["data"]["result"]["result"]
        return found

    def alive(self) -> dict[str, str]:
        """The ids of the nodes that Ray counts as alive, by address."""
        return {own["node_ip"]: own["node_id"] for own in self.state("nodes") if own["state"] == "ALIVE"}

    def start(self, node: RayNode) -> None:
        """Start a node, and wait until Ray counts it as alive.

        Raises:
            RuntimeError: if it ends.
        """
        node.start()
        self.wait_for(node)

    def wait_for(self, node: RayNode) -> None:
        """Wait until Ray counts a node as alive; raises what `start` does."""
        until(lambda: self._has(node.address) or node.started.poll() is not None)
        if node.started.poll() is not None:
            raise RuntimeError(f"node {node.address} must start, got: {node.log.read_text()}")

    def answers(self) -> bool:
        """Return whether other nodes can join."""
        host, _, port = self.gcs.partition(":")
        with suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
            return True
        return False

    def _has(self, address: str) -> bool:
        with suppress(httpx.HTTPError, KeyError, TypeError):  # the dashboard of the head is not up yet
            return address in self.alive()
        return False

    def run(self, *command: str, at: int = 0) -> "subprocess.CompletedProcess[str]":
        """Run a command on a node, as a driver."""
        node = self.nodes[at]
        environment = {**os.environ, **node.environment, "RAY_ADDRESS": self.gcs, MARK: node.mark}
        return subprocess.run(
            [*node.place.enter, *command], env=environment, capture_output=True, text=True, check=False
        )


def until(is_so: Callable[[], bool], timeout_s: float = START_S, pause_s: float = 0.1) -> float:
    """Wait until a condition holds; returns the seconds that it took.

    Raises:
        TimeoutError: if it does not hold in time.
    """
    began = time.monotonic()
    while not is_so():
        if time.monotonic() - began > timeout_s:
            raise TimeoutError(
                f"the condition must hold within {timeout_s:g} s, but does not: read the logs of the nodes"
            )
        time.sleep(pause_s)  # nothing tells of processes on other nodes
    return time.monotonic() - began


@contextmanager
def several_nodes(
    num_nodes: int = 3, *, num_cpus: int = 1, environment: Callable[[str], Mapping[str, str]] = lambda here: {}
) -> Iterator[SeveralNodes]:
    """A cluster with the token of this process, until the block ends; then nothing of it is left.

    Args:
        num_cpus: logical ones of each node.
        environment: variables of all its processes, by the address of this one.
    """
    with places(num_nodes) as (here, found), tempfile.TemporaryDirectory(prefix="rrlogs") as logs:
        gcs, dashboard = (f"{found[0].address}:{port}" for port in _ports(2))
        variables = {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": str(ROOT),
            "NO_PROXY": "*",
            "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
            **environment(here),
        }
        nodes = list[RayNode]()
        for number, place in enumerate(found):
            agent, grpc, metrics = _ports(3)
            options: dict[str, Any] = {
                "--node-ip-address": place.address,
                "--num-cpus": num_cpus,
                "--object-store-memory": 100_000_000,
                "--dashboard-agent-listen-port": agent,
                "--dashboard-agent-grpc-port": grpc,
                "--metrics-export-port": metrics,
                "--min-worker-port": 0,
                "--max-worker-port": 0,
            }
            if number:
                options |= {"--address": gcs}
            else:
                host, port = dashboard.split(":")
                options |= {"--dashboard-host": host, "--dashboard-port": port, "--port": gcs.split(":")[1]}
            words = [str(word) for option in options.items() for word in option]
            nodes.append(
                RayNode(place, words if number else ["--head", *words], variables, Path(logs, f"{number}.log"))
            )
        made = SeveralNodes(here, nodes, f"http://{dashboard}", gcs)
        try:
            head, *others = nodes
            head.start()
            until(lambda: made.answers() or head.started.poll() is not None)  # others would wait longer for it
            for node in others:
                node.start()
                if not made.is_apart:
                    made.wait_for(node)  # two that start in the folder of one session take each other's names
            for node in nodes:
                made.wait_for(node)
            yield made
        finally:
            for node in nodes:
                node.kill()


def _environment(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_text(errors="replace")
    return ""


def _ports(count: int) -> list[int]:
    """Below those that the kernel, Ray's workers and Serve's routers take."""
    return random.sample(range(20_000, 30_000), count)


@contextmanager
def places(count: int) -> Iterator[tuple[str, list[Place]]]:
    """The address of this process among them, and places for nodes."""
    name, net = f"rr{secrets.token_hex(2)}", f"10.{random.randrange(64, 128)}.{random.randrange(256)}"
    with ExitStack() as stack:
        if not _is_permitted(name):
            yield "127.0.0.1", [Place(f"127.0.0.{number + 2}") for number in range(count)]
            return
        _ip("link", "add", name, "type", "bridge")
        stack.callback(_ip, "link", "del", name)
        _ip("addr", "add", f"{net}.254/24", "dev", name)
        _ip("link", "set", name, "up")
        made = list[Place]()
        for number in range(count):
            space, cable, folder = f"{name}-{number}", f"{name}v{number}", tempfile.mkdtemp(prefix="rr", dir="/var/tmp")
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            _ip("netns", "add", space)
            stack.callback(_ip, "netns", "del", space)
            _ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", space)
            stack.callback(_ip, "link", "del", cable)  # a namespace ends only once its last connection has
            _ip("link", "set", cable, "master", name, "up")
            _ip("-n", space, "addr", "add", f"{net}.{number + 1}/24", "dev", "eth0")
            _ip("-n", space, "link", "set", "eth0", "up")
            _ip("-n", space, "link", "set", "lo", "up")
            made.append(Place(f"{net}.{number + 1}", _entering(space, folder), space, cable))
        yield f"{net}.254", made


def _entering(space: str, folder: str) -> tuple[str, ...]:
    """`ip netns exec` has mounts of its own already; the folder becomes /tmp there."""
    return ("ip", "netns", "exec", space, "sh", "-c", 'mount --bind "$0" /tmp && exec "$@"', folder)


def _is_permitted(name: str) -> bool:
    if shutil.which("ip") is None or os.geteuid():
        return False
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
    if tried.returncode:
        return False
    try:
        bridge = subprocess.run(
            ["ip", "-n", name, "link", "add", "bridge0", "type", "bridge"], capture_output=True, check=False
        )
        mounted = subprocess.run([*_entering(name, "/var/tmp"), "true"], capture_output=True, check=False)
        return bridge.returncode == mounted.returncode == 0
    finally:
        _ip("netns", "del", name)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
