"""The databases and folders of the benchmarks, created before Django reads its settings.

Imports nothing from agentops before `prepare_workspace`.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
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
#: The variable with the name of a migrated database to copy, because migrating takes seconds.
TEMPLATE = "BENCH_TEMPLATE"
MANAGE = Path(__file__).resolve().parent.parent / "manage.py"
#: Prefixes of environment variables that are removed, so that the shell does not change a measurement.
RESET_PREFIXES = ("AGENTOPS_", "ALLOWED_HOSTS", "DEBUG", "LOG_LEVEL", "SECRET_KEY", "REDIS_URL", "DATABASE_URL")


@dataclass(frozen=True)
class Options:
    """The options of the command line: the length of runs, and the number of rows of large tables."""

    steps: int
    quick: bool
    with_peers: bool
    size: int

    @property
    def is_small(self) -> bool:
        """Whether all sizes are reduced, as in tests."""
        return self.steps < 1000


@dataclass(frozen=True)
class Workspace:
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
def prepare_workspace() -> Iterator[Workspace]:
    """Create a migrated database and folders, and set up Django. All are deleted afterwards."""
    url = _url()
    folder = Path(tempfile.mkdtemp(prefix="agentops-bench-"))
    workspace = Workspace(url, folder)
    workspace.fixtures().mkdir()
    try:
        template = os.environ.get(TEMPLATE, "")
        with database(url, template):
            _set_up(workspace, is_migrated=bool(template))
            yield workspace
            _close_connections()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def migrated_template() -> Iterator[str]:
    """Create a migrated database, and return its name for the environment variable of `TEMPLATE`."""
    with (
        tempfile.TemporaryDirectory(prefix="agentops-bench-") as home,
        database(sibling_url(_url(), "template")) as url,
    ):
        environment = {name: value for name, value in os.environ.items() if not name.startswith(RESET_PREFIXES)}
        environment |= {"DATABASE_URL": url, "AGENTOPS_HOME": home, "SECRET_KEY": secrets.token_urlsafe(64)}
        subprocess.run([sys.executable, MANAGE, "migrate", "--verbosity", "0"], env=environment, check=True)
        yield urlsplit(url).path.lstrip("/")


@contextmanager
def database(url: str, template: str = "") -> Iterator[str]:
    """Create a database like `template`, or an empty database. Drop a database that an earlier run left."""
    name = urlsplit(url).path.lstrip("/")
    _drop(url, name)
    create = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
    _execute(url, create.format(sql.Identifier(name), sql.Identifier(template or "template1")))
    try:
        yield url
    finally:
        _drop(url, name)


def _url() -> str:
    url = os.environ.get("BENCH_DATABASE_URL", DEFAULT_URL)
    if "bench" not in urlsplit(url).path:
        # Protects a developer's data from a wrong URL.
        sys.exit("BENCH_DATABASE_URL: the database is dropped before and after, so its name must contain 'bench'.")
    return url


def sibling_url(url: str, suffix: str) -> str:
    """Return the URL of another database on the same server, for a peer."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=f"{parts.path}_{suffix}"))


def redis_url() -> str:
    """Return the URL of a Redis database, for benchmarks with several processes."""
    return os.environ.get("BENCH_REDIS_URL", DEFAULT_REDIS_URL)


@contextmanager
def sending_to_redis() -> Iterator[None]:
    """Make this process send messages to that Redis, as a web process does."""
    from django.conf import settings

    from agentops.celery import app

    before = settings.REDIS_URL, app.conf.broker_url
    settings.REDIS_URL = app.conf.broker_url = redis_url()
    try:
        yield
    finally:
        settings.REDIS_URL, app.conf.broker_url = before


def truncate_tables(workspace: Workspace) -> None:
    """Delete all runs, and shrink the tables to their initial size."""
    with workspace.connect() as connection:
        tables = connection.execute(
            "SELECT quote_ident(tablename) FROM pg_tables"
            " WHERE schemaname = 'public' AND tablename <> 'django_migrations'"
        ).fetchall()
        with connection.transaction():
            connection.execute("SET LOCAL agentops.maintenance = 'on'")
            connection.execute(f"TRUNCATE {', '.join(name for (name,) in tables)} RESTART IDENTITY CASCADE")


def vacuum(workspace: Workspace) -> None:
    """Vacuum and checkpoint, so that the next measurement does not pay for the previous one."""
    with workspace.connect() as connection:
        connection.execute("VACUUM ANALYZE")
        connection.execute("CHECKPOINT")


def _set_up(workspace: Workspace, *, is_migrated: bool) -> None:
    for name in [name for name in os.environ if name.startswith(RESET_PREFIXES)]:
        del os.environ[name]
    # Rate limits count requests as usual, but refuse none.
    os.environ |= {f"AGENTOPS_RATE_{name}": "1000000000" for name in ("KEY", "USER", "ADDRESS")}
    os.environ |= {
        "DATABASE_URL": workspace.url,
        "DJANGO_SETTINGS_MODULE": "agentops.settings",
        "AGENTOPS_HOME": str(workspace.folder / "home"),
        "AGENTOPS_FIXTURES": str(workspace.fixtures()),
        "AGENTOPS_SLICE_S": "3600",
        "AGENTOPS_MAX_TOTAL_STEPS": "1000000",
        "LOG_LEVEL": "WARNING",
        "SECRET_KEY": secrets.token_urlsafe(64),
    }
    import django
    from django.core.management import call_command

    django.setup()
    if not is_migrated:
        call_command("migrate", verbosity=0)


def _close_connections() -> None:
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
