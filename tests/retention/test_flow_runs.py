"""Retention of flow runs: they are deleted with the runs of their nodes, and kept while any of these is needed."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from agentops.accounts.access import SYSTEM
from agentops.accounts.models import Project
from runs.access import flow_run_for
from runs.actions import flow_run_actions
from runs.errors import RunExpired
from runs.flows import runner
from runs.models import AgentRun, FlowRun
from runs.upkeep import invariants, retention
from runs.upkeep.run_groups import RetentionReason
from tests.support.flows import make_ended_flow_run, make_flow_run, run_of
from tests.support.upkeep import BY, aged, apply, rows_of
from timeline.models import Tombstone

QUESTIONS = {"nodes": [{"id": name, "type": "human", "question": "Go on?"} for name in ("a", "b")]}
LONG_AGO = timedelta(days=100)


def open_flow_run(project: Project) -> FlowRun:
    flow_run = make_flow_run(QUESTIONS, project)
    runner.advance(flow_run.pk)
    return FlowRun.objects.get(pk=flow_run.pk)


def stopped_long_ago(project: Project) -> tuple[FlowRun, list[AgentRun]]:
    flow_run = open_flow_run(project)
    runs = [run_of(flow_run, name) for name in ("a", "b")]
    flow_run_actions.stop("test", flow_run)
    for run in runs:
        aged(run, 100)
    FlowRun.objects.filter(pk=flow_run.pk).update(completed_at=timezone.now() - LONG_AGO)
    return flow_run, runs


@pytest.mark.django_db
def test_a_flow_run_is_deleted_with_all_its_runs(project: Project) -> None:
    flow_run, runs = stopped_long_ago(project)
    alone = make_ended_flow_run(project)
    FlowRun.objects.filter(pk=alone.pk).update(completed_at=timezone.now() - LONG_AGO)
    kept = make_ended_flow_run(project)
    foreseen = retention.preview(project, 90)

    report = apply(project)

    assert (report.rows["flow_runs"], report.runs, report.rows["flow_visits"]) == (2, 2, 3)
    assert {table: foreseen.rows[table] for table in report.rows} | {"timeline_log": report.rows["timeline_log"]} == (
        dict(report.rows)
    )
    for gone in (flow_run, alone, *runs):
        assert rows_of(gone.pk) == {}
    assert Tombstone.objects.get(pk=flow_run.pk).facts == {"flow_id": "sample", "status": "stopped"}
    with pytest.raises(RunExpired):
        flow_run_for(SYSTEM, flow_run.pk)
    assert flow_run_for(SYSTEM, kept.pk) == kept
    assert invariants.check() == []


@pytest.mark.django_db
def test_an_open_or_held_flow_run_keeps_its_runs(project: Project) -> None:
    open_one = open_flow_run(project)
    aged(run_of(open_one, "a"), 100)
    _, held = stopped_long_ago(project)
    retention.hold(held[0].pk, reason="claim 4711", by=BY)

    report = apply(project)

    assert report.kept_groups == {RetentionReason.NEEDED: 1, RetentionReason.HELD: 1}
    assert not report.rows
    assert (FlowRun.objects.count(), AgentRun.objects.count()) == (2, 4)
