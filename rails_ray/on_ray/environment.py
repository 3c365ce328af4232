"""Environment variables that Ray's processes read when they start. Set them before Ray starts on a machine."""

import os
from collections.abc import Mapping
from typing import Literal

from rails_ray.web.limits import HEADERS_S

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
    # Ray has no variable for how long headers may take. It copies this value into HAProxy's `defaults` section, so a
    # second line sets the timeout.
    "RAY_SERVE_HAPROXY_BALANCE_ALGORITHM": f"leastconn\n    timeout http-request {HEADERS_S}s",
}


def set_profile(profile: Profile) -> None:
    """Set a profile's variables for a cluster that this process starts. Variables that are already set stay, except
    that `local` removes the variables of `production`."""
    if profile == "local":
        for name in PRODUCTION_ENVIRONMENT.keys() - ENVIRONMENT.keys():
            os.environ.pop(name, None)
    set_where_missing(PRODUCTION_ENVIRONMENT if profile == "production" else ENVIRONMENT)


def set_where_missing(variables: Mapping[str, str]) -> None:
    for name, value in variables.items():
        os.environ.setdefault(name, value)
