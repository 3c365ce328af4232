"""Ports that nobody listens at, and that nobody is given unasked before they are used."""

import secrets
import socket
from contextlib import ExitStack

HOST = "127.0.0.1"
# Below the kernel's own range (32768 to 60999), out of which any connection and any worker of another cluster on this
# machine may be given a port while a server that is to listen there still starts; above Ray's workers' (to 19999), and
# below Serve's routers' (from 30000).
FIRST, END = 20_000, 30_000


def free_ports(count: int) -> list[int]:
    """So many different ones."""
    found: list[int] = []
    with ExitStack() as held:
        while len(found) < count:
            holder = held.enter_context(socket.socket())
            try:
                holder.bind((HOST, FIRST + secrets.randbelow(END - FIRST)))
            except OSError:  # somebody listens there
                continue
            found.append(int(holder.getsockname()[1]))
    return found


def free_port() -> int:
    return free_ports(1)[0]
