"""A free port on the loopback interface."""

from __future__ import annotations

import socket


def free_port() -> int:
    """Return a port that is free now. Another process may take it before it is used."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
