"""Flows: runs on the database or with the kernel alone, expensive definitions, and a flow whose workers are killed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pytest_django import Settings

from agentops.accounts.models import Project
from agentops.base.refusals import Refusal
from runs.actions import flow_definitions, flow_run_actions, run_actions
from runs.fixtures import fixture_files
from runs.flows import runner
from runs.flows.kernel import advance, snapshot, snapshot_fold
from runs.flows.kernel.flow_decisions import Decisions, NewEvent, VisitReport, VisitStart
from runs.flows.kernel.graph import graph_of
from runs.lifecycle import transitions
from runs.models import AgentRun, AgentRunToolCall, Flow, FlowRun
from runs.statuses import RunStatus
from runs.upkeep.invariants import check
from runs.upkeep.replay_check import flow_differences
from runs.worker.in_process import advance_ready
from runs.worker.worker import Worker
from tests.support.child_processes import ChildProcess
from tests.support.factories import make_agent, make_project
from tests.support.stage import Stage
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
    fixture_files.load_named.cache_clear()


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


Execute = Callable[[VisitStart], VisitReport]


def by_visit(start: VisitStart) -> VisitReport:
    """Answer with the visit's key and its request."""
    return VisitReport(start.visit, {"visit": start.visit.key, "request": dict(start.request)})


@dataclass
class KernelRun:
    """A flow run in memory. Every snapshot passes through JSON, as it does in the database."""

    definition: dict[str, Any]
    execute: Execute = by_visit
    inputs: Any = None
    open: list[VisitStart] = field(default_factory=list)
    events: list[NewEvent] = field(default_factory=list)
    failure: Any = None
    started: list[VisitStart] = field(default_factory=list)
    advances: int = 0

    def __post_init__(self) -> None:
        self.graph = graph_of(self.definition)
        self.snapshot = snapshot.initial(self.graph, "run")
        self.advance()

    def advance(self, *reports: VisitReport) -> None:
        more = True
        while more:
            decided = advance.advance(self.graph, self.snapshot, reports, inputs=self.inputs)
            self.take(decided)
            self.advances += 1
            reports, more = (), decided.has_more

    def take(self, decided: Decisions) -> None:
        for start in decided.starts:
            decided.snapshot["agentSessions"][start.visit.key] = f"run-{start.visit.key}"
        self.snapshot = snapshot.load(self.graph, json.loads(json.dumps(decided.snapshot)))
        self.events += decided.events
        self.open += decided.starts
        self.started += decided.starts
        self.failure = self.failure or decided.failure

    def end(self, number: int = 0) -> None:
        """End one open visit."""
        self.advance(self.execute(self.open.pop(number % len(self.open))))

    def play(self) -> KernelRun:
        while self.open and not self.is_over:
            self.end()
        return self

    @property
    def is_over(self) -> bool:
        return self.snapshot["status"] in ("completed", "failed", "stopped")

    def types(self) -> list[str]:
        return [event.payload.event_type for event in self.events]

    def of_type(self, type_: str) -> list[Any]:
        return [event.payload for event in self.events if event.payload.event_type == type_]

    def folded(self) -> snapshot.Snapshot:
        """Fold the events as the log stores them."""
        logged = []
        for event in self.events:
            payload = event.payload.model_dump(mode="json")
            if event.payload.event_type == "node.started" and event.visit.key in self.snapshot["agentSessions"]:
                payload["run_id"] = f"run-{event.visit.key}"
            logged.append(SimpleNamespace(type=event.payload.event_type, payload=payload, ref_id=None))
        start = snapshot.initial(self.graph, "run")
        start["status"] = "running"
        folded = snapshot_fold.fold(start, logged, lambda ref: {})
        folded["status"] = self.snapshot["status"]
        return folded


DEFINITION = {
    "nodes": [
        {"id": "topics", "type": "constant", "value": ["one", "two"]},
        {"id": "draft", "type": "agent", "agent": "writer", "prompt": "Draft, after {{ state.drafts }}"},
        {
            "id": "review",
            "type": "agent",
            "agent": "critic",
            "prompt": "Judge {{ outputs.draft }}",
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
}


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
            run_actions.reply("user:oscar", run, "yes")
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
    stage: Stage,
    flow_run: FlowRun,
    kills: list[str],
    *,
    fixtures: Path,
    within_s: float,
    workers: int = 1,
    resume_every: int = 0,
    env: Mapping[str, str] | None = None,
) -> tuple[int, int]:
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
        paused = flow_run_actions.pause("user:oscar", flow_run)
        flow_run_actions.resume("user:oscar", paused)
    except Refusal:
        return 0  # The flow run has ended.
    return 1


LONG = "x" * 150_000
ROWS = [{"id": n, "name": f"name {n}"} for n in range(2_000)]
#: A thousand references to the same value.
MANY = "|".join([f"[{','.join(['@'] * 10)}][]"] * 3)
SCOPE: Any = {"inputs": {"rows": ROWS, "text": LONG, "same": [ROWS, [dict(row) for row in ROWS]]}}
#: Each takes from seconds to hours without a limit. None is longer than 200 characters.
EXPENSIVE = [
    f"inputs.rows|{MANY}|[?id > `5` && name != 'x' && contains(name, 'n')].name | length(@) > `3`",
    f"[inputs.text]|{MANY}|[*].reverse(@)|[*].reverse(@)|length(@)",
    f"[inputs.rows]|{MANY}|[*].to_string(@)|length(@)",
    f"[inputs.rows]|{MANY}|[*].sort_by(@, &name)|length(@)",
    f"[{{a: inputs.same}}]|{MANY}|[?a[0] == a[1]]|length(@)",
    f"[{{a: inputs.same}}]|{MANY}|[?contains(a, a[1])]|length(@)",
    f"[inputs.same[0]]|{MANY}|[*].contains(@, `{{}}`)|length(@)",
    f"[inputs.rows]|{MANY}|[*].map(&merge(@, @, @), @)|length(@)",
    f"[inputs.rows]|{MANY}|[*][::2]|length(@)",
    f"[inputs.rows]|{MANY}|[*].map(&keys(@), @)|length(@)",
    f"[inputs.rows[*].name]|{MANY}|[*].join(', ', @)|[*].to_number(@)|length(@)",
]


#: Six million branches: each item is compared with each constant, and only the last one is equal.
EXPENSIVE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"items": {"type": "array", "items": {"anyOf": [{"const": number} for number in range(299)]}}},
}
EXPENSIVE_INPUTS: dict[str, Any] = {"items": [298] * 20_000}
