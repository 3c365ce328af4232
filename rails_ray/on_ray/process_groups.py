"""Process groups of Ray Train whose workers find each other on several nodes.

Gloo listens at the address of the machine's name. Where /etc/hosts says that this is 127.0.0.1, as it often does, no
worker of another node reaches it. So workers on several nodes name the interface of the address that Ray uses.
"""

import os
from typing import Any

import psutil
import ray.train
from ray.train.torch import TorchConfig
from ray.train.torch.config import _TorchBackend
from ray.util import get_node_ip_address

VARIABLE = "GLOO_SOCKET_IFNAME"


class ProcessGroupConfig(TorchConfig):
    """The contract of Ray's `TorchConfig`."""

    @property
    def backend_cls(self) -> Any:
        return _OnSeveralNodes


class _OnSeveralNodes(_TorchBackend):
    def on_start(self, worker_group: Any, backend_config: Any) -> None:
        worker_group.execute(_name_interface)
        super().on_start(worker_group, backend_config)


def _name_interface() -> None:
    """Name this worker's interface for gloo, unless the environment does or all workers are on this node."""
    context = ray.train.get_context()
    interface = interface_of(get_node_ip_address())
    if context.get_local_world_size() < context.get_world_size() and interface is not None:
        os.environ.setdefault(VARIABLE, interface)


def interface_of(address: str) -> str | None:
    """Name of the network interface that has an address; None if none has it."""
    for name, found in psutil.net_if_addrs().items():
        if any(own.address == address for own in found):
            return name
    return None
