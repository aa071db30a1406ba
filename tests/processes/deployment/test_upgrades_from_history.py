"""Upgrade databases of earlier commits of this repository, with active runs, to the current code."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.support import machine
from tests.support.command_line import PLAYED
from tests.support.deployment import Row, Version, all_rows, query, unpack
from tests.support.machine import ROOT
from tests.support.timing import eventually

#: The oldest version that can be upgraded (docs/guides/upgrade.md), one with flows, and one without the last two
#: migrations.
COMMITS = {
    "2026-11-22": "4481d92a40c4614fc65880eb31136489eb9ce347",
    "2026-11-24": "16b65f0e48c8bb591b13cc93bdbd7c48395d9081",
    "2026-11-26": "353dc378d2965a3fc6cf2c6597c553b3fb84788d",
}
#: The last version before the oldest: its migrations were replaced later.
TOO_OLD = "d6aa529bec9aabbf26a8151d027ecf908fe3950b"
#: Seeds the demo; its slow runs play ten times as fast.
SEED = """
import dataclasses, django; django.setup()
from runs import demo
demo.PLAYERS = tuple(dataclasses.replace(player, pace=player.pace * 10) for player in demo.PLAYERS)
demo.seed()
"""
RUNS = "SELECT a.slug, r.status, r.step_count FROM agent_runs r JOIN runs_agent a ON a.id = r.agent_id"
#: Tables to which a migration may add rows: content types, permissions, migrations, and the search position.
MAY_GAIN = {"auth_permission", "django_content_type", "django_migrations", "agent_run_search_position"}
#: SQLite's counters, which follow from the rows.
NO_RECORDS = {"sqlite_sequence"}


def lost_rows(before: dict[str, list[Row]], after: dict[str, list[Row]]) -> list[str]:
    """List tables, columns and rows that the upgrade lost or changed, and added rows except those in MAY_GAIN."""
    faults = [f"{table} is gone" for table in sorted(before.keys() - after.keys())]
    for table in sorted((before.keys() & after.keys()) - NO_RECORDS):
        columns = {column for row in before[table] for column in row}
        if missing := columns - {column for row in after[table] for column in row}:
            faults.append(f"{table} has lost {sorted(missing)}")
            continue
        old = Counter(tuple(row[column] for column in sorted(columns)) for row in before[table])
        new = Counter(tuple(row[column] for column in sorted(columns)) for row in after[table])
        faults += [f"{table} has lost {row}" for row in old - new]
        faults += [f"{table} has gained {row}" for row in new - old if table not in MAY_GAIN]
    return faults


# The old version creates a database and its worker is killed; the current version finishes the runs in half a minute.
@pytest.mark.slow
@pytest.mark.every_database
@pytest.mark.parametrize("date", COMMITS)
def test_an_old_database_loses_nothing_and_its_runs_finish(date: str, empty: str, tmp_path: Path) -> None:
    old = Version(unpack(COMMITS[date], tmp_path / "old"), empty, tmp_path / "home", tmp_path / "old.log")
    today = Version(ROOT, empty, tmp_path / "home", tmp_path / "today.log")
    old.manage("migrate", "--verbosity", "0")
    seeded = old.python("-c", SEED)
    assert seeded.returncode == 0, seeded.stderr
    with old.worker():
        eventually(
            lambda: any(status == "running" and steps >= 3 for _, status, steps in query(empty, RUNS)),
            why=lambda: f"the old version executes its runs: {old.log.read_text()}",
        )
    before = all_rows(empty)
    assert len(before["agent_runs"]) >= 4
    assert "running" in {status for _, status, _ in query(empty, RUNS)}

    today.manage("migrate", "--verbosity", "0")

    assert lost_rows(before, all_rows(empty)) == []
    with today.worker():
        eventually(
            lambda: {status for _, status, _ in query(empty, RUNS)} == {"completed"},
            why=lambda: f"{query(empty, RUNS)}: {today.log.read_text()}",
            within_s=240,
        )
    steps = {slug: steps for slug, _, steps in query(empty, RUNS)}
    assert steps.items() >= {slug: count for slug, (_, count) in PLAYED.items()}.items()
    assert steps["demo-replay"] == 219
    assert "All invariants hold" in today.manage("check_invariants")
    assert "0 differ" in today.manage("check_runs")


@pytest.mark.slow
@pytest.mark.every_database
def test_a_database_older_than_the_oldest_version_is_refused_unchanged(empty: str, tmp_path: Path) -> None:
    old = Version(unpack(TOO_OLD, tmp_path / "old"), empty, tmp_path / "home", tmp_path / "old.log")
    today = Version(ROOT, empty, tmp_path / "home", tmp_path / "today.log")
    old.manage("migrate", "--verbosity", "0")
    assert old.python("-c", SEED).returncode == 0
    before = all_rows(empty)

    for command in ("migrate", "worker", "serve"):
        refused = today.python("manage.py", command)
        assert refused.returncode == 7, refused.stderr
        assert refused.stderr.startswith(
            "agentops: the database was created by a version of agentops before 2026-11-22, and cannot be upgraded:"
            " its migrations projects.0002_idempotencykey, projects.0003_incarnation, projects.0004_notification and 16"
            " more were replaced later. "
        )
    assert all_rows(empty) == before


def test_a_clone_without_the_history_skips_or_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "REQUIRE_SERVICES", False)
    with pytest.raises(pytest.skip.Exception, match="git fetch --unshallow"):
        unpack("0" * 40, tmp_path)
    monkeypatch.setattr(machine, "REQUIRE_SERVICES", True)
    with pytest.raises(pytest.fail.Exception, match="REQUIRE_SERVICES=1 forbids skipping"):
        unpack("0" * 40, tmp_path)
