"""A flow with a loop, a forEach, a question and two agents. Its workers are killed, and its result is checked.

May import the product.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_django import Settings

from agentops.accounts.models import Project
from agentops.base.refusals import Refusal
from runs.actions import flow_run_actions, run_actions
from runs.models import AgentRun, AgentRunToolCall, FlowRun
from runs.upkeep.invariants import check
from runs.upkeep.replay_check import flow_differences
from runs.worker.worker import Worker
from tests.support.factories import make_project
from tests.support.flows.flow_runs import events_of, make_flow_run, make_writer, play
from tests.support.processes.child_processes import ChildProcess
from tests.support.processes.stage import Stage

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


#: Invariants about elapsed time.
OF_TIME = {"L4", "O1"}
#: A worker that has not reached its crash point after this time is killed.
LONGEST_LIFE_S = 8.0


def _shape(flow_run: FlowRun) -> dict[str, Any]:
    """Return the final snapshot without the IDs that differ between flow runs."""
    return {**flow_run.snapshot, "runId": "", "agentSessions": sorted(flow_run.snapshot["agentSessions"])}


def definition(stage: Stage) -> dict[str, Any]:
    """Return the flow's definition. Its tool writes to the ledger of the stage."""
    own: dict[str, Any] = json.loads(json.dumps(DEFINITION).replace("LEDGER", str(stage.ledger)))
    return own


def site(slug: str) -> Project:
    project = make_project(slug)
    make_writer(project)
    make_writer(project, "critic")
    return project


def _answer(flow_run: FlowRun) -> None:
    """Answer the question, if it is open."""
    asking = AgentRun.objects.filter(flow_run=flow_run, log__node_id="gate", status="waiting", status_reason="input")
    for run in asking:
        try:
            run_actions.reply("user:ada", run, "yes")
        except Refusal:
            continue


def undisturbed(stage: Stage, settings: Settings, folder: Path, flow: dict[str, Any] | None = None) -> FlowRun:
    settings.AGENTOPS_FIXTURES = [str(folder)]
    worker = Worker()
    try:
        waiting = play(make_flow_run(flow or definition(stage), site("calm")), worker)
        _answer(waiting)
        return play(waiting, worker)
    finally:
        worker.close(5)


def shake(
    stage: Stage, flow_run: FlowRun, kills: list[str], *, fixtures: Path, within_s: float, workers: int = 1,
    resume_every: int = 0, env: Mapping[str, str] | None = None,
) -> tuple[int, int]:  # fmt: skip
    """Run the flow to its end with workers that are killed at these points. Return the number of deaths and of resumes.

    Pause and resume the flow after the first death, and then after every `resume_every` deaths. Raise `TimeoutError`.
    """
    died = resumes = 0
    until = time.monotonic() + within_s
    alive: list[tuple[ChildProcess, float]] = []
    while not FlowRun.objects.get(pk=flow_run.pk).state.terminal:
        if time.monotonic() > until:
            snapshot = FlowRun.objects.get(pk=flow_run.pk).snapshot
            raise TimeoutError(f"{died} workers died; {snapshot}\n{alive[0][0].said()}")
        _answer(flow_run)
        for worker, dies_at in list(alive):
            if worker.alive and time.monotonic() < dies_at:
                continue
            worker.end()
            worker.killed()
            alive.remove((worker, dies_at))
            died += 1
            if died == 1 or (resume_every and died % resume_every == 0):
                resumes += _pause_and_resume(flow_run)
        while len(alive) < workers:
            dies_at = time.monotonic() + LONGEST_LIFE_S if kills and resume_every else float("inf")
            worker = stage.worker(kills.pop() if kills else "", AGENTOPS_FIXTURES=str(fixtures), **(env or {}))
            alive.append((worker, dies_at))
        time.sleep(0.05)
    return died, resumes


def _differences(value: Any, other: Any, path: str = "") -> list[str]:
    """Return the paths at which two values differ, each with both values."""
    if value == other:
        return []
    if isinstance(value, dict) and isinstance(other, dict):
        names = sorted({*value, *other})
        return [line for name in names for line in _differences(value.get(name), other.get(name), f"{path}.{name}")]
    return [f"{path}: {value!r} is not {other!r}"[:300]]


def problems_of(flow_run: FlowRun, calm: FlowRun, resumes: int) -> dict[str, object]:
    """Return the differences from an undisturbed flow run, by the name of the check."""
    ended = FlowRun.objects.get(pk=flow_run.pk)
    types = [event.type for event in events_of(ended)]
    starts = [event.payload for event in events_of(ended, "node.started") if not event.payload.get("resumed")]
    keys = [(start["node"], start.get("iteration"), start.get("item")) for start in starts]
    questions = AgentRunToolCall.objects.filter(run__flow_run=ended, tool_name="ask_user").count()
    found: dict[str, object] = {
        "snapshot": _differences(_shape(ended), _shape(calm)),
        "starts": types.count("flow.started") != 1 and types.count("flow.started"),
        "resumes": types.count("flow.resumed") != resumes and types.count("flow.resumed"),
        "nodes started twice": sorted({key for key in map(str, keys) if [*map(str, keys)].count(key) > 1}),
        "questions": questions != 1 and questions,
        "replay": flow_differences(ended.pk),
        "invariants": [str(each) for each in check() if each.invariant not in OF_TIME and not each.warning_only],
        "open runs": [str(run.pk) for run in AgentRun.objects.filter(flow_run=ended) if not run.state.terminal],
    }
    return {name: problem for name, problem in found.items() if problem not in (False, [])}


def _pause_and_resume(flow_run: FlowRun) -> int:
    """Pause and resume the flow run. Return the number of resumes."""
    try:
        paused = flow_run_actions.pause("user:ada", flow_run)
        flow_run_actions.resume("user:ada", paused)
    except Refusal:
        return 0  # The flow run has ended.
    return 1
