"""Environment variables that Ray's processes read when they start. Set them before Ray starts on a machine."""

import os
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal

from rails_ray.serving.http.limits import HEADERS_S
from rails_ray.serving.http.ports import check_port, check_port_number

Profile = Literal["local", "production"]

# For a cluster that we start. Ray would serve its metrics on all interfaces without asking for its token.
NO_METRICS = {"RAY_enable_metrics_collection": "0", "AUTOSCALER_METRIC_PORT": "-1", "DASHBOARD_METRIC_PORT": "-1"}

ENVIRONMENT = {
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",  # Ray kills a proxy that takes longer (default: 5 s)
    "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "rails_ray.on_ray.serving.listening.bound",
}
PRODUCTION_ENVIRONMENT = ENVIRONMENT | {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    "RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S": "60",  # between two bytes: twice the limit for a request (default: an hour)
    # Longer than a request may take: a router on a machine that is cut off does not even refuse (default: for ever).
    "RAY_SERVE_HAPROXY_TIMEOUT_SERVER_S": "45",
    # Ray has no variable for how long headers may take. It copies this value into HAProxy's `defaults` section, so a
    # second line sets the timeout.
    "RAY_SERVE_HAPROXY_BALANCE_ALGORITHM": f"leastconn\n    timeout http-request {HEADERS_S}s",
}
PORT_VARIABLES = {
    "stats_port": "RAY_SERVE_HAPROXY_STATS_PORT",
    "metrics_port": "RAY_SERVE_HAPROXY_METRICS_PORT",
    "fallback_port": "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT",
}
ROUTER_PORTS = range(30_000, 31_000)  # Ray gives each router the next one that is free


def ray_address() -> str | None:
    """Return the cluster that RAY_ADDRESS names; None if it is not set, or empty.

    Raises:
        ValueError: if it is a URL, which Ray would try for minutes or misread.
    """
    given = os.environ.get("RAY_ADDRESS", "").strip()
    if "://" in given:
        raise ValueError(
            f"RAY_ADDRESS must be host:port of the cluster's head, such as 10.0.0.1:6379, or auto, got {given}: set it "
            "on a machine of the cluster, or unset it and submit the command as a job (ray job submit --address "
            "http://host:8265)"
        )
    return given or None


def has_cluster() -> bool:
    """Return whether a command finds a cluster: RAY_ADDRESS names one, or this process is connected.

    Raises:
        ValueError: if RAY_ADDRESS is a URL.
    """
    ray = sys.modules.get("ray")
    return ray_address() is not None or (ray is not None and ray.is_initialized())


@dataclass(frozen=True, kw_only=True)
class ProxyPorts:
    """Ports that profile production opens on each machine, next to the one of the requests.

    Args:
        stats_port: HAProxy's statistics, on all interfaces.
        metrics_port: HAProxy's metrics, on all interfaces.
        fallback_port: Ray's own proxy, on the head, where requests come in; HAProxy asks it if it knows no router.
    """

    stats_port: int = 8404
    metrics_port: int = 9101
    fallback_port: int = 8500

    def __post_init__(self) -> None:
        for name, port in self.by_option.items():
            check_port_number(port, name)
            if port in ROUTER_PORTS:
                of_routers = f"{ROUTER_PORTS[0]}-{ROUTER_PORTS[-1]}, where routers listen"
                raise ValueError(f"{name} must be outside {of_routers}, got {port}: choose another {name}")

    @property
    def by_option(self) -> dict[str, int]:
        """The ports by the options of `rails-ray serve`."""
        return {f"--haproxy.{name.replace('_', '-')}": port for name, port in asdict(self).items()}

    @property
    def variables(self) -> dict[str, str]:
        return {PORT_VARIABLES[name]: str(port) for name, port in asdict(self).items()}

    def check_all_differ(self, port: int) -> None:
        """Raises:
        ValueError: if two of these and the port of the requests are the same, or that one is a router's.
        """
        if port in ROUTER_PORTS:
            raise ValueError(
                f"--port must be outside {ROUTER_PORTS[0]}-{ROUTER_PORTS[-1]}, where routers listen, got {port}: "
                "choose another --port"
            )
        ports = {"--port": port, **self.by_option}
        [(common, count)] = Counter(ports.values()).most_common(1)
        if count > 1:
            names = " and ".join(name for name, number in ports.items() if number == common)
            raise ValueError(f"{names} must be different ports, got {common} for each: choose another for one of them")

    def check_free(self, host: str) -> None:
        """Raises:
        UnavailableError: if another program on this machine listens at one of them.
        """
        for name, port in self.by_option.items():
            check_port(host if name == "--haproxy.fallback-port" else "0.0.0.0", port, name)


def chosen_ports(given: Mapping[str, int | None], environment: Mapping[str, str]) -> ProxyPorts:
    """The given ports; those that are None as their variables say, or Ray's defaults.

    Raises:
        ValueError: if a port cannot be.
    """
    chosen = {name: port for name, port in given.items() if port is not None}
    for name, variable in PORT_VARIABLES.items():
        if name not in chosen and (text := environment.get(variable)):
            if not (text.isascii() and text.isdigit()):
                raise ValueError(f"{variable} must be a port from 1 to 65535, got {text!r}: set it again")
            chosen[name] = int(text)
    return ProxyPorts(**chosen)


def variables_of(profile: Profile, ports: ProxyPorts) -> dict[str, str]:
    """All variables of a profile."""
    return PRODUCTION_ENVIRONMENT | ports.variables if profile == "production" else ENVIRONMENT


def set_profile(profile: Profile, ports: ProxyPorts) -> None:
    """Set a profile's variables for a cluster that this process starts. Variables that are already set stay, except
    that `local` removes the variables of `production`, and that ports are as given."""
    if profile == "local":
        for name in PRODUCTION_ENVIRONMENT.keys() - ENVIRONMENT.keys():
            os.environ.pop(name, None)
    else:
        os.environ.update(ports.variables)
    set_where_missing(variables_of(profile, ports))


def set_where_missing(variables: Mapping[str, str]) -> None:
    for name, value in variables.items():
        os.environ.setdefault(name, value)
