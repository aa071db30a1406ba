"""Gives each worker of pytest-xdist a copy of one database that the first worker has migrated.

A plugin of the suite (tests/conftest.py names it). Migrating takes seconds per worker; a copy takes almost no time. The
copy has the name that Django and pytest-django chose for the worker's database. Django treats it as a kept database,
and finds no missing migrations. Without pytest-xdist, and with --reuse-db, --create-db or --no-migrations, Django
creates and drops the database as usual.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from django.db import connection

from tests.support.processes.databases import Databases

#: Options of pytest-django that select the source of the database.
OPTIONS = ("reuse_db", "create_db", "nomigrations")


def migrates_once(config: pytest.Config) -> bool:
    """Return whether this process uses a copy: there are several workers, and no option selects another source."""
    has_others = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 1
    return has_others and not any(config.getvalue(option) for option in OPTIONS)


@pytest.fixture(scope="session")
def django_db_keepdb(
    request: pytest.FixtureRequest, django_db_keepdb: bool, django_db_modify_db_settings: None
) -> Iterator[bool]:
    """Yield whether Django keeps an existing database: the copy, if there is one."""
    if not migrates_once(request.config):
        yield django_db_keepdb
        return
    databases: Databases = request.getfixturevalue("databases")
    name = str(connection.settings_dict["TEST"]["NAME"])
    databases.copy_to(name)
    yield True
    # Django does not drop a database that it keeps.
    connection.close()
    if hasattr(connection, "close_pool"):
        connection.close_pool()
    databases.drop(name)
