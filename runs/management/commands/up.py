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

from agentops.accounts.command_base import AgentopsCommand
from agentops.base.database.applied_migrations import missing_migrations
from runs import demo, environment
from runs.lifecycle import transitions
from runs.management.site.embedded import HOST, SignalHandler, serve
from runs.management.site.home import Home, password_command, warnings_about
from runs.management.site.web_server import listen, url_of
from runs.models import AgentRun
from runs.models.querysets import CLAIMED_FROM
from runs.worker import worker

#: Settings that `up` refuses: they belong to a site of several processes.
MULTI_PROCESS_SETTINGS = ("DATABASE_URL", "REDIS_URL")


class Command(AgentopsCommand):
    help = "Serve the site and execute its runs in one process on SQLite, until Ctrl-C; a new site gets demo data."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add no arguments: PORT and AGENTOPS_HOME configure the command."""

    def handle(self, *args: Any, **options: Any) -> None:
        for name in MULTI_PROCESS_SETTINGS:
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
            # This process holds the lock, so the worker named in the file is dead. End its leases before replacing it.
            transitions.expire_leases(home.previous_worker)
            home.store_holder(worker.current().owner)
            connection.close()
            code = serve(site, signal_handler, partial(self._print_login, home, url_of(site)))
            self._print_unfinished()
        return code

    def _print_login(self, home: Home, url: str) -> None:
        """Print the URL and the login. Creates the user here, so that a new password is always printed."""
        try:
            login = demo.first_login()
        finally:
            connections.close_all()
        # If the disk is full, a second start only cannot print the URL.
        with suppress(ImproperlyConfigured):
            home.store_holder(worker.current().owner, url, login.name)
        hint = f"For a new password: {password_command(login.name)}"
        if login.password:
            hint = f"Password: {login.password}"
        self.stdout.write(f"URL: {url}\nLogin: {login.name}\n{hint}")
        self.stdout.flush()

    def _print_unfinished(self) -> None:
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
    # Raises `UnusableSchema` outside of the transaction if this version cannot use the database.
    missing_migrations(connection)
    # SQLite rebuilds tables to alter them, and cannot disable foreign keys within a transaction.
    connection.disable_constraint_checking()
    try:
        with transaction.atomic():
            call_command("migrate", verbosity=0, interactive=False)
    finally:
        # The next connection checks them again.
        connection.close()
