"""`agentops up`: the whole site in one process, on SQLite, for one machine.

Locks the home, migrates the database, creates the demo data of a new site, and serves until Ctrl-C.
"""

from __future__ import annotations

import os
import sys
from contextlib import closing, suppress
from functools import partial
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.core.management.base import CommandParser
from django.db import DatabaseError, connection, connections, transaction

from agentops.accounts.management.base import AgentopsCommand
from agentops.base.database.applied_migrations import missing_migrations
from runs import demo, environment
from runs.lifecycle import transitions
from runs.management.site.embedded import HOST, SignalHandler, serve
from runs.management.site.home import Home, password_command, warnings_about
from runs.management.site.web_server import listen, url_of
from runs.models import AgentRun
from runs.models.querysets import CLAIMED_FROM
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
        signal_handler = SignalHandler()
        signal_handler.install()
        if code := self.serve_home(HOST, settings.PORT, signal_handler):
            raise SystemExit(code)

    def serve_home(self, host: str, port: int, signal_handler: SignalHandler) -> int:
        """Serve the site in AGENTOPS_HOME until a signal, and return the exit code."""
        environment.hide_secrets()
        os.umask(0o077)
        home = Home(settings.AGENTOPS_HOME)
        with closing(listen(host, port)) as site:
            for warning in warnings_about(settings.AGENTOPS_HOME):
                self.stderr.write(f"agentops: warning: {warning}")
            _migrate()
            demo.seed()
            # This process holds the lock, so the worker named in it is dead. End its leases before replacing the name.
            transitions.expire_leases(home.previous)
            home.belongs_to(worker.current().owner)
            connection.close()
            code = serve(site, signal_handler, partial(self._tell, home, url_of(site)))
            self._tell_what_continues()
        return code

    def _tell(self, home: Home, url: str) -> None:
        """Print the URL and the login. The password is created here, so that it is always printed."""
        try:
            login = demo.first_login()
        finally:
            connections.close_all()
        # On a full disk, the only effect is that a second start cannot print the URL.
        with suppress(ImproperlyConfigured):
            home.belongs_to(worker.current().owner, url, login.name)
        hint = (
            f"Password: {login.password}" if login.password else f"For a new password: {password_command(login.name)}"
        )
        self.stdout.write(f"URL: {url}\nLogin: {login.name}\n{hint}")
        self.stdout.flush()

    def _tell_what_continues(self) -> None:
        """Print how many runs the next start continues. A database error must not prevent the shutdown."""
        try:
            count = AgentRun.objects.native().filter(status__in=CLAIMED_FROM).count()
        except DatabaseError:
            return
        finally:
            connection.close()
        # Make sets MAKELEVEL in the environment of its commands.
        command = "make up" if "MAKELEVEL" in os.environ else f"{sys.argv[0]} up"
        if count:
            self.stdout.write(f"Stopped. `{command}` continues {count} run{'s' * (count != 1)}.")


def _migrate() -> None:
    """Migrate the database in one transaction, so that a kill in the middle leaves it unchanged."""
    # Fails before the transaction. `migrate` checks again.
    missing_migrations(connection)
    # SQLite rebuilds tables to alter them, and cannot disable foreign keys within a transaction.
    connection.disable_constraint_checking()
    try:
        with transaction.atomic():
            call_command("migrate", verbosity=0, interactive=False)
    finally:
        # The next connection checks them again.
        connection.close()
