"""An earlier version of this repository, from its git history, and the rows of a database."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from tests.support.paths import ROOT
from tests.support.services import missing

#: The directories and files of the site, in every version.
PACKAGES = ("agentops", "runs", "timeline", "templates", "static", "manage.py", "CHANGELOG.md")
#: Column → value. Values are text, so that databases with different schemas can be compared.
Row = dict[str, str]


@dataclass
class Version:
    """The code of a version, with the database that it uses and the packages of the tests."""

    tree: Path
    database: str
    home: Path
    log: Path

    def python(self, *words: str, settings: str = "agentops.settings") -> subprocess.CompletedProcess[str]:
        """Run Python with the code of this version, with any exit code."""
        env = self._env() | {"DJANGO_SETTINGS_MODULE": settings}
        return subprocess.run(
            [sys.executable, *words], cwd=self.tree, env=env, capture_output=True, text=True, timeout=300, check=False
        )

    def manage(self, *words: str) -> str:
        done = self.python("manage.py", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    @contextmanager
    def worker(self) -> Iterator[subprocess.Popen[bytes]]:
        """Run a worker of this version, and kill it at the end of the block."""
        with self.log.open("ab") as log:
            worker = subprocess.Popen(
                [sys.executable, "manage.py", "worker"], cwd=self.tree, env=self._env(), stdout=log, stderr=log
            )
        try:
            yield worker
        finally:
            worker.kill()
            worker.wait()

    def _env(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(self.tree),
            "AGENTOPS_HOME": str(self.home),
            "AGENTOPS_LEASE_S": "2",
            "AGENTOPS_RENEW_S": "0.5",
            "AGENTOPS_SWEEP_S": "0.5",
            "DATABASE_URL": self.database,
        }


def unpack(commit: str, directory: Path) -> Path:
    """Extract the files of a commit into a directory. Skip the test if this clone does not have the commit."""
    done = subprocess.run(["git", "archive", commit, *PACKAGES], cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        reason = done.stderr.decode().strip()
        missing(f"needs commit {commit} in the history of this clone (`git fetch --unshallow`): {reason}")
    directory.mkdir(exist_ok=True)
    subprocess.run(["tar", "--extract", "--directory", directory], input=done.stdout, check=True)
    return directory


def query(database: str, sql: str) -> list[tuple[Any, ...]]:
    """Return the rows of a query. `database` is a database URL."""
    with closing(_connect(database)) as connection, closing(connection.cursor()) as cursor:
        cursor.execute(sql)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows


def all_rows(database: str) -> dict[str, list[Row]]:
    """Return every row of every table."""
    if database.startswith("sqlite"):
        tables = "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"
    else:
        tables = "SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY tablename"
    names = [name for (name,) in query(database, tables)]
    with closing(_connect(database)) as connection, closing(connection.cursor()) as cursor:
        return {name: _rows(cursor, name) for name in names}


def _rows(cursor: Any, table: str) -> list[Row]:
    cursor.execute(f'SELECT * FROM "{table}"')
    columns = [column[0] for column in cursor.description]
    return [dict(zip(columns, map(repr, row), strict=True)) for row in cursor.fetchall()]


def _connect(database: str) -> Any:
    if database.startswith("sqlite"):
        return sqlite3.connect(database.removeprefix("sqlite:///"), timeout=30)
    return psycopg.connect(database)
