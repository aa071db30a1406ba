"""A database for each test, copied from a migrated template."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
from django.db import OperationalError, connection, connections

from tests.support.paths import ROOT

KEY = "for-the-crash-tests-and-nothing-else-0123456789-abcdef"


@contextmanager
def looking_at(name: str) -> Iterator[None]:
    """Point this process's ORM at another database of the same engine."""
    old = connections.settings["default"]["NAME"]

    def switch(to: str) -> None:
        connection.close()
        if hasattr(connection, "close_pool"):
            connection.close_pool()
        connections.settings["default"]["NAME"] = to
        connection.settings_dict["NAME"] = to

    switch(name)
    try:
        yield
    finally:
        switch(old)


def reconnect() -> None:
    """Connect, with retries: opening a SQLite file can fail briefly after its last user has left."""
    for _ in range(20):
        try:
            return connection.ensure_connection()
        except OperationalError:
            time.sleep(0.1)
    return connection.ensure_connection()


class Databases:
    """Creates databases for tests from a template. The first process of a test session migrates the template."""

    def __init__(self, engine: str, directory: Path, *, shared: Path | None = None) -> None:
        """`directory` belongs to this process. `shared` belongs to all processes that share the template."""
        self.engine = engine
        self._directory = directory
        self._shared = shared or directory
        self._count = 0
        self._prefix = f"crash_{os.getpid()}_{os.urandom(3).hex()}"
        with self._users() as users:
            if not users.exists():
                users.write_text(f"{self._migrated()}\n")
            with users.open("a") as file:
                file.write(f"{self._prefix}\n")
            self._template = users.read_text().splitlines()[0]

    @contextmanager
    def _users(self) -> Iterator[Path]:
        """Lock and yield the file that names the migrated database, followed by its users."""
        with (self._shared / f"{self.engine}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield self._shared / f"{self.engine}.users"

    def _migrated(self) -> str:
        name = self._name(self._shared)
        if self.engine == "postgres":
            self._server(f'CREATE DATABASE "{name}"')
        # The checks load every page, which takes half of the time. `make check` runs them.
        manage = [sys.executable, "manage.py", "migrate", "--verbosity", "0", "--skip-checks"]
        subprocess.run(manage, cwd=ROOT, env=self.env(name, self._directory), check=True, timeout=240)
        return name

    def env(self, name: str, home: Path) -> dict[str, str]:
        """Return the environment of a process on the database `name`, without variables from the developer's shell."""
        return {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "AGENTOPS_HOME": str(home),
            "AGENTOPS_TESTING": "1",
            "SECRET_KEY": KEY,
            "DATABASE_URL": self._url(name),
        }

    @contextmanager
    def fresh(self) -> Iterator[str]:
        name = self._name()
        self.copy_to(name)
        try:
            yield name
        finally:
            self.drop(name)

    def copy_to(self, name: str) -> None:
        """Create the database `name`, migrated and empty."""
        if self.engine == "postgres":
            self._server(f'CREATE DATABASE "{name}" TEMPLATE "{self._template}"')
        else:
            shutil.copyfile(self._template, name)

    def drop(self, name: str) -> None:
        if self.engine == "postgres":
            self._server(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
        else:
            for each in Path(name).parent.glob(f"{Path(name).name}*"):
                each.unlink()

    def close(self) -> None:
        """Unregister this user. The last user drops the migrated database."""
        with self._users() as users:
            left = [line for line in users.read_text().splitlines() if line != self._prefix]
            if len(left) > 1:
                users.write_text("".join(f"{line}\n" for line in left))
            else:
                self.drop(self._template)
                users.unlink()

    def _name(self, directory: Path | None = None) -> str:
        self._count += 1
        name = f"{self._prefix}_{self._count}"
        return name if self.engine == "postgres" else str((directory or self._directory) / f"{name}.sqlite3")

    def _url(self, name: str) -> str:
        if self.engine == "sqlite":
            return f"sqlite:///{name}"
        return urlunsplit(urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{name}"))

    def server_url(self) -> str:
        return os.environ["DATABASE_URL"]

    def _server(self, statement: str) -> None:
        with psycopg.connect(self.server_url(), autocommit=True, connect_timeout=5) as server:
            server.execute(statement)  # type: ignore[arg-type]
