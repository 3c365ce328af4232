"""Ports: whether a server may listen where it should."""

import errno
import socket

from rails_ray.errors import UnavailableError

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def check_port(host: str, port: int, name: str = "port") -> None:
    """Raises:
    ValueError: if the port is out of range.
    UnavailableError: if another program listens there, or the address does not belong to this machine.
    """
    check_port_number(port, name)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                option = f"--{name.removeprefix('--')}"
                reason = f"{name} must be free, got {port}, which another program uses: choose another {option}"
            else:
                reason = f"host and port must be of this machine, got {host}:{port}: {error.strerror}"
            raise UnavailableError(reason) from None


def check_port_number(port: int, name: str = "port") -> None:
    """Raises:
    ValueError: if the port is out of range.
    """
    if not 1 <= port <= 65535:
        raise ValueError(f"{name} must be from 1 to 65535, got {port}")
