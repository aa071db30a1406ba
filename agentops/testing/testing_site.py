"""The site on which tests run agents."""

from __future__ import annotations

import os
import secrets
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import django
import pytest
from django.conf import settings

if TYPE_CHECKING:
    from runs.worker.worker import Worker

SETTINGS = "agentops.settings"
#: Variables that configure servers of a real site.
SERVERS = ("DATABASE_URL", "REDIS_URL", "EMAIL_URL", "AGENTOPS_HTTPS")


class TestingSite:
    """The settings, the database and the worker of a process that runs tests. `home` is an empty directory."""

    #: pytest would collect a class with this name as tests.
    __test__ = False

    def __init__(self, home: Path) -> None:
        self.fixtures = home / "fixtures"
        self.fixtures.mkdir()
        #: Whether the settings were already loaded, for example by pytest-django.
        self.is_foreign = settings.configured
        if not self.is_foreign:
            _load_settings(home)
            _create_database()
        elif getattr(settings, "SETTINGS_MODULE", SETTINGS) != SETTINGS:
            problem = "agentops needs Django settings of its own: run its tests in another process than those of"
            raise pytest.UsageError(f"{problem} {settings.SETTINGS_MODULE}")
        settings.AGENTOPS_FIXTURES = [*settings.AGENTOPS_FIXTURES, str(self.fixtures)]

    @cached_property
    def worker(self) -> Worker:
        """The worker that executes the runs of all tests, one at a time."""
        from runs.worker.worker import Worker

        return Worker()

    def close(self) -> None:
        """End the worker and close the database."""
        from django.db import connections

        if "worker" in self.__dict__:
            self.worker.close(5)
        if not self.is_foreign:
            connections.close_all()


def _load_settings(home: Path) -> None:
    """Load the settings with the environment variables that tests may depend on."""
    for name in SERVERS:
        os.environ.pop(name, None)
    os.environ |= {
        "AGENTOPS_HOME": str(home),
        "DJANGO_SETTINGS_MODULE": SETTINGS,
        "SECRET_KEY": secrets.token_urlsafe(64),
    }
    django.setup()


def _create_database() -> None:
    from django.core.management import call_command
    from django.db import connection

    with connection.cursor() as cursor:
        # Nothing needs to survive a power failure.
        cursor.execute("PRAGMA synchronous=OFF")
    call_command("migrate", verbosity=0)
