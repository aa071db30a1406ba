"""Gives each worker of pytest-xdist a copy of one database that the first of them has migrated.

A plugin of the suite (tests/conftest.py names it). Migrating takes seconds of a worker's time, a copy next to none. The
name is the one that Django and pytest-django have given the worker's database, and Django finds it as a database that
was kept: it looks which migrations are missing, and there are none. Without pytest-xdist, and with --reuse-db,
--create-db or --no-migrations, Django makes the database and drops it as ever.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from django.db import connection

from tests.support.processes.databases import Databases

#: Options of pytest-django that say themselves where the database comes from.
OPTIONS = ("reuse_db", "create_db", "nomigrations")


def migrates_once(config: pytest.Config) -> bool:
    """Whether the database of this process is a copy: there are other workers, and no option says otherwise."""
    has_others = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 1
    return has_others and not any(config.getvalue(option) for option in OPTIONS)


@pytest.fixture(scope="session")
def django_db_keepdb(
    request: pytest.FixtureRequest, django_db_keepdb: bool, django_db_modify_db_settings: None
) -> Iterator[bool]:
    """Whether Django is to keep a database that exists: the copy, if there is one."""
    if not migrates_once(request.config):
        yield django_db_keepdb
        return
    databases: Databases = request.getfixturevalue("databases")
    name = str(connection.settings_dict["TEST"]["NAME"])
    databases.copy_to(name)
    yield True
    # Django leaves what it has kept.
    connection.close()
    if hasattr(connection, "close_pool"):
        connection.close_pool()
    databases.drop(name)
