"""Test SIGTERM: a worker claims no more runs, finishes or abandons pending calls, and releases its runs."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from django.db import connections

from runs.models import AgentRun, AgentRunToolCall
from runs.statuses import RunStatus
from runs.worker.worker import THREADS_END_S, Worker
from tests.support.run_checks import check, events
from tests.support.stage import Stage
from tests.support.timing import eventually


def handed_over(run: AgentRun, reason: str) -> float:
    """Return the seconds from the release of the lease to the next claim."""
    lines = events(run)
    [released] = [e for e in lines if e.type == "run.phase" and e.payload.get("reason") == reason]
    claimed = next(e for e in lines if e.seq > released.seq and e.payload.get("reason") == "continued")
    assert claimed.epoch == 2
    return (claimed.created_at - released.created_at).total_seconds()


def test_sigterm_finishes_the_model_call_and_releases_the_run(stage: Stage) -> None:
    run = stage.run(chunks=20, pause_s=0.1)
    first = stage.worker()
    eventually(lambda: any(e.type == "llm.text.delta" for e in events(run)), why="the answer streams")
    # With the default intervals: no hint is sent, so the sweep finds the release.
    second = stage.worker(AGENTOPS_SWEEP_S="5", AGENTOPS_LEASE_S="20", AGENTOPS_RENEW_S="5")
    first.signal(stage.TERM)

    assert first.wait(within_s=15, why="ended by SIGTERM") == 0
    stage.reaches(run, RunStatus.COMPLETED)
    check(run)
    took = handed_over(run, "slice_over" if not _reasons(run, "worker_ending") else "worker_ending")
    # Less than the lease of 20 s: the sweep found the release, not an expired lease.
    assert took < 15
    types = [event.type for event in events(run)]
    assert "run.recovered" not in types
    assert "llm.turn.abandoned" not in types
    assert stage.model_calls() == [1, 2, 3]
    assert second.alive


def _reasons(run: AgentRun, reason: str) -> bool:
    return any(e.payload.get("reason") == reason for e in events(run) if e.type == "run.phase")


def test_sigterm_abandons_a_model_call_that_outlasts_the_grace_period(stage: Stage) -> None:
    run = stage.run(chunks=100, pause_s=0.1)
    first = stage.worker(AGENTOPS_GRACE_S="1")
    eventually(lambda: any(e.type == "llm.text.delta" for e in events(run)), why="the answer streams")
    began = time.monotonic()
    first.signal(stage.TERM)
    assert first.wait(within_s=10, why="ended by SIGTERM") == 0
    took = time.monotonic() - began
    print(f"SIGTERM with a grace of 1 s: ended after {took:.2f} s")
    run.refresh_from_db()
    assert (run.status, run.lease_owner) == (RunStatus.QUEUED, None)
    [abandoned] = [e for e in events(run) if e.type == "llm.turn.abandoned"]
    assert abandoned.payload["reason"] == "worker_ending"
    check(run)


@pytest.mark.parametrize(
    ("tool", "finally_"), [("ledger_idempotent", RunStatus.COMPLETED), ("ledger_once", RunStatus.WAITING)]
)
def test_sigterm_abandons_a_tool_that_outlasts_the_grace_period(stage: Stage, tool: str, finally_: RunStatus) -> None:
    """A tool cannot be ended from outside. The run continues elsewhere by the rule for the tool's effect."""
    run = stage.run([[tool]], tool_sleep_s=8)
    first = stage.worker(AGENTOPS_GRACE_S="1")
    eventually(stage.effects, why="the tool is running")
    began = time.monotonic()
    first.signal(stage.TERM)
    stage.worker()
    first.wait(within_s=7, why="ended by SIGTERM")
    print(f"SIGTERM during a tool, with a grace of 1 s: ended after {time.monotonic() - began:.2f} s")

    stage.reaches(run, finally_)
    check(run)
    done = stage.effects()
    assert len(done) == (2 if tool == "ledger_idempotent" else 1)
    assert len({effect.key for effect in done}) == 1
    call = AgentRunToolCall.objects.get(run=run)
    assert call.status == ("completed" if tool == "ledger_idempotent" else "unknown")


def test_sigterm_prevents_further_claims(stage: Stage) -> None:
    busy = stage.run([["ledger_read"]], tool_sleep_s=2)
    first = stage.worker()
    eventually(stage.effects, why="the tool is running")
    first.signal(stage.TERM)
    time.sleep(0.3)
    late = stage.run()

    assert first.wait(within_s=10, why="ended by SIGTERM") == 0
    late.refresh_from_db()
    busy.refresh_from_db()
    assert (late.status, late.lease_epoch) == (RunStatus.QUEUED, 0)
    assert busy.status == RunStatus.QUEUED
    assert len(stage.effects()) == 1


@contextmanager
def database_that_hangs(stage: Stage) -> Iterator[None]:
    """Lock the tables that all threads of a worker write to."""
    if stage.databases.engine == "sqlite":
        with sqlite3.connect(stage.name, isolation_level=None) as holder:
            holder.execute("BEGIN IMMEDIATE")
            yield
            holder.execute("ROLLBACK")
        holder.close()
        return
    with psycopg.connect(stage.databases.env(stage.name, stage.home)["DATABASE_URL"]) as server:
        tables = "agent_runs, agent_run_sinks, agent_run_alert_rules, flow_runs"
        server.execute(f"LOCK TABLE {tables} IN ACCESS EXCLUSIVE MODE")
        yield
        server.rollback()


def test_hanging_threads_share_one_deadline(stage: Stage) -> None:
    """A run, a lease renewal and a model call that hang delay the end of the worker only once."""
    goes_on = threading.Event()

    async def hang() -> None:
        goes_on.wait(60)

    run = stage.run([["ledger_read"]] * 20, tool_sleep_s=0.3)
    worker = Worker()
    driving = threading.Thread(target=drive, args=[worker, run], daemon=True)
    try:
        driving.start()
        eventually(stage.effects, why="the run is under way")
        worker.loop.submit(hang())
        with database_that_hangs(stage):
            began = time.monotonic()
            worker.close(2)
            took = time.monotonic() - began
    finally:
        goes_on.set()
        worker.close(30)
        driving.join(30)
    # It ended only after its deadline, so something did hang.
    assert 2 <= took < 2 + 2 * THREADS_END_S + 5
    assert not driving.is_alive()


def drive(worker: Worker, run: AgentRun) -> None:
    try:
        worker.drive(run.pk)
    finally:
        connections.close_all()
