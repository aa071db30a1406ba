"""Databases that this version cannot use. Every command that would use one refuses it before any statement."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection, transaction
from django.db.migrations.recorder import MigrationRecorder
from django.test import Client

from agentops.base.database.applied_migrations import missing_migrations
from agentops.base.http import health

RECORD = MigrationRecorder.Migration.objects
#: Kind of migration record → the start and the end of the message.
UNUSABLE = {
    "newer": ("the database belongs to a newer version of agentops: ", "restore a backup from before the upgrade"),
    "new app": ("the database belongs to a newer version of agentops: ", "restore a backup from before the upgrade"),
    "replaced": ("the database was created by a version of agentops before 2026-11-22, ", "an empty database"),
    "unpublished": ("the database was migrated by a development version of agentops: ", "an empty database"),
    "gap": ("the table django_migrations of the database is incomplete: ", "do not edit this table"),
    "no record": ("the database has tables whose migrations it does not record: ", "or use an empty database"),
}
NAMED = {
    "newer": "runs.0999_next.",
    "new app": "ledger.0001_initial.",
    "replaced": "projects.0002_idempotencykey, runs.0003_retention, runs.0004_filters_of_the_list and 1 more",
    "unpublished": "runs.0022_flows",
    "gap": "Migration runs.0006_otlp is applied before its dependency runs.0005_external_runs",
    "no record": "agent_run_alert_deliveries",
}


def damage(how: str) -> None:
    """Change the record of migrations as in this kind of database."""
    added = {
        "newer": [("runs", "0999_next")],
        "new app": [("ledger", "0001_initial")],
        "replaced": [
            ("runs", "0003_retention"),
            ("projects", "0002_idempotencykey"),
            ("runs", "0004_filters_of_the_list"),
            ("timeline", "0003_append_function"),
        ],
        "unpublished": [("runs", "0022_flows")],
    }
    for app, name in added.get(how, []):
        RECORD.create(app=app, name=name)
    if how == "gap":
        RECORD.filter(app="runs", name="0005_external_runs").delete()
    if how == "no record":
        RECORD.filter(app="runs").delete()


@pytest.mark.django_db
@pytest.mark.every_database
def test_unusable_database_is_refused_before_the_first_statement() -> None:
    tables = connection.introspection.table_names()
    for how, (start, end) in UNUSABLE.items():
        with transaction.atomic():
            damage(how)
            record = sorted(RECORD.values_list("app", "name"))
            for command in ("migrate", "serve", "worker"):
                with pytest.raises(CommandError) as refusal:
                    call_command(command)
                text = str(refusal.value)
                assert (text.startswith(start), text.endswith(end), NAMED[how] in text) == (True,) * 3, text
                assert refusal.value.returncode == 7
            assert sorted(RECORD.values_list("app", "name")) == record
            transaction.set_rollback(True)
    assert connection.introspection.table_names() == tables
    assert missing_migrations(connection) == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.every_database
def test_process_without_a_usable_schema_is_not_ready(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def problem() -> Any:
        monkeypatch.setattr(health, "readiness", health.Readiness())
        answer = client.get("/readyz")
        return answer.status_code, json.loads(answer.content)["checks"]["migrations"].get("problem")

    assert problem() == (200, None)
    newest = RECORD.filter(app="runs").latest("name")
    newest.delete()
    try:
        assert missing_migrations(connection) == [f"runs.{newest.name}"]
        assert problem() == (503, f"1 migrations are missing, first runs.{newest.name}: run `agentops migrate`")
    finally:
        RECORD.create(app=newest.app, name=newest.name)
    RECORD.create(app="runs", name="0999_next")
    try:
        assert problem()[1].startswith("the database belongs to a newer version of agentops: ")
    finally:
        RECORD.filter(name="0999_next").delete()
