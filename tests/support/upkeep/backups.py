"""Backup of each database while it is in use, and restore in the same place. Used by the restore drill."""

from __future__ import annotations

import io
import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
from django.core.management import call_command
from django.db import connection

from tests.support.processes.stage import Stage
from tests.support.services import missing


def agentops(*words: str) -> str:
    """Run a command on this process's database, and return its output. The exit code must be 0."""
    out = io.StringIO()
    call_command(*words, stdout=out)
    return out.getvalue()


def back_up(stage: Stage) -> Path:
    """Back up as docs/guides/backup.md says, while other processes write."""
    path = stage.home / "backup"
    if stage.databases.engine == "sqlite":
        agentops("backup", str(path))
    else:
        _run("pg_dump", "--format=custom", f"--file={path}", _url(stage))
    return path


def put_back(stage: Stage, path: Path) -> None:
    """Restore a backup over the current database. Open connections see the restored database from then on."""
    connection.close()
    if stage.databases.engine == "sqlite":
        with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(stage.name, timeout=20)) as target:
            source.backup(target)
        return
    connection.close_pool()  # type: ignore[attr-defined]
    with psycopg.connect(stage.databases.server_url(), autocommit=True) as server:
        server.execute(f'DROP DATABASE "{stage.name}" WITH (FORCE)')  # type: ignore[arg-type]
        server.execute(f'CREATE DATABASE "{stage.name}"')  # type: ignore[arg-type]
    _run("pg_restore", "--no-owner", "--exit-on-error", f"--dbname={_url(stage)}", str(path))


def _run(program: str, *words: str) -> None:
    if shutil.which(program) is None:
        missing(f"there is no {program}")
    subprocess.run([program, *words], check=True, capture_output=True, timeout=120)


def _url(stage: Stage) -> str:
    return urlunsplit(urlsplit(stage.databases.server_url())._replace(path=f"/{stage.name}"))
