"""`manage.py runserver`: serves the whole site with a worker, and restarts when its code changes.

It replaces Django's command, which has no live streams, no MCP server and no worker, because it serves WSGI.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import traceback
from contextlib import closing
from functools import partial
from types import FrameType
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError, CommandParser
from django.core.management.commands import runserver
from django.db import connections
from django.utils import autoreload

from agentops.accounts.command_base import EXIT_USAGE, AgentopsCommand, failure_of
from agentops.base.http.address_policy import MAX_PORT
from runs import environment
from runs.management.commands import up
from runs.management.site.embedded import SignalHandler, serve
from runs.management.site.start_checks import refuse_unusable_schema
from runs.management.site.web_server import listen, url_of

#: The exit code of a process whose code has changed, as in django.utils.autoreload.
CHANGED = 3


class Reloader(SignalHandler):
    """A signal handler that sends SIGTERM to its process when the code changes."""

    def __init__(self) -> None:
        super().__init__()
        self._is_changed = False
        self._thread = threading.Thread(target=self._watch, name="reloader", daemon=True)

    def start(self) -> None:
        self.install()
        self._thread.start()

    def wait(self) -> None:
        """Wait until the code changes, which ends the process."""
        while True:
            signal.pause()

    def code_of(self, code: int) -> int:
        """Return CHANGED if the code has changed, else `code`."""
        return CHANGED if self._is_changed else code

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self._is_changed:
            # Before the web server starts, nothing needs an orderly shutdown.
            os._exit(CHANGED)
        super().__call__(number, frame)

    def _watch(self) -> None:
        try:
            autoreload.get_reloader().run(threading.main_thread())
        except SystemExit:
            self._is_changed = True
            os.kill(os.getpid(), signal.SIGTERM)


class Command(AgentopsCommand, runserver.Command):
    help = (
        "Serve the site and execute its runs in one process, and start again when the code changes: for development. "
        "Like `up`, but with DATABASE_URL or REDIS_URL it may be used too, and then neither migrates nor creates data."
    )

    #: Set by Django's handle.
    addr: str
    port: str

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("addrport", metavar="PORT", nargs="?", help="port, or ADDRESS:PORT (default: PORT)")
        parser.add_argument("--ipv6", "-6", action="store_true", dest="use_ipv6", help="listen on an IPv6 address")
        parser.add_argument(
            "--noreload", action="store_false", dest="use_reloader", help="do not start again when the code changes"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        self.default_port = str(settings.PORT)
        runserver.Command.handle(self, *args, **options)

    def run(self, **options: Any) -> None:
        if int(self.port) > MAX_PORT:
            raise CommandError(f"a port is a number up to {MAX_PORT}, not {self.port}", returncode=EXIT_USAGE)
        if not options["use_reloader"]:
            handler = SignalHandler()
            handler.install()
            code = self._serve(handler)
        elif os.environ.get(autoreload.DJANGO_AUTORELOAD_ENV) == "true":
            code = self._serve_until_change()
        else:
            code = _supervise()
        if code:
            raise SystemExit(code)

    def _serve_until_change(self) -> int:
        """Serve the site, and return the exit code. After an error in the code, wait until the code changes."""
        autoreload.raise_last_exception()
        reloader = Reloader()
        reloader.start()
        try:
            return reloader.code_of(self._serve(reloader))
        except Exception as error:
            if isinstance(error, ImproperlyConfigured) or failure_of(error) is not None:
                raise
            # The code is being edited, and the next change may fix the error.
            traceback.print_exc()
            reloader.wait()
            raise

    def _serve(self, signal_handler: SignalHandler) -> int:
        """Serve the site, and return the exit code."""
        site = up.Command()
        site.stdout, site.stderr = self.stdout, self.stderr
        if not any(os.environ.get(name) for name in up.MULTI_PROCESS_SETTINGS):
            return site.serve_home(self.addr, int(self.port), signal_handler)
        environment.hide_secrets()
        refuse_unusable_schema()
        connections.close_all()
        with closing(listen(self.addr, int(self.port))) as listener:
            return serve(listener, signal_handler, lambda: self.stdout.write(f"URL: {url_of(listener)}"))


def _supervise() -> int:
    """Start the serving process, restart it after each change of its code, and return its last exit code.

    SIGINT and SIGTERM are passed on to the process, which then gives its runs back before it ends.
    """
    environ = {**os.environ, autoreload.DJANGO_AUTORELOAD_ENV: "true"}
    while True:
        process = subprocess.Popen(autoreload.get_child_arguments(), env=environ, close_fds=False)  # noqa: S603
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, partial(_pass_on, process))
        if (code := process.wait()) != CHANGED:
            return code


def _pass_on(process: subprocess.Popen[bytes], number: int, _: FrameType | None) -> None:
    process.send_signal(number)
