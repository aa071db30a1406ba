"""Test a worker that starts before the migration: it must not execute a tool whose result it could not store."""

from __future__ import annotations

import pytest
from django.db.migrations.recorder import MigrationRecorder

from runs.statuses import RunStatus
from tests.support.stage import Stage
from tests.support.timing import eventually

pytestmark = pytest.mark.every_database


def test_a_worker_takes_no_run_before_the_migration(stage: Stage) -> None:
    run = stage.run([["ledger_once"]])
    newest = MigrationRecorder.Migration.objects.filter(app="runs").latest("name")
    newest.delete()
    worker = stage.worker()
    waits = f"the worker waits: 1 migrations are missing, first runs.{newest.name}"
    eventually(lambda: worker.said().count(waits) >= 2, why="it looks again and again")

    assert stage.effects() == []
    run.refresh_from_db()
    assert run.status == RunStatus.QUEUED
    MigrationRecorder.Migration.objects.create(app=newest.app, name=newest.name)
    stage.reaches(run, RunStatus.COMPLETED)
