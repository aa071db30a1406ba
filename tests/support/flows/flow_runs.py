"""Flow runs on the database, driven by a worker of this process."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentops.accounts.models import Project
from runs.actions import flow_definitions, flow_run_actions
from runs.fixtures import library
from runs.flows import runner
from runs.lifecycle import transitions
from runs.models import AgentRun, Flow, FlowRun
from runs.statuses import RunStatus
from runs.worker.in_process import advance_ready
from runs.worker.worker import Worker
from tests.support.factories import make_agent, make_project
from timeline import log
from timeline.events.run import RunFailed
from timeline.models import Source


def record_answers(folder: Path, name: str, answers: Sequence[str]) -> None:
    """Write a recording of a model that gives these answers, one per call."""
    calls = [
        {"input": {"prompt": "any"}, "output": {"text": text, "usage": {}, "durationMs": 1}, "events": []}
        for text in answers
    ]
    (folder / f"{name}.json").write_text(json.dumps({"calls": calls}))
    # The process caches recordings by name, and another test may have used this name.
    library.load.cache_clear()


def make_flow(definition: Mapping[str, Any], project: Project | None = None) -> Flow:
    flow, _ = flow_definitions.apply(project or make_project(), {"flow_id": "sample", **definition}, by="test")
    return flow


def make_flow_run(
    definition: Mapping[str, Any], project: Project | None = None, inputs: Mapping[str, Any] | None = None
) -> FlowRun:
    return flow_run_actions.create("test", make_flow(definition, project), inputs or {})


#: A flow that needs neither an agent nor a worker.
CONSTANT = {"flow_id": "sample", "nodes": [{"id": "a", "type": "constant", "value": 1}]}


def make_ended_flow_run(project: Project) -> FlowRun:
    """Create a completed flow run with only a constant node."""
    flow_run = make_flow_run(CONSTANT, project)
    runner.advance(flow_run.pk)
    return FlowRun.objects.get(pk=flow_run.pk)


#: A flow that fails without a failed node: its loop exceeds the limit.
OVERRUN: dict[str, Any] = {
    "title": "Never enough",
    "nodes": [{"id": "a", "type": "constant", "value": 1}, {"id": "b", "type": "constant", "value": 2}],
    "edges": [{"from": "a", "to": "b"}, {"from": "b", "to": "a", "when": "outputs.a == `1`", "maxIterations": 2}],
}


def make_failed_flow_run(project: Project, flow_id: str = "sample") -> FlowRun:
    """Create a flow run that has failed although none of its nodes failed."""
    flow_run = make_flow_run({**OVERRUN, "flow_id": flow_id}, project)
    runner.advance(flow_run.pk)
    failed = FlowRun.objects.get(pk=flow_run.pk)
    assert (failed.status, failed.error_type, failed.failed_run_id) == ("failed", "loop_exceeded", None)
    return failed


def make_flow_run_with_failed_node(project: Project) -> tuple[FlowRun, AgentRun]:
    """Create a flow run that has failed because the run of its only node failed. Return both."""
    make_writer(project, "breaker", fixture="claude-code-5c")
    nodes = [{"id": "draft", "type": "agent", "agent": "breaker", "prompt": "Write"}]
    flow_run = make_flow_run({"flow_id": "fragile", "nodes": nodes}, project)
    runner.advance(flow_run.pk)
    claimed = transitions.claim(run_of(flow_run, "draft").pk, "worker")
    assert claimed is not None
    end = RunFailed(error_type="tool_error", error="The disk is full.")
    changes = {"error_type": "tool_error", "error_message": "The disk is full."}
    transitions.move(claimed.run, RunStatus.FAILED, end, source=Source.WORKER, epoch=1, reason="tool_error", **changes)
    runner.advance(flow_run.pk)
    failed = FlowRun.objects.get(pk=flow_run.pk)
    assert (failed.status, failed.failed_run_id) == ("failed", claimed.run.pk)
    return failed, AgentRun.objects.get(pk=claimed.run.pk)


def make_writer(project: Project, slug: str = "writer", **fields: Any) -> Any:
    return make_agent(project, slug=slug, fixture=fields.pop("fixture", slug), tools=[], **fields)


def play(flow_run: FlowRun, worker: Worker, *, until: Callable[[FlowRun], bool] = lambda flow_run: False) -> FlowRun:
    """Advance a flow run and drive its runs until it ends or makes no progress."""
    for _ in range(1000):
        runner.advance_due()
        fresh = FlowRun.objects.get(pk=flow_run.pk)
        if fresh.state.terminal or until(fresh):
            return fresh
        if not advance_ready(worker) and not FlowRun.objects.due().filter(pk=flow_run.pk).exists():
            return fresh
    raise AssertionError("the flow run moves for ever")


def run_of(flow_run: FlowRun, key: str) -> AgentRun:
    """Return the run that holds the conversation of a visit now."""
    session = flow_run.visits.get(key=key).session_id
    return AgentRun.objects.exclude(status=RunStatus.RESUMED).get(root_run=session)


def events_of(flow_run: FlowRun, *types: str) -> list[Any]:
    return [event for event in log.events_of(flow_run.pk) if not types or event.type in types]


def types_of(flow_run: FlowRun) -> list[str]:
    return [event.type for event in events_of(flow_run)]
