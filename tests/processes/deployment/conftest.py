"""Databases: a home with all tables, copied because migrations take seconds, and an empty database."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from django.conf import settings


@pytest.fixture
def migrated_home(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return the home of a site with all tables and no rows. Only the SQLite pass uses it, because a home requires
    SQLite.
    """
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    # Requested dynamically, so that a test of a home does not depend on the database of the pass.
    request.getfixturevalue("databases").copy_to(str(home / "agentops.sqlite3"))
    return home


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[str]:
    """Return the URL of an empty database on the engine under test."""
    if settings.DATABASES["default"]["ENGINE"].endswith("sqlite3"):
        yield f"sqlite:///{tmp_path / 'old.sqlite3'}"
        return
    server, name = os.environ["DATABASE_URL"], f"upgrade_{os.getpid()}"
    with psycopg.connect(server, autocommit=True) as made:
        made.execute(f'CREATE DATABASE "{name}"')
        yield urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
        made.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
