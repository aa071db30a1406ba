"""Test migrations: they update an old database without loss, and each can be reversed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from django.conf import settings

MANAGE = [sys.executable, str(settings.BASE_DIR / "manage.py")]
MAKE = "from agentops.accounts.models import Project; Project.objects.create(slug='old', name='Old')"
READ = (
    "from agentops.accounts.models import Project; from runs.models import AgentRun;"
    "print(Project.objects.get().slug, list(AgentRun.with_removed.all()))"
)

#: Prints the remaining tables and functions of agentops. Both databases drop triggers with their table.
LEFT = """
from django.db import connection
names = connection.introspection.table_names()
with connection.cursor() as cursor:
    if connection.vendor == "postgresql":
        cursor.execute("SELECT proname FROM pg_proc WHERE proname ~ '^(timeline|runs)_'")
        names += [name for (name,) in cursor.fetchall()]
print([name for name in names if name.startswith(("agent_run", "runs_", "timeline_", "projects_"))])
"""

Manage = Callable[..., str]


@pytest.fixture
def manage(empty: str, tmp_path: Path) -> Manage:
    env = os.environ | {"DATABASE_URL": empty, "AGENTOPS_HOME": str(tmp_path / "home")}

    def run(*words: str) -> str:
        done = subprocess.run([*MANAGE, *words], env=env, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.mark.slow
@pytest.mark.every_database
def test_migrate_adds_tables_keeps_rows_and_can_be_repeated(manage: Manage) -> None:
    """Start from before the tables of runs existed, with a project."""
    manage("migrate", "projects")
    manage("migrate", "runs", "0001")
    manage("shell", "--no-imports", "-c", MAKE)

    for _ in range(2):
        manage("migrate")
    assert manage("shell", "--no-imports", "-c", READ) == "old []\n"


@pytest.mark.slow
@pytest.mark.every_database
def test_each_migration_can_be_reversed(manage: Manage) -> None:
    manage("migrate")
    for app in ("runs", "timeline", "projects"):
        manage("migrate", app, "zero")
    assert manage("shell", "--no-imports", "-c", LEFT) == "[]\n"

    manage("migrate")
    assert manage("makemigrations", "--check", "--dry-run") == "No changes detected\n"
