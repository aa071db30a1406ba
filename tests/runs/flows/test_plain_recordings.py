"""Flows on recordings in the plain form: each call is a visit of a node."""

from __future__ import annotations

import pytest
from pytest_django import Settings

from runs.fixtures import fixture_files
from runs.models import AgentRunMessage
from runs.worker.worker import Worker
from tests.support.factories import make_agent, make_project
from tests.support.flows import make_flow_run, play, run_of
from tests.support.recordings import recording

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("no_hints")]
Role = AgentRunMessage.Role


def test_a_plain_call_is_a_visit_of_its_node(transactional_db: None, worker: Worker, settings: Settings) -> None:
    """Reads the workflow folder of a user: later calls are for later iterations."""
    settings.AGENTOPS_FIXTURES = [str(recording("fixtures-format"))]
    fixture_files.load_named.cache_clear()
    project = make_project()
    for name in ("task-agent", "verifier-agent"):
        make_agent(project, slug=name, fixture="workflow-abc")
    nodes = [
        {"id": "task_agent", "type": "agent", "agent": "task-agent", "prompt": "Analyze the task list..."},
        {
            "id": "verifier_agent",
            "type": "agent",
            "agent": "verifier-agent",
            "prompt": "Verify: {{ outputs.task_agent }}",
        },
    ]
    loop = {"from": "verifier_agent", "to": "verifier_agent", "maxIterations": 2}
    edges = [{"from": "task_agent", "to": "verifier_agent"}, loop]

    lacking = {**loop, "when": "contains(outputs.verifier_agent, 'lack')"}
    ended = play(make_flow_run({"nodes": nodes, "edges": [edges[0], lacking]}, project), worker)
    stuck = play(make_flow_run({"nodes": nodes, "edges": edges}, project), worker)

    assert (ended.status, ended.snapshot["loopCounters"]) == ("completed", {"verifier_agent->verifier_agent": 1})
    assert ended.snapshot["outputs"]["verifier_agent"] == "All tasks have an owner now."
    first, second = (run_of(ended, key) for key in ("verifier_agent", "verifier_agent#1"))
    assert first.result == "Two tasks lack an owner."
    assert [row.role for row in first.messages.order_by("position")] == [Role.USER, Role.ASSISTANT, Role.TOOL_RESULT]
    assert [row.role for row in second.messages.order_by("position")] == [Role.USER, Role.ASSISTANT]
    paused = run_of(stuck, "verifier_agent#2")
    assert (paused.status, paused.error_message) == ("paused", "No fixture for verifier_agent call 2")
