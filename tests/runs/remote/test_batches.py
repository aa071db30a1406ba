"""Operations of several runs in one request: they have the effects of separate requests, and none waits for another."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import connection, transaction

from agentops.accounts.models import Project
from runs.lifecycle import inbox
from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall, Checkpoint, RemoteStep, TurnUsage
from tests.support.factories import make_project
from tests.support.remote import Program
from tests.support.remote_samples import ANSWER
from timeline.models import Event

pytestmark = pytest.mark.django_db(transaction=True)
ALONE = {"alone": True}


@pytest.fixture
def project(db: None) -> Project:
    return make_project()


def holders(project: Project, count: int) -> list[Program]:
    """Return the process once for each of its runs."""
    programs = [Program(project) for _ in range(count)]
    for program in programs:
        program.start_run()
        assert program.claim() is not None
    return programs


def together(programs: list[Program], *args: Any, **fields: Any) -> list[Any]:
    """Send the same operation about each run, and return the answers."""
    return send(programs[0], *(program.entry(*args, **fields) for program in programs))


def send(program: Program, *entries: dict[str, Any]) -> list[Any]:
    answer = program.post("steps", runs=list(entries))
    assert answer.status == 200, answer
    return list(answer.json["runs"])


def converse(post: Any) -> None:
    """Make a step with a model call and its tool call, a plain step, and a failing step. `post` sends an operation."""
    post("start", "1", kind="model", name="claude-sonnet-4-5")
    post("text", "1", text="The invoice ")
    post("finish", "1", value=ANSWER, answer=ANSWER, duration_ms=900)
    post("start", "call:toolu_1", kind="tool", name="charge", input={"cents": 120_000})
    post("finish", "call:toolu_1", value="x" * 70_000, duration_ms=12)
    post("start", "2", kind="step", name="mail", effect="read", input={"to": "ada@example.org"})
    post("fail", "2", error={"type": "OSError", "message": "no answer"}, final=True)
    post("receive", "3")
    post("start", "4", kind="step", name="report", effect="read")
    post("finish", "4", value={"token": "Bearer ghp_0123456789abcdefghijABCDEFGHIJ012345"})


def rows_of(run: AgentRun) -> list[Any]:
    """Return the stored rows of a run, without IDs and times."""
    calls = AgentRunToolCall.objects.filter(run=run).order_by("id")
    usages = TurnUsage.objects.filter(run=run).order_by("step_number")
    messages = AgentRunMessage.objects.filter(run=run).order_by("position")
    return [
        (run.step_count, run.input_tokens, run.output_tokens, run.cost_usd, run.status),
        [(m.position, m.role, m.step_number, m.epoch) for m in messages],
        [(c.call_id, c.status, c.starts, c.output, c.output_bytes, c.step_number, c.duration_ms) for c in calls],
        [(s.position, s.key, s.state, s.value, s.error, s.step_number, s.finished_at is None) for s in steps_of(run)],
        [(c.step_number, c.last_message_position) for c in Checkpoint.objects.filter(run=run).order_by("step_number")],
        [(u.step_number, u.input_tokens, u.cost_usd) for u in usages],
        [(e.seq, e.type, e.step, e.sanitized) for e in Event.objects.filter(log=run.pk).order_by("seq")],
    ]


def steps_of(run: AgentRun) -> list[RemoteStep]:
    return list(RemoteStep.objects.filter(run=run).order_by("position"))


@pytest.mark.every_database
def test_a_shared_request_has_the_effects_of_separate_ones(project: Project) -> None:
    programs = holders(project, 3)
    alone = holders(project, 1)[0]
    converse(alone.op)

    answers: list[Any] = []
    converse(lambda *args, **fields: answers.append(together(programs, *args, **fields)))

    assert [answer for each in answers for answer in each if answer == ALONE] == []
    assert answers[-1][0]["results"][0]["value"]["token"] != "Bearer ghp_0123456789abcdefghijABCDEFGHIJ012345"
    expected = rows_of(alone.run)
    assert [rows_of(program.run) for program in programs] == [expected] * 3


@pytest.mark.every_database
def test_several_operations_of_a_run_are_carried_out_in_order(project: Project) -> None:
    first, second = holders(project, 2)
    together([first, second], "start", "1", kind="step", name="plan", effect="read")
    entry = first.entry("finish", "1", value=1)
    entry["ops"] += [
        {"op": "start", "key": "2", "kind": "step", "name": "write", "may_release": False},
        {"op": "log", "type": "x.progress", "payload": {"done": 1}},
        {"op": "finish", "key": "2", "value": 2},
    ]

    answers = send(first, entry, second.entry("finish", "1", value=1))

    assert [result.get("state") for result in answers[0]["results"]] == ["done", "run", None, "done"]
    assert [(step.key, step.value) for step in steps_of(first.run)] == [("1", "1"), ("2", "2")]
    assert (first.run.step_count, second.run.step_count) == (2, 1)


@pytest.mark.every_database
def test_operations_that_may_wait_need_a_separate_request(project: Project) -> None:
    programs = holders(project, 5)
    waiting, approved, stopped, lost, free = programs
    inbox.stop(stopped.run.pk, by="oscar", key="1")
    lost.epoch += 1
    start = {"kind": "step", "name": "plan"}

    answers = send(
        free,
        waiting.entry("start", "1", kind="approval", name="charge", input={"cents": 5}),
        approved.entry("start", "1", needs_approval=True, **start),
        stopped.entry("start", "1", **start),
        lost.entry("start", "1", **start),
        free.entry("start", "1", **start),
        free.entry("start", "2", **start),
    )

    assert [answer == ALONE for answer in answers] == [True, True, True, True, False, True]
    assert RemoteStep.objects.count() == 1
    assert stopped.start("1")["state"] == "released"
    assert lost.send({"op": "start", "key": "1", **start}).json["code"] == "lease_lost"


def test_operations_do_not_overtake_earlier_ones_of_their_run(project: Project) -> None:
    """The first entry about the run has to wait, so the second is not carried out either."""
    [program] = holders(project, 1)

    answers = send(
        program,
        program.entry("start", "1", kind="approval", name="charge"),
        program.entry("start", "2", kind="step", name="plan"),
    )

    assert answers == [ALONE, ALONE]
    assert not RemoteStep.objects.exists()


def test_rules_and_hooks_decide_in_a_separate_request(project: Project) -> None:
    ruled, free = holders(project, 2)
    AgentRun.objects.filter(pk=ruled.run.pk).update(
        agent_config=ruled.run.agent_config | {"policies": {"approvals": [{"tools": "plan", "action": "deny"}]}}
    )

    answers = together([ruled, free], "start", "1", kind="step", name="plan")

    assert [answer == ALONE for answer in answers] == [True, False]


@pytest.mark.every_database
def test_a_refused_operation_leaves_nothing_behind(project: Project) -> None:
    first, second = holders(project, 2)

    answers = send(first, first.entry("start", "1", kind="step", name="plan"), second.entry("finish", "9", value=1))

    assert answers == [ALONE, ALONE]
    assert not RemoteStep.objects.exists()
    assert second.send({"op": "finish", "key": "9", "value": 1}).json["code"] == "step_not_started"


@pytest.mark.every_database
def test_a_run_at_its_limit_is_released_by_a_separate_request(project: Project) -> None:
    first, second = holders(project, 2)
    AgentRun.objects.filter(pk=first.run.pk).update(step_count=1_000_000)

    assert together([first, second], "start", "1", kind="step", name="plan") == [ALONE, ALONE]
    assert first.start("1")["state"] == "released"
    assert second.start("1")["state"] == "run"


def test_runs_of_other_projects_are_not_found(project: Project) -> None:
    [own] = holders(project, 1)
    [foreign] = holders(make_project(), 1)

    answers = together([own, foreign], "start", "1", kind="step", name="plan")

    assert [answer == ALONE for answer in answers] == [False, True]
    assert not steps_of(foreign.run)


@pytest.mark.postgres
def test_a_locked_run_does_not_hold_up_the_others(project: Project) -> None:
    locked, free = holders(project, 2)
    is_locked, is_answered = threading.Event(), threading.Event()

    def hold_lock() -> None:
        try:
            with transaction.atomic():
                AgentRun.objects.select_for_update().get(pk=locked.run_id)
                is_locked.set()
                is_answered.wait(30)
        finally:
            connection.close()

    thread = threading.Thread(target=hold_lock)
    thread.start()
    assert is_locked.wait(30)
    try:
        answers = together([locked, free], "start", "1", kind="step", name="plan")
    finally:
        is_answered.set()
        thread.join()

    assert [answer == ALONE for answer in answers] == [True, False]
    assert locked.start("1")["state"] == "run"
