"""Workers are killed at random points under a flow with a loop, a forEach, a question and two agents.

The flow ends as if nothing had happened. `make chaos-flows` plays more seeds.
"""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest
from pytest_django import Settings

from agentops.projects.models import Project
from runs import chaos
from runs.actions import run_actions
from runs.actions.flows import flow_run_actions
from runs.errors import RunRefusal
from runs.models import AgentRun, AgentRunToolCall, FlowRun
from runs.statuses import RunStatus
from runs.upkeep.replay_check import flow_differences
from runs.worker.worker import Worker
from tests.support.factories import make_project
from tests.support.flows.flow_runs import events_of, make_flow_run, make_writer, play, record_answers, run_of
from tests.support.processes.stage import Stage
from tests.support.run_checks import check

SEEDS = range(int(os.environ.get("FLOW_SEEDS", "1")))
KILLS = 5
WITHIN_S = 150
#: Those of flows come up most often, since the others have tests of their own.
POINTS = [*chaos.FLOW_POINTS] * 3 + [
    *("claim.committed", "model.before_call", "model.answered", "turn.in_transaction", "turn.committed"),
    *("checkpoint.in_transaction", "end.in_transaction", "end.committed", "tool.marked_running", "tool.returned"),
]
DEFINITION = {
    "nodes": [
        {"id": "topics", "type": "constant", "value": ["one", "two"]},
        {"id": "draft", "type": "agent", "agent": "writer", "prompt": "Draft, after {{ state.drafts }}"},
        {
            "id": "review", "type": "agent", "agent": "critic", "prompt": "Judge {{ outputs.draft }}",
            "state": {"set": {"drafts": "{{ [outputs.draft, output] }}"}},
        },
        {"id": "gate", "type": "human", "question": "Publish {{ outputs.draft }}?"},
        {"id": "count", "type": "tool", "tool": "ledger_read", "arguments": {"n": 1}, "settings": {"ledger": "LEDGER"}},
        {"id": "publish", "type": "agent", "agent": "writer", "prompt": "Publish for {{ item }}"},
    ],
    "edges": [
        {"from": "draft", "to": "review"},
        {"from": "review", "to": "draft", "when": "outputs.review == 'again'", "maxIterations": 4},
        {"from": "review", "to": "gate"},
        {"from": "gate", "to": "count", "when": "outputs.gate == 'yes'"},
        {"from": "count", "to": "publish"},
        {"from": "topics", "to": "publish", "forEach": {"in": "outputs.topics"}},
    ],
    "state": {"drafts": []},
}  # fmt: skip


def shape(flow_run: FlowRun) -> dict[str, Any]:
    """The final snapshot without what is new in each flow run: its ID, and those of its runs."""
    return {**flow_run.snapshot, "runId": "", "agentSessions": sorted(flow_run.snapshot["agentSessions"])}


def definition(stage: Stage) -> dict[str, Any]:
    """The flow, whose tool writes to the ledger of the stage."""
    own: dict[str, Any] = json.loads(json.dumps(DEFINITION).replace("LEDGER", str(stage.ledger)))
    return own


def site(slug: str) -> Project:
    project = make_project(slug)
    make_writer(project)
    make_writer(project, "critic")
    return project


def answer(flow_run: FlowRun) -> None:
    """Answer the question, if it is open."""
    asking = AgentRun.objects.filter(flow_run=flow_run, log__node_id="gate", status="waiting", status_reason="input")
    for run in asking:
        try:
            run_actions.reply("user:ada", run, "yes")
        except RunRefusal:
            continue


def undisturbed(stage: Stage, settings: Settings, folder: Path) -> FlowRun:
    settings.AGENTOPS_FIXTURES = [str(folder)]
    worker = Worker(concurrency=2)
    try:
        waiting = play(make_flow_run(definition(stage), site("calm")), worker)
        answer(waiting)
        return play(waiting, worker)
    finally:
        worker.close(5)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_flow_survives_killed_workers(stage: Stage, settings: Settings, tmp_path: Path, seed: int) -> None:
    record_answers(tmp_path, "writer", [f"text {n}" for n in range(8)])
    record_answers(tmp_path, "critic", ["again", "again", "good"])
    calm = undisturbed(stage, settings, tmp_path)
    assert calm.status == "completed"
    chance = random.Random(seed)
    kills = [f"{chance.choice(POINTS)}:{chance.randint(1, 2)}" for _ in range(KILLS - 1)]
    kills.append(f"{chance.choice([*chaos.FLOW_POINTS])}:{chance.randint(1, 2)}")

    flow_run = make_flow_run(definition(stage), site("shaken"))
    died = 0
    resumes = 0
    until = time.monotonic() + WITHIN_S
    worker = stage.worker(kills.pop(), AGENTOPS_FIXTURES=str(tmp_path))
    while not FlowRun.objects.get(pk=flow_run.pk).state.terminal:
        assert time.monotonic() < until, f"{FlowRun.objects.get(pk=flow_run.pk).snapshot}\n{worker.said()}"
        answer(flow_run)
        if not worker.alive:
            died += 1
            if not resumes:
                resumes += _pause_and_resume(flow_run)
            worker = stage.worker(kills.pop() if kills else "", AGENTOPS_FIXTURES=str(tmp_path))
        time.sleep(0.05)

    ended = FlowRun.objects.get(pk=flow_run.pk)
    print(f"seed {seed}: {died} workers were killed")
    assert died, "no worker was killed: choose another seed"
    assert shape(ended) == shape(calm)
    types = [event.type for event in events_of(ended)]
    assert (types.count("flow.resumed"), types.count("flow.started")) == (resumes, 1)
    starts = [event.payload for event in events_of(ended, "node.started") if not event.payload.get("resumed")]
    keys = [(start["node"], start.get("iteration"), start.get("item")) for start in starts]
    assert len(keys) == len(set(keys))
    assert AgentRunToolCall.objects.filter(run__flow_run=ended, tool_name="ask_user").count() == 1
    assert run_of(ended, "gate").status == RunStatus.COMPLETED
    assert flow_differences(ended.pk) == []
    for run in AgentRun.objects.filter(flow_run=ended):
        check(run)


def _pause_and_resume(flow_run: FlowRun) -> int:
    """Pause and resume the flow run while no worker is there. Returns how often it was resumed."""
    try:
        paused = flow_run_actions.pause("user:ada", flow_run)
        flow_run_actions.resume("user:ada", paused)
    except RunRefusal:
        return 0  # it has ended
    return 1
