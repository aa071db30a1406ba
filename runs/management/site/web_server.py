"""How the site is served, by `serve` and `up` alike: uvicorn with limits on what a client may cost.

Names the ASGI application and its protocol by string.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
import signal
import socket
from types import FrameType
from typing import Any

import uvicorn

from runs import environment

APPLICATION = "agentops.asgi:application"
PROTOCOL = "agentops.http.protocol:LimitedProtocol"
BACKLOG = 2048
#: How long a connection stays open between two requests.
IDLE_S = 5
#: Files that a process opens beside its connections to clients.
OTHER_FILES = 256

log = logging.getLogger(__name__)


class PortUnusable(Exception):
    """Nobody can be served there."""

    code = "port_unusable"
    exit_code = 5


class WebServer(uvicorn.Server):
    """Uvicorn that ends with exit code 0 after SIGTERM; its own raises the signal again when all is over."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True


class ServerConfig(uvicorn.Config):
    """Uvicorn's, for processes that hide the secrets of their environment (runs.environment)."""

    #: Variables for a process that is started with this configuration. It comes pickled, by a pipe that nobody else
    #: reads; the environment of such a process never has them.
    secrets: dict[str, str] | None = None

    def load_app(self) -> Any:
        if self.secrets is None:
            return super().load_app()
        os.environ.update(self.secrets)
        application = super().load_app()
        environment.hide_secrets()
        return application


def web_config(**options: Any) -> ServerConfig:
    """Return the configuration of the web server; `options` are uvicorn's."""
    limits: dict[str, Any] = {
        "http": PROTOCOL,
        "ws": "none",
        "server_header": False,
        # agentops.http.forwarded decides whom to believe; uvicorn's default believes every client on this machine.
        "proxy_headers": False,
        "timeout_keep_alive": IDLE_S,
        "backlog": BACKLOG,
    }
    logs: dict[str, Any] = {"log_config": None, "log_level": "warning", "access_log": False}
    return ServerConfig(APPLICATION, lifespan="on", **(limits | logs | options))


def listen(host: str, port: int) -> socket.socket:
    """Return the socket of the site. From here on the port is ours; who connects early waits."""
    try:
        [(family, kind, _, _, address), *_] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise PortUnusable(f"{host} is not an address of this machine: {error.strerror}") from None
    listener = socket.socket(family, kind)
    # The connections of a process that died shall not keep the port from its successor.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise PortUnusable(_why(host, port, error)) from None
    return listener


def _why(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        free = port + 1 if port < 65535 else port - 1
        return f"port {port} is in use: end what listens there, or choose another: PORT={free} make up"
    if error.errno == errno.EACCES:
        return f"port {port} is for root only: choose one above 1023, such as PORT=8000 make up"
    return f"port {port} of {host} cannot be used: {error.strerror}"


def allow_connections(wanted: int) -> None:
    """Raise the limit of open files to what `wanted` connections take; warn where the system does not allow it."""
    needed = wanted + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= needed or soft == resource.RLIM_INFINITY:
        return
    raised = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    if raised < needed:
        log.warning("This process may open %s files; AGENTOPS_CONNECTIONS=%s needs %s.", raised, wanted, needed)
