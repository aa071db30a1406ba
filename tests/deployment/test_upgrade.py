"""A database of an older version is opened by a newer one: it gains what it lacks, and loses nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from django.conf import settings

MANAGE = [sys.executable, str(settings.BASE_DIR / "manage.py")]
MAKE = "from agentops.projects.models import Project; Project.objects.create(slug='old', name='Old')"
READ = (
    "from agentops.projects.models import Project; from runs.models import AgentRun;"
    "print(Project.objects.get().slug, list(AgentRun.with_removed.all()))"
)


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[str]:
    """The address of a database with nothing in it, on the engine under test."""
    if settings.DATABASES["default"]["ENGINE"].endswith("sqlite3"):
        yield f"sqlite:///{tmp_path / 'old.sqlite3'}"
        return
    server, name = os.environ["DATABASE_URL"], f"upgrade_{os.getpid()}"
    with psycopg.connect(server, autocommit=True) as made:
        made.execute(f'CREATE DATABASE "{name}"')
        yield urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
        made.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@pytest.mark.slow
@pytest.mark.every_database
def test_it_gains_its_columns_and_a_second_opening_is_harmless(empty: str, tmp_path: Path) -> None:
    """From before runs could be kept or removed, with a project in it."""
    env = os.environ | {"DATABASE_URL": empty, "AGENTOPS_HOME": str(tmp_path / "home")}

    def manage(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*MANAGE, *words], env=env, capture_output=True, text=True, timeout=120, check=False)

    assert manage("migrate", "projects").returncode == 0
    assert manage("migrate", "runs", "0002").returncode == 0
    assert manage("shell", "--no-imports", "-c", MAKE).returncode == 0

    for _ in range(2):
        assert manage("migrate").returncode == 0
    read = manage("shell", "--no-imports", "-c", READ)
    assert (read.returncode, read.stdout) == (0, "old []\n"), read.stderr
