"""End all connections to the database repeatedly during runs: nothing is lost or duplicated."""

from __future__ import annotations

import time
from urllib.parse import urlsplit

import psycopg
import pytest

from runs.models import Attempt
from runs.statuses import RunStatus
from tests.support.run_checks import check
from tests.support.stage import Stage
from tests.support.timing import eventually

pytestmark = pytest.mark.postgres


def test_runs_survive_cut_connections(stage: Stage) -> None:
    workers = [stage.worker(), stage.worker()]
    runs = [
        stage.run([["ledger_read"], ["ledger_idempotent"]] * 3, tool_sleep_s=0.3, chunks=4, pause_s=0.05)
        for _ in range(6)
    ]
    eventually(stage.effects, why="runs are under way")
    for _ in range(5):
        _cut(stage)
        time.sleep(0.6)

    for run in runs:
        stage.reaches(run, RunStatus.COMPLETED)
        check(run)
        assert run.step_count == 7
        done = {effect.call_id: effect.key for effect in stage.effects() if effect.run == str(run.pk)}
        assert len(done) == len(set(done.values())) == 6
    assert all(worker.alive for worker in workers)
    # Five cuts in three seconds can outlast a lease of two seconds. A worker that lost one records this only when it
    # can reach the database again, perhaps after the run was finished elsewhere. This is not a death.
    died = Attempt.objects.filter(end_reason="died")
    eventually(lambda: not died.exists(), why="workers that live are not counted as dead")


def _cut(stage: Stage) -> None:
    """End the connections of all workers."""
    url = stage.databases.env(stage.name, stage.home)["DATABASE_URL"]
    assert urlsplit(url).scheme.startswith("postgres")
    with psycopg.connect(url, autocommit=True) as server:
        server.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name = 'agentops-worker'"
        )
