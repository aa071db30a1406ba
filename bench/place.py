"""The databases and folders of the benchmarks, created before Django reads its settings.

Imports nothing of agentops before `prepared`.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql

DEFAULT_URL = "postgresql://postgres@127.0.0.1:5432/agentops_bench"
DEFAULT_REDIS_URL = "redis://127.0.0.1:6379/9"
#: Not for the shell that starts a benchmark to decide.
OURS = ("AGENTOPS_", "ALLOWED_HOSTS", "DEBUG", "LOG_LEVEL", "SECRET_KEY", "REDIS_URL", "DATABASE_URL")


@dataclass(frozen=True)
class Place:
    url: str
    folder: Path

    def connect(self) -> psycopg.Connection:
        """Open a plain psycopg connection."""
        return psycopg.connect(self.url, autocommit=True)

    def port(self) -> int:
        """Return the port of the database server."""
        return urlsplit(self.url).port or 5432

    def fixtures(self) -> Path:
        return self.folder / "fixtures"


@contextmanager
def prepared() -> Iterator[Place]:
    """A migrated database, with Django set up, and folders. All are deleted afterwards."""
    url = os.environ.get("BENCH_DATABASE_URL", DEFAULT_URL)
    folder = Path(tempfile.mkdtemp(prefix="agentops-bench-"))
    place = Place(url, folder)
    place.fixtures().mkdir()
    try:
        with database(url):
            _set_up(place)
            yield place
            _let_go()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def database(url: str) -> Iterator[str]:
    """An empty database. One that is left over from an earlier run is dropped."""
    name = urlsplit(url).path.lstrip("/")
    _drop(url, name)
    _execute(url, sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    try:
        yield url
    finally:
        _drop(url, name)


def sibling(url: str, suffix: str) -> str:
    """Return the URL of another database on the same server, for a peer."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=f"{parts.path}_{suffix}"))


def redis_url() -> str:
    """Return the URL of a Redis database, for benchmarks with several processes."""
    return os.environ.get("BENCH_REDIS_URL", DEFAULT_REDIS_URL)


def empty(place: Place) -> None:
    """Delete all runs, and shrink the tables to their initial size."""
    with place.connect() as connection:
        found = connection.execute(
            "SELECT quote_ident(tablename) FROM pg_tables"
            " WHERE schemaname = 'public' AND tablename <> 'django_migrations'"
        ).fetchall()
        with connection.transaction():
            connection.execute("SET LOCAL agentops.maintenance = 'on'")
            connection.execute(f"TRUNCATE {', '.join(name for (name,) in found)} RESTART IDENTITY CASCADE")


def settle(place: Place) -> None:
    """Vacuum and checkpoint, so that the next measurement does not pay for the previous one."""
    with place.connect() as connection:
        connection.execute("VACUUM ANALYZE")
        connection.execute("CHECKPOINT")


def _set_up(place: Place) -> None:
    for name in [name for name in os.environ if name.startswith(OURS)]:
        del os.environ[name]
    # Requests are counted, as everywhere, and none is refused.
    os.environ |= {f"AGENTOPS_RATE_{name}": "1000000000" for name in ("KEY", "USER", "ADDRESS")}
    os.environ |= {
        "DATABASE_URL": place.url,
        "DJANGO_SETTINGS_MODULE": "agentops.settings",
        "AGENTOPS_HOME": str(place.folder / "home"),
        "AGENTOPS_FIXTURES": str(place.fixtures()),
        "AGENTOPS_SLICE_S": "3600",
        "AGENTOPS_MAX_TOTAL_STEPS": "1000000",
        "LOG_LEVEL": "WARNING",
        "SECRET_KEY": secrets.token_urlsafe(64),
    }
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)


def _let_go() -> None:
    from django.db import connections

    for connection in connections.all():
        connection.close()
        if hasattr(connection, "close_pool"):
            connection.close_pool()


def _drop(url: str, name: str) -> None:
    _execute(url, sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


def _execute(url: str, statement: sql.Composed) -> None:
    parts = urlsplit(url)
    with psycopg.connect(urlunsplit(parts._replace(path="/postgres")), autocommit=True) as connection:
        connection.execute(statement)
