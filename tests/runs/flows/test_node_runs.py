"""Tool nodes and human nodes: their runs handle crashes, pauses and answers like all runs."""

from __future__ import annotations

import json

import pytest
from pytest_django import Settings

from agentops.accounts.models import Project
from runs import chaos
from runs.actions import flow_commands, flow_run_actions, run_actions
from runs.actions.unknown_calls import OutcomeChoice
from runs.engine.results import ShutdownDue
from runs.flows import runner
from runs.models import AgentRunToolCall, FlowRun
from runs.queries.flow_states import snapshot_at
from runs.queries.needs import count_of
from runs.statuses import Effect
from runs.tools.catalogue import TOOLS
from runs.tools.functions import tool
from runs.worker.in_process import advance_ready
from runs.worker.worker import Worker
from tests.support.factories import make_project
from tests.support.flows import make_flow_run, make_writer, play, run_of, types_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("no_hints")]
calls: list[int] = []


@pytest.fixture
def project(transactional_db: None) -> Project:
    calls.clear()
    return make_project()


@pytest.fixture(params=[Effect.READ, Effect.AT_MOST_ONCE])
def counted_tool(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Effect:
    @tool(effect=request.param, name="count_calls")
    def count_calls(by: int) -> str:
        """Count."""
        calls.append(by)
        return json.dumps({"total": sum(calls)})

    known = TOOLS.get
    monkeypatch.setattr(TOOLS, "get", lambda name: count_calls if name == count_calls.name else known(name))
    return request.param


TOOL = {
    "nodes": [
        {"id": "count", "type": "tool", "tool": "count_calls", "arguments": {"by": "{{ inputs.by }}"}},
        {"id": "after", "type": "constant", "value": "{{ outputs.count.total }}"},
    ],
    "edges": [{"from": "count", "to": "after"}],
}
QUESTION = {
    "nodes": [
        {"id": "ask", "type": "human", "question": "Go on with {{ inputs.what }}?", "choices": ["yes", "no"]},
        {"id": "after", "type": "constant", "value": "{{ outputs.ask }}"},
    ],
    "edges": [{"from": "ask", "to": "after"}],
}


def test_the_output_of_a_tool_is_a_value(project: Project, worker: Worker, counted_tool: Effect) -> None:
    ended = play(make_flow_run(TOOL, project, {"by": 4}), worker)

    assert (ended.status, ended.snapshot["outputs"]) == ("completed", {"count": {"total": 4}, "after": 4})


def test_a_lost_call_runs_again_or_waits_for_a_person(
    project: Project, worker: Worker, counted_tool: Effect, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow_run = make_flow_run(TOOL, project, {"by": 4})

    def leave(point: str) -> None:
        if point == "tool.returned" and len(calls) == 1:
            raise ShutdownDue

    with monkeypatch.context() as patch:
        patch.setattr(chaos, "point", leave)
        after = play(flow_run, worker)
    assert calls[:1] == [4]
    if counted_tool is Effect.READ:
        after = play(after, worker)
        assert (after.status, calls) == ("completed", [4, 4])
        return
    after = play(after, worker)
    node_run = run_of(after, "count")
    assert (after.status, node_run.status, node_run.status_reason) == ("running", "waiting", "unknown_tool")
    call = AgentRunToolCall.objects.get(run=node_run)
    run_actions.resolve_call("user:oscar", node_run, call.pk, OutcomeChoice.DONE, text='{"total": 40}')

    ended = play(after, worker)

    assert (ended.status, calls) == ("completed", [4])
    assert ended.snapshot["outputs"]["after"] == 40


def test_a_node_may_set_more_steps_than_the_cap(project: Project, settings: Settings) -> None:
    """Definitions allow it, like definitions of agents. The run stops at the cap."""
    make_writer(project, "coder", fixture="claude-code-5c")
    node = {"id": "code", "type": "agent", "agent": "coder", "prompt": "Go.", "maxSteps": 1_000_000}
    flow_run = make_flow_run({"nodes": [node]}, project)
    runner.advance(flow_run.pk)

    assert run_of(flow_run, "code").max_steps == settings.AGENTOPS_MAX_TOTAL_STEPS


def test_a_failed_tool_fails_its_node(project: Project, worker: Worker, counted_tool: Effect) -> None:
    ended = play(make_flow_run(TOOL, project, {"by": "four"}), worker)

    assert (ended.status, ended.error_type) == ("failed", "tool_error")
    assert ended.snapshot["nodeStatus"] == {"count": "failed", "after": "pending"}


def test_a_question_waits_in_the_inbox_and_its_answer_is_the_output(project: Project, worker: Worker) -> None:
    waiting = play(make_flow_run(QUESTION, project, {"what": "it"}), worker)
    question = run_of(waiting, "ask")

    assert (waiting.status, count_of(project.pk).total) == ("waiting", 1)
    flow_commands.command("user:oscar", waiting, {"type": "reply", "runId": str(question.pk), "message": "yes"})
    ended = play(waiting, worker)

    assert (ended.status, ended.snapshot["outputs"]) == ("completed", {"ask": "yes", "after": "yes"})
    assert snapshot_at(ended) == ended.snapshot


def test_a_question_can_be_answered_while_its_flow_is_paused(project: Project, worker: Worker) -> None:
    waiting = play(make_flow_run(QUESTION, project, {"what": "it"}), worker)
    paused = flow_run_actions.pause("user:oscar", waiting)
    question = run_of(paused, "ask")

    assert question.status == "waiting"
    run_actions.reply("user:oscar", question, "no")
    assert play(paused, worker).status == "paused"
    advance_ready(worker)
    assert run_of(paused, "ask").status == "completed"
    ended = play(flow_run_actions.resume("user:oscar", FlowRun.objects.get(pk=paused.pk)), worker)

    assert (ended.status, ended.snapshot["outputs"]["after"]) == ("completed", "no")
    assert types_of(ended).count("flow.resumed") == 1
    assert snapshot_at(ended) == ended.snapshot


def test_a_question_is_repeated_after_its_run_was_paused(project: Project, worker: Worker) -> None:
    waiting = play(make_flow_run(QUESTION, project, {"what": "it"}), worker)
    run_actions.pause("user:oscar", run_of(waiting, "ask"))
    run_actions.resume("user:oscar", run_of(waiting, "ask"))

    again = play(waiting, worker)

    question = run_of(again, "ask")
    assert (question.status, question.status_reason) == ("waiting", "input")
    run_actions.reply("user:oscar", question, "yes")
    assert play(again, worker).snapshot["outputs"]["after"] == "yes"
