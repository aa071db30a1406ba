"""The database server ends all connections, again and again, while runs are under way: nothing is lost or doubled."""

from __future__ import annotations

import time
from urllib.parse import urlsplit

import psycopg
import pytest

from runs.models import Attempt
from runs.statuses import RunStatus
from tests.crash.rig import Stage, check, eventually

pytestmark = pytest.mark.postgres


def test_it_survives_cut_connections(stage: Stage) -> None:
    workers = [stage.worker(), stage.worker()]
    runs = [stage.run([["ledger_read"], ["ledger_idempotent"]] * 3, tool_sleep_s=0.3, chunks=4, pause_s=0.05)
            for _ in range(6)]  # fmt: skip
    eventually(stage.effects, within_s=20, why="runs are under way")
    for _ in range(5):
        _cut(stage)
        time.sleep(0.6)

    for run in runs:
        stage.reaches(run, RunStatus.COMPLETED, within_s=40)
        check(run)
        assert run.step_count == 7
        done = {effect.call_id: effect.key for effect in stage.effects() if effect.run == str(run.pk)}
        assert len(done) == len(set(done.values())) == 6
    assert all(worker.alive for worker in workers)
    # Five cuts in three seconds can outlast a lease of two: such a run is taken over, which its log calls a death.
    # What must not happen is that a healthy run is taken for poison (three in one step): all have completed above.
    died = Attempt.objects.filter(end_reason="died").count()
    print(f"five cuts of all connections: {died} of {Attempt.objects.count()} attempts count as deaths")
    assert died <= 2, "\n".join(worker.said(200) for worker in workers)


def _cut(stage: Stage) -> None:
    """All connections but those of this process."""
    url = stage.databases.env(stage.name, stage.home)["DATABASE_URL"]
    assert urlsplit(url).scheme.startswith("postgres")
    with psycopg.connect(url, autocommit=True) as server:
        server.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name = 'agentops-worker'"
        )
