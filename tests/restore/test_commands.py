"""`agentops post_restore` and `agentops backup`: refusals and output."""

from __future__ import annotations

import io
import json
import sqlite3
import stat
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.core.management import CommandError, call_command
from django.db import connection

from agentops.accounts.models import Incarnation
from runs.lifecycle import transitions
from runs.management.site.home import Home
from runs.models import AgentRun
from runs.statuses import RunStatus
from tests.support.factories import drive, make_run
from timeline.models import Event, Log

sqlite_only = pytest.mark.skipif(
    not django_settings.DATABASES["default"]["ENGINE"].endswith("sqlite3"), reason="SQLite's own"
)


def printed(*words: str, **options: Any) -> str:
    out = io.StringIO()
    call_command(*words, stdout=out, **options)
    return out.getvalue()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


# --- post_restore -----------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_post_restore_fences_off_runs() -> None:
    run = make_run()
    transitions.claim(run.pk, "a worker")

    told = json.loads(printed("post_restore", "--yes", "--json"))

    assert told["violated"] == []
    assert told["runs"] == [str(run.pk)]
    assert Incarnation.objects.get(pk=told["incarnation"]).finished_at is not None
    assert AgentRun.objects.get(pk=run.pk).status == RunStatus.QUEUED
    assert "All invariants hold" in printed("post_restore", "--yes")


@pytest.mark.django_db
def test_post_restore_needs_a_terminal_or_yes() -> None:
    with pytest.raises(CommandError) as refusal:
        printed("post_restore")

    assert refusal.value.returncode == 5
    assert not Incarnation.objects.exists()


@pytest.mark.django_db
@pytest.mark.parametrize("answer", ["y", "YES "])
def test_post_restore_asks_for_confirmation(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.input", lambda prompt: answer)
    call_command("post_restore", stdout=Terminal())

    assert Incarnation.objects.exists()


@pytest.mark.django_db
@pytest.mark.parametrize("answer", ["", "n", "yes please"])
def test_post_restore_stops_without_confirmation(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.input", lambda prompt: answer)
    with pytest.raises(CommandError) as refusal:
        call_command("post_restore", stdout=Terminal())

    assert refusal.value.returncode == 5
    assert not Incarnation.objects.exists()


@pytest.mark.django_db
def test_end_of_input_counts_as_no(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-D, or an empty standard input such as /dev/null."""
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with pytest.raises(CommandError) as refusal:
        call_command("post_restore", stdout=Terminal())

    assert refusal.value.returncode == 5
    assert not Incarnation.objects.exists()


@pytest.mark.breaks_invariants("a backup is spoilt")
@pytest.mark.django_db
def test_post_restore_exits_with_1_for_a_broken_backup() -> None:
    run = drive(make_run())
    Log.objects.filter(pk=run.pk).update(last_seq=Event.objects.filter(log=run.pk).count() + 1)
    with pytest.raises(CommandError) as refusal:
        printed("post_restore", "--yes")

    assert refusal.value.returncode == 1
    assert "E2" in str(refusal.value)


@sqlite_only
@pytest.mark.django_db
def test_post_restore_is_refused_while_the_site_runs() -> None:
    """Exit code 75: the process that serves this home must end first."""
    home = Home(django_settings.AGENTOPS_HOME)
    try:
        with pytest.raises(CommandError) as refusal:
            printed("post_restore", "--yes")
    finally:
        home.release()

    assert refusal.value.returncode == 75
    assert not Incarnation.objects.exists()
    printed("post_restore", "--yes")


# --- backup -----------------------------------------------------------------------------------------------------


@sqlite_only
@pytest.mark.django_db(transaction=True)
def test_backup_is_complete_and_private(tmp_path: Path) -> None:
    run = drive(make_run())
    path = tmp_path / "backup.sqlite3"

    told = json.loads(printed("backup", str(path), "--json"))

    assert told == {"file": str(path), "bytes": path.stat().st_size}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    with closing(sqlite3.connect(path)) as copy:
        assert copy.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        [events] = copy.execute("SELECT count(*) FROM agent_run_events WHERE log_id = ?", [run.pk.hex]).fetchone()
        assert events == Event.objects.filter(log=run.pk).count()
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            copy.execute("DELETE FROM agent_run_events")


@sqlite_only
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("name", "code"), [("there", 5), ("no/such/directory", 6)])
def test_backup_overwrites_no_file(tmp_path: Path, name: str, code: int) -> None:
    (tmp_path / "there").write_text("mine")
    with pytest.raises(CommandError) as refusal:
        printed("backup", str(tmp_path / name))

    assert refusal.value.returncode == code
    assert (tmp_path / "there").read_text() == "mine"


@pytest.mark.postgres
@pytest.mark.django_db
def test_backup_on_postgresql_refers_to_pg_dump(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="pg_dump") as refusal:
        printed("backup", str(tmp_path / "x"))

    assert refusal.value.returncode == 5
    assert connection.vendor == "postgresql"
    assert list(tmp_path.iterdir()) == []
