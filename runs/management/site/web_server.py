"""The web server of `serve` and `up`: uvicorn with resource limits for clients."""

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
from django.core.management.base import CommandError

from agentops.accounts.command_base import EXIT_REFUSED
from runs import environment

APPLICATION = "agentops.asgi:application"
PROTOCOL = "agentops.base.http.protocol:LimitedProtocol"
#: Maximum connections that wait to be accepted.
BACKLOG = 2048
#: Seconds that a connection stays open between two requests.
IDLE_S = 5
#: Open files of a process in addition to its client connections.
OTHER_FILES = 256

log = logging.getLogger(__name__)


class WebServer(uvicorn.Server):
    """Uvicorn that exits with code 0 after SIGTERM; the original raises the signal again."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True


class ServerConfig(uvicorn.Config):
    """Uvicorn's configuration, for processes that hide the secrets of their environment (runs.environment)."""

    #: Variables for a process that is started with this configuration. They are passed pickled through a private
    #: pipe, and never appear in the environment of that process.
    secrets: dict[str, str] | None = None

    def load_app(self) -> Any:
        if self.secrets is not None:
            os.environ.update(self.secrets)
        application = super().load_app()
        if self.secrets is not None:
            environment.hide_secrets()
        return application


def web_config(**options: Any) -> ServerConfig:
    """Return the configuration of the web server; `options` are uvicorn's."""
    limits: dict[str, Any] = {
        "http": PROTOCOL,
        "ws": "none",
        "server_header": False,
        # agentops.base.http.request_origins decides which proxies to trust; uvicorn would trust every local client.
        "proxy_headers": False,
        "timeout_keep_alive": IDLE_S,
        "backlog": BACKLOG,
    }
    logs: dict[str, Any] = {"log_config": None, "log_level": "warning", "access_log": False}
    return ServerConfig(APPLICATION, lifespan="on", **(limits | logs | options))


def listen(host: str, port: int) -> socket.socket:
    """Return the listening socket of the site. Clients that connect early wait. Raises `CommandError`."""
    try:
        [(family, kind, _, _, address), *_] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        text = f"{host} is not an address of this machine: {error.strerror}"
        raise CommandError(text, returncode=EXIT_REFUSED) from None
    listener = socket.socket(family, kind)
    # Connections of a dead process must not block the port for its successor.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise CommandError(_problem_text(host, port, error), returncode=EXIT_REFUSED) from None
    return listener


def url_of(listener: socket.socket) -> str:
    """Return the URL of the listener for a browser on this machine."""
    host, port = listener.getsockname()[:2]
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104 - compared only
    return f"http://{name}:{port}/"


def _problem_text(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        free = port + 1 if port < 65535 else port - 1
        return f"port {port} is in use: stop the process on it, or choose another port: PORT={free} make up"
    if error.errno == errno.EACCES:
        return f"port {port} is for root only: choose one above 1023, such as PORT=8000 make up"
    return f"port {port} of {host} cannot be used: {error.strerror}"


def allow_connections(count: int) -> None:
    """Raise the limit of open files to fit `count` connections, and warn if the system does not allow it."""
    needed = count + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= needed or soft == resource.RLIM_INFINITY:
        return
    raised = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    if raised < needed:
        log.warning("This process may open %s files; AGENTOPS_CONNECTIONS=%s needs %s.", raised, count, needed)
