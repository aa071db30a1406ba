"""Kill a worker while a policy applies: another worker continues, and the policy applies once."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from runs.lifecycle import inbox
from runs.models import AgentRun, AgentRunMessage, RunCommand
from runs.statuses import RunStatus
from runs.upkeep import invariants
from runs.upkeep.replay_check import differences
from tests.support.run_checks import check, events
from tests.support.stage import Stage
from tests.support.timing import eventually

#: A script whose model calls no tool and answers with text only, so that idle policies apply.
SILENT: list[list[str]] = []


def run_with(stage: Stage, calls: list[list[str]], *, tools: list[str] | None = None, **policies: Any) -> AgentRun:
    """Create a queued run whose agent has policies. Call it before any worker is started."""
    assert not stage.workers
    run = stage.run(calls)
    run.agent_config["policies"] = policies
    run.agent_config["tools"] = [*run.agent_config["tools"], *(tools or [])]
    run.save(update_fields=["agent_config"])
    return run


def lineage(run: AgentRun) -> list[AgentRun]:
    return list(AgentRun.objects.filter(root_run=run.root_run_id).order_by("pk"))


def in_order(run: AgentRun) -> None:
    for each in lineage(run):
        check(each)
        assert differences(each.pk) == []
    assert [v for v in invariants.check() if not v.warning_only] == []


def types(run: AgentRun) -> list[str]:
    return [event.type for event in events(run)]


def successor(stage: Stage, run: AgentRun) -> AgentRun:
    return eventually(lambda: AgentRun.objects.filter(resumed_from=run).first(), why="the policy resumes it")


def test_a_run_is_resumed_although_a_worker_is_killed_in_the_cooldown(stage: Stage) -> None:
    """No worker holds the run while it waits, so no worker's death matters."""
    run = run_with(stage, [["ledger_read"]], on_dead={"action": "resume", "cooldown": "2s"})
    stage.worker(chaos="tool.running:1").killed()
    second = stage.worker()
    stage.reaches(run, RunStatus.WAITING)
    assert run.status_reason == "on_dead"
    second.signal(stage.KILL)
    second.killed()
    assert lineage(run) == [run]
    third = stage.worker()

    new = successor(stage, run)
    stage.reaches(new, RunStatus.COMPLETED)
    assert third.alive
    assert [each.status for each in lineage(run)] == [RunStatus.RESUMED, RunStatus.COMPLETED]
    in_order(run)


@pytest.mark.parametrize("point", ["command.in_transaction", "command.committed"])
def test_a_run_is_resumed_once_although_the_sweep_is_killed(stage: Stage, point: str) -> None:
    """A kill in the transaction loses the resume. After the commit the new run is queued, although no hint was sent."""
    run = run_with(stage, [["ledger_read"]], on_dead={"action": "resume", "cooldown": "1s"})
    stage.worker(chaos="tool.running:1").killed()
    stage.worker(chaos=f"{point}:1").killed()
    run.refresh_from_db()
    assert (run.status, len(lineage(run))) == {
        "command.in_transaction": (RunStatus.WAITING, 1),
        "command.committed": (RunStatus.RESUMED, 2),
    }[point]
    in_order(run)
    stage.worker()
    stage.worker()

    stage.reaches(successor(stage, run), RunStatus.COMPLETED)
    assert len(lineage(run)) == 2
    in_order(run)


@pytest.mark.parametrize("point", ["model.before_start:2", "model.before_call:2", "turn.in_transaction:2"])
def test_a_nudge_is_delivered_once(stage: Stage, point: str) -> None:
    """Kill the worker between the commit of the nudge and the answer to it."""
    run = run_with(stage, SILENT, tools=["done"], on_idle={"action": "nudge", "message": "Go on."})
    stage.worker(chaos=point).killed()
    assert RunCommand.objects.filter(run=run).count() == 1
    stage.worker()

    stage.reaches(run, RunStatus.PAUSED)
    assert run.status_reason == "escalated"
    said = AgentRunMessage.objects.filter(run=run, role="user").order_by("position")
    assert [row.content["parts"][0]["content"] for row in said] == ["Go.", "Go on."]
    assert types(run).count("policy.applied") == 2
    assert types(run).count("command.received") == 1
    in_order(run)


@pytest.mark.parametrize("point", ["tool.running", "tool.returned", "end.before", "end.in_transaction"])
def test_a_gate_runs_again_after_a_kill(stage: Stage, point: str) -> None:
    """Kill the worker before, during or after the gate, and before its verdict is committed."""
    asked = stage.home / "asked"
    code = f"open('{asked}', 'a').write('x')"
    run = run_with(stage, SILENT, tools=["done"], on_idle={"action": "gate", "run": f'{sys.executable} -c "{code}"'})
    allowed = {"AGENTOPS_GATE_COMMANDS": sys.executable}
    stage.worker(chaos=f"{point}:1", **allowed).killed()
    run.refresh_from_db()
    assert run.status == RunStatus.RUNNING
    assert "policy.applied" not in types(run)
    stage.worker(**allowed)

    stage.reaches(run, RunStatus.COMPLETED)
    assert asked.read_text() == ("x" if point == "tool.running" else "xx")
    assert types(run).count("policy.applied") == 1
    in_order(run)


def test_a_question_survives_the_death_of_each_worker(stage: Stage) -> None:
    """Kill the worker while the run waits, and the next one after the answer."""
    run = run_with(stage, [["ledger_read", "ask_user"]], tools=["ask_user"])
    first = stage.worker()
    stage.reaches(run, RunStatus.WAITING)
    assert run.status_reason == "input"
    first.signal(stage.KILL)
    first.killed()
    in_order(run)
    inbox.reply(run.pk, "The blue one.", by="user:oscar")
    stage.worker(chaos="claim.committed:1").killed()
    stage.worker()

    stage.reaches(run, RunStatus.COMPLETED)
    results = AgentRunMessage.objects.filter(run=run, role="tool_result").order_by("position")
    assert [row.content["parts"][0]["content"] for row in results] == ["did 10", "The blue one."]
    in_order(run)
