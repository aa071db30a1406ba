"""Kill workers in a tree of runs: no child is created twice, and the parent gets all results in order."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from runs import chaos
from runs.actions import run_actions
from runs.models import AgentRun, AgentRunToolCall
from runs.statuses import RunStatus
from tests.support.run_checks import check, events
from tests.support.stage import Stage
from tests.support.timing import eventually

LEAD = [["spawn_agents"]]
#: Seconds, longer than any test.
FOREVER_S = 600


def lead(stage: Stage, *slugs: str, **more: Any) -> AgentRun:
    """Create a queued run that delegates to these agents."""
    request = {"tasks": [{"agent": slug, "prompt": f"Do what {slug} does."} for slug in slugs], **more}
    return stage.run(LEAD, arguments={"spawn_agents": request}, tools=["spawn_agents"])


def child(slug: str) -> AgentRun:
    """Return the newest run of this agent's child, once it exists."""
    runs = AgentRun.objects.filter(parent_run__isnull=False, agent__slug=slug).order_by("-pk")
    found: AgentRun = eventually(runs.first, why=f"{slug} is started")
    return found


def call_of(run: AgentRun) -> AgentRunToolCall:
    return AgentRunToolCall.objects.get(run=run, tool_name="spawn_agents")


def deadline_passes(run: AgentRun) -> None:
    """Move the deadline of the call into the past."""
    past = timezone.now() - timedelta(seconds=FOREVER_S + 1)
    AgentRun.objects.filter(pk=run.pk, status="waiting").update(not_before=past)
    AgentRunToolCall.objects.filter(run=run).update(started_at=past)


def test_three_children_end_in_three_ways_across_a_restart_of_all_workers(stage: Stage) -> None:
    """One fails, one times out, one is paused and resumed by an operator: three results, in the order of the tasks."""
    stage.agent([[]], slug="fails", tools=["done"], policies={"on_idle": "fail"})
    stage.agent([[]], slug="late", chunks=FOREVER_S, pause_s=1.0)
    stage.agent([["ledger_once"], ["ledger_read"]], slug="resumed", chunks=2, pause_s=0.5)
    first, second = stage.worker(), stage.worker()
    run = lead(stage, "late", "resumed", "fails", timeout_s=FOREVER_S)
    stage.reaches(child("fails"), RunStatus.FAILED)
    paused = child("resumed")
    run_actions.pause("user:oscar", paused)
    stage.reaches(paused, RunStatus.PAUSED)
    stage.reaches(run, RunStatus.WAITING)
    assert run.lease_owner is None

    for worker in (first, second):
        worker.signal(stage.KILL)
    stage.worker()
    successor = run_actions.resume("user:oscar", paused).run
    stage.reaches(successor, RunStatus.COMPLETED)
    assert stage.reaches(run, RunStatus.WAITING).status_reason == "children"
    deadline_passes(run)
    stage.reaches(run, RunStatus.COMPLETED)

    outcomes = json.loads(call_of(run).output)
    assert [(each["agent"], each["status"]) for each in outcomes] == [
        ("late", "timed_out"),
        ("resumed", "completed"),
        ("fails", "failed"),
    ]
    assert outcomes[1]["run_id"] == str(successor.pk)
    assert [
        (event.payload["index"], event.payload["status"])
        for event in events(run)
        if event.type == "child_run.completed"
    ] == [(0, "timed_out"), (1, "completed"), (2, "failed")]
    late = stage.reaches(child("late"), RunStatus.STOPPED)
    assert len(stage.effects("call-1-0")) == 1
    for each in (run, paused, successor, late, child("fails")):
        check(each)


@pytest.mark.parametrize("point", chaos.TREE_POINTS)
def test_a_tree_survives_a_kill_between_a_parent_and_its_children(stage: Stage, point: str) -> None:
    stage.agent([["ledger_once"]], slug="one")
    stage.agent([[]], slug="two")
    # With one slot: otherwise a child may end while the other runs its tool, whose outcome would then be unknown.
    first = stage.worker(chaos=point, slots=1)
    run = lead(stage, "one", "two")
    first.killed()
    stage.worker()
    stage.reaches(run, RunStatus.COMPLETED)

    assert [each["agent"] for each in json.loads(call_of(run).output)] == ["one", "two"]
    assert AgentRun.objects.filter(parent_run=run).count() == 2
    assert len(stage.effects("call-1-0")) == 1
    for each in AgentRun.objects.all():
        check(each)


@pytest.mark.parametrize("point", ["child.ended", "parent.in_transaction"])
def test_a_tree_survives_a_kill_between_a_pausing_child_and_its_parent(stage: Stage, point: str) -> None:
    stage.agent([["ledger_read"]], slug="pauses", max_steps=1)
    first = stage.worker(chaos=point, slots=1)
    run = lead(stage, "pauses")
    first.killed()
    stage.worker()
    stage.reaches(run, RunStatus.COMPLETED)

    [outcome] = json.loads(call_of(run).output)
    assert (outcome["run_id"], outcome["status"], outcome["reason"]) == (str(child("pauses").pk), "paused", "max_steps")
    assert [event.payload["phase"] for event in events(run) if event.type == "child_run.phase"] == ["paused"]
    for each in AgentRun.objects.all():
        check(each)
