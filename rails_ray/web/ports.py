"""Whether a server may listen where it is told to."""

import errno
import socket

from rails_ray.errors import UnavailableError

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def check_port(host: str, port: int) -> None:
    """Raises:
    ValueError: if the port is out of range.
    UnavailableError: if another program listens there, or the address does not belong to this machine.
    """
    check_port_number(port)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                reason = f"port must be free, got {port}, which another program uses: choose another --port"
            else:
                reason = f"host and port must be of this machine, got {host}:{port}: {error.strerror}"
            raise UnavailableError(reason) from None


def check_port_number(port: int) -> None:
    """Raises:
    ValueError: if the port is out of range.
    """
    if not 1 <= port <= 65535:
        raise ValueError(f"port must be from 1 to 65535, got {port}")
