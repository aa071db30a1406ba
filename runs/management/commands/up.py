"""`agentops up`: the whole site in one process, on SQLite, for one machine.

A door: takes the home, brings the database up to date, fills it the first time, then serves until Ctrl-C.
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

from agentops.projects.management.base import EXIT_INVALID, OurCommand
from runs import demo, environment
from runs.lifecycle import transitions
from runs.management.site.embedded import HOST, Ending, serve
from runs.management.site.home import Home, warnings_about
from runs.management.site.web_server import listen
from runs.worker import worker

#: What would make this more than one process on one machine.
SERVERS = ("DATABASE_URL", "REDIS_URL")


class Command(OurCommand):
    help = "Serve the site and execute its runs in one process on SQLite, until Ctrl-C; a new site gets demo data."

    def add_arguments(self, parser: CommandParser) -> None:
        """None: PORT and AGENTOPS_HOME say everything."""

    def handle(self, *args: Any, **options: Any) -> None:
        for name in SERVERS:
            if os.environ.get(name):
                raise ImproperlyConfigured(f"{name} must not be set: `up` keeps everything in AGENTOPS_HOME by itself")
        environment.hide_secrets()
        ending = Ending()
        ending.install()
        os.umask(0o077)
        home = Home(settings.AGENTOPS_HOME)
        with closing(listen(HOST, settings.PORT)) as site:
            for warning in warnings_about(settings.AGENTOPS_HOME):
                self.stderr.write(f"agentops: warning: {warning}")
            self._run(home, site, ending)

    def _run(self, home: Home, site: socket.socket, ending: Ending) -> None:
        _migrate()
        demo.seed()
        # The lock is ours, so whoever wrote its name there is dead. Only then is that name replaced.
        transitions.expire_leases(home.previous)
        home.belongs_to(worker.current().owner)
        connection.close()
        if code := serve(site, ending, self._tell):
            raise SystemExit(code)

    def _tell(self) -> None:
        """Where the site is and who may enter. The password is made here, so that it cannot get lost on the way."""
        try:
            login = demo.first_login()
        finally:
            connections.close_all()
        password = f"Password: {login.password}" if login.password else f"For a new password: {_command(login.name)}"
        self.stdout.write(f"URL: http://{HOST}:{settings.PORT}/\nLogin: {login.name}\n{password}")
        self.stdout.flush()


def _migrate() -> None:
    """Bring the database up to date, all in one transaction: killed in the middle, it is as before."""
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
