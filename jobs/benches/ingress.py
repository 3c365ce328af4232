"""Ingress: how many requests a second does each way into Ray Serve carry to a replica that does nothing?

A deployment of one replica answers `{}` over HTTP, and another one an empty message over gRPC, on these two cores with
the client. One client and 32 of them ask, wait for the answer and ask again, for --seconds, by each way:

- proxy: Ray's proxy in Python, which calls the replica by a handle, as in profile local; HTTP, and `grpc_options`;
- throughput: the same with RAY_SERVE_THROUGHPUT_OPTIMIZED, whose handles are gRPC, without direct ingress;
- HAProxy: profile production; HTTP, and `grpc_options`;
- direct: the replica's own port in that profile, as a load balancer of one's own would ask it; HTTP, and gRPC.

    python -m jobs.benches.ingress [--seconds 4]

A yes to gRPC, in place of HTTP, is 1.3 times as many requests a second as by the best way over HTTP.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import tyro
from ray import serve as ray_serve
from ray.serve.config import HTTPOptions, gRPCOptions
from ray.serve.generated.serve_pb2 import UserDefinedMessage, UserDefinedResponse
from ray.serve.generated.serve_pb2_grpc import UserDefinedServiceStub

from jobs.benches.chaos_clients import own_processes
from jobs.benches.http import PORT, summary
from jobs.benches.record import Record
from jobs.benches.throughput import WARM_S, Nothing, loaded
from rails_ray.on_ray.cluster import cluster
from rails_ray.on_ray.environment import ENVIRONMENT, PRODUCTION_ENVIRONMENT
from rails_ray.on_ray.serving.app import QUIET
from rails_ray.on_ray.serving.plan import ONGOING_OF_ROUTER, http_options

ENVIRONMENTS = {
    "proxy": ENVIRONMENT,
    "throughput": ENVIRONMENT | {"RAY_SERVE_THROUGHPUT_OPTIMIZED": "1", "RAY_SERVE_ENABLE_DIRECT_INGRESS": "0"},
    "HAProxy": PRODUCTION_ENVIRONMENT,
}
CLIENTS = (1, 32)
SERVICER = "ray.serve.generated.serve_pb2_grpc.add_UserDefinedServiceServicer_to_server"
HTTP_PORTS, GRPC_PORTS = range(30_000, 31_000), range(40_000, 41_000)  # of replicas


@ray_serve.deployment(max_ongoing_requests=ONGOING_OF_ROUTER)
class NothingOverGrpc:
    async def __call__(self, message: UserDefinedMessage) -> UserDefinedResponse:
        return UserDefinedResponse()


@dataclass(frozen=True)
class Arguments:
    """
    seconds: of each load.
    environment: measure in this one, in this process; by default in each, in a process of its own.
    """

    seconds: float = 4.0
    environment: str | None = None


def main(arguments: Arguments) -> None:
    if arguments.environment is not None:
        print(json.dumps(list(measure(arguments.environment, arguments.seconds))))
        return
    record = Record("ingress")
    for name, variables in ENVIRONMENTS.items():
        command = [sys.executable, "-m", "jobs.benches.ingress", *sys.argv[1:], "--environment", name]
        done = subprocess.run(command, env=os.environ | variables, stdout=subprocess.PIPE, check=True)
        for row in json.loads(done.stdout.splitlines()[-1]):
            record.row(**row)
            print(row)


def measure(environment: str, seconds: float) -> Iterator[dict[str, Any]]:
    with cluster(8):
        ray_serve.start(
            http_options=HTTPOptions(**http_options("127.0.0.1", PORT)),
            grpc_options=gRPCOptions(port=PORT + 1, grpc_servicer_functions=[SERVICER]),
            logging_config=QUIET,
        )
        ray_serve.run(Nothing.bind(), name="nothing", route_prefix="/nothing")
        ray_serve.run(NothingOverGrpc.bind(), name="over-grpc", route_prefix="/over-grpc")
        places = {("HTTP", environment): PORT, ("gRPC", environment): PORT + 1}
        if environment == "HAProxy":
            places |= {
                ("HTTP", "direct"): port_of("nothing:Nothing", HTTP_PORTS),
                ("gRPC", "direct"): port_of("over-grpc:NothingOverGrpc", GRPC_PORTS),
            }
        for (protocol, way), port in places.items():
            for clients in CLIENTS:
                for lasts in (WARM_S, seconds):
                    if protocol == "HTTP":
                        row = asyncio.run(loaded(f"http://127.0.0.1:{port}/nothing", clients, 1, lasts))
                    else:
                        row = asyncio.run(loaded_by_grpc(port, clients, lasts))
                yield {"way": way, "protocol": protocol, **row}


def port_of(title: str, ports: range) -> int:
    """Where the replica itself listens, among Ray's ports for that."""
    [replica] = own_processes(f"ServeReplica:{title}")
    [port] = {own.laddr.port for own in replica.net_connections() if own.status == "LISTEN" and own.laddr.port in ports}
    return int(port)


async def loaded_by_grpc(port: int, clients: int, seconds: float) -> dict[str, Any]:
    """Ask with so many clients at once, each over a connection of its own, as those of HTTP have."""
    took = list[float]()
    ends = time.perf_counter() + seconds

    async def client() -> None:
        own = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", own) as channel:
            ask: Any = UserDefinedServiceStub(channel).__call__
            while (started := time.perf_counter()) < ends:
                await ask(UserDefinedMessage(name="pizza"), metadata=(("application", "over-grpc"),))
                took.append(time.perf_counter() - started)

    started = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    lasted = time.perf_counter() - started
    facts = {"clients": clients, "queries": 1, "refused": 0}
    return {**facts, "queries_per_s": len(took) / lasted, **summary(took)}


if __name__ == "__main__":
    main(tyro.cli(Arguments, description=__doc__))
