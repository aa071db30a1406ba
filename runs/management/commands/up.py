"""`agentops up`: the whole site in one process, on SQLite, for one machine.

Locks the home, migrates the database, creates the demo data of a new site, and serves until Ctrl-C.
"""

from __future__ import annotations

import os
import socket
import sys
from contextlib import closing
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.core.management.base import CommandError, CommandParser
from django.db import connection, connections, transaction
from django.db.migrations.loader import MigrationLoader

from agentops.projects.management.base import EXIT_INVALID, AgentopsCommand
from runs import demo, environment
from runs.lifecycle import transitions
from runs.management.site.embedded import HOST, SignalHandler, serve
from runs.management.site.home import Home, warnings_about
from runs.management.site.web_server import listen
from runs.worker import worker

#: Settings of a site with several processes.
SERVERS = ("DATABASE_URL", "REDIS_URL")


class Command(AgentopsCommand):
    help = "Serve the site and execute its runs in one process on SQLite, until Ctrl-C; a new site gets demo data."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add none: PORT and AGENTOPS_HOME configure the command."""

    def handle(self, *args: Any, **options: Any) -> None:
        for name in SERVERS:
            if os.environ.get(name):
                raise ImproperlyConfigured(f"{name} must not be set: `up` keeps everything in AGENTOPS_HOME by itself")
        environment.hide_secrets()
        signal_handler = SignalHandler()
        signal_handler.install()
        os.umask(0o077)
        home = Home(settings.AGENTOPS_HOME)
        with closing(listen(HOST, settings.PORT)) as site:
            for warning in warnings_about(settings.AGENTOPS_HOME):
                self.stderr.write(f"agentops: warning: {warning}")
            self._run(home, site, signal_handler)

    def _run(self, home: Home, site: socket.socket, signal_handler: SignalHandler) -> None:
        _migrate()
        demo.seed()
        # This process has the lock, so the worker named in it is dead. Its leases end before the name is replaced.
        transitions.expire_leases(home.previous)
        home.belongs_to(worker.current().owner)
        connection.close()
        if code := serve(site, signal_handler, self._tell):
            raise SystemExit(code)

    def _tell(self) -> None:
        """Print the URL and the login. The password is created here, so that it is always printed."""
        try:
            login = demo.first_login()
        finally:
            connections.close_all()
        password = f"Password: {login.password}" if login.password else f"For a new password: {_command(login.name)}"
        self.stdout.write(f"URL: http://{HOST}:{settings.PORT}/\nLogin: {login.name}\n{password}")
        self.stdout.flush()


def _migrate() -> None:
    """Migrate the database in one transaction, so that a kill in the middle leaves it unchanged."""
    applied = MigrationLoader(connection)
    unknown = sorted(applied.applied_migrations.keys() - applied.disk_migrations.keys())
    if unknown:
        raise CommandError(
            f"the database in AGENTOPS_HOME belongs to a newer version: it has {'.'.join(unknown[0])}",
            returncode=EXIT_INVALID,
        )
    # SQLite rebuilds tables to alter them, and cannot put foreign keys aside within a transaction.
    connection.disable_constraint_checking()
    try:
        with transaction.atomic():
            call_command("migrate", verbosity=0, interactive=False)
    finally:
        # The next connection checks them again.
        connection.close()


def _command(name: str) -> str:
    return f"{sys.argv[0]} changepassword {name}"
