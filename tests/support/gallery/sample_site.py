"""A project with runs, flows, imports, sinks and alerts in every state, an empty project, and their people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.contrib.auth.models import User

from agentops.projects.access import SYSTEM
from agentops.projects.keys import create_key
from agentops.projects.memberships import add_member
from agentops.projects.models import Project, Role
from runs.actions import run_actions
from runs.alerts import evaluation
from runs.alerts.alert_rule_changes import add_rule
from runs.external import ingest_counts
from runs.models import AgentRun, FlowRun, ImportState, Sink, SinkCursor
from runs.worker.worker import Worker
from tests.support.accounts import make_person
from tests.support.alerts import external, failed
from tests.support.browser.hostile_text import WHOLE
from tests.support.engine.policy_occasions import make_asking
from tests.support.factories import (
    drive,
    make_agent,
    make_awaiting_approval,
    make_import,
    make_project,
    make_run,
    make_waiting,
)
from tests.support.flows.flow_runs import make_flow_run, play
from tests.support.live.growing_logs import grow
from tests.support.sinks import append, export, make_sink, make_troubled_run

LONG_WORD = "Compare-the-prices-of-every-supplier-" * 12
#: A loop, a list, and a question to a person.
REVIEW: dict[str, Any] = {
    "flow_id": "review",
    "title": "Review of two files",
    "inputs": {"type": "object", "properties": {"files": {"type": "array", "examples": [["a.py", "b.py"]]}}},
    "nodes": [
        {"id": "begin", "type": "constant", "value": "x"},
        {"id": "read", "type": "constant", "value": "{{ file }}"},
        {"id": "gate", "type": "human", "question": "Is it right?", "choices": ["yes", "no"]},
        {"id": "end", "type": "constant", "value": "{{ outputs.gate }}", "title": "A title longer than its box"},
    ],
    "edges": [
        {"from": "begin", "to": "read", "forEach": {"in": "inputs.files", "as": "file"}},
        {"from": "read", "to": "gate"},
        {"from": "gate", "to": "read", "when": "outputs.gate == 'no'", "maxIterations": 2},
        {"from": "gate", "to": "end", "when": "outputs.gate == 'yes'"},
    ],
}


@dataclass(frozen=True)
class SampleSite:
    """What has been made, for addresses. `runs`: by the state that a run shows."""

    project: Project
    empty: Project
    boss: User
    viewer: User
    runs: dict[str, AgentRun]
    flow_run: FlowRun
    sink: Sink


def make_sample_site(worker: Worker) -> SampleSite:
    """Make everything; takes a few seconds."""
    project, empty = make_project("alpha"), make_project("nothing-yet")
    boss = User.objects.create_superuser("boss")
    for own in (project, empty):
        add_member(own, boss, Role.ADMIN, actor=SYSTEM)
    # First: who drives a flow drives all that is queued.
    flow_run = play(make_flow_run(REVIEW, project, {"files": ["a.py", "b.py"]}), worker)
    runs = _runs(project)
    _imports(project, runs["completed"])
    sink = _sinks(project)
    _alerts(project)
    key, _ = create_key(project, name="A runner with a long name", scopes=["ingest"], actor=SYSTEM)
    ingest_counts.count(project.pk, key.prefix, {"accepted": 412, "duplicate": 9, "invalid_event": 3})
    ingest_counts.flush()
    return SampleSite(project, empty, boss, make_person(project, Role.VIEWER), runs, flow_run, sink)


def _runs(project: Project) -> dict[str, AgentRun]:
    runs = {
        "completed": drive(make_run(make_agent(project, slug="compiler"))),
        "approval": make_awaiting_approval(project),
        "question": make_asking(project),
        "unknown": make_waiting(project),
        "queued": make_run(make_agent(project, slug="patient"), LONG_WORD, labels=["nightly", "a-long-label" * 4]),
        "running": external(project, "live", {"type": "message.added", "payload": {"role": "user", "content": "Go"}}),
        "session": external(project, "asks", {"type": "run.waiting", "payload": {"reason": "approval"}}),
        "failed": make_troubled_run(project, "failed"),
        "stopped": make_troubled_run(project, "stopped"),
        "hostile": make_run(make_agent(project, slug="hostile"), WHOLE),
        "long": make_run(make_agent(project, slug="long"), "A run with many events"),
        "empty": make_run(make_agent(project, slug="fresh"), "Begin"),
    }
    runs["paused"] = make_run(make_agent(project, slug="paused"), "Wait for me")
    run_actions.pause(SYSTEM, runs["paused"])
    parent = make_run(make_agent(project, slug="parent"), "Prepare the report")
    child = make_run(make_agent(project, slug="child"), LONG_WORD, parent_id=parent.pk)
    make_run(child.agent, "Check the figures", parent_id=child.pk)
    runs["parent"] = parent
    AgentRun.objects.filter(pk=runs["session"].pk).update(labels=["host:laptop", "folder:" + "a-long-name-" * 12])
    grow(runs["long"], 300, size=400)
    append(runs["hostile"], WHOLE, LONG_WORD * 20)
    return {name: AgentRun.objects.get(pk=run.pk) for name, run in runs.items()}


def _imports(project: Project, run: AgentRun) -> None:
    make_import(run)
    make_import(run, f"<img src=x onerror=alert(1)>{LONG_WORD}.json", state=ImportState.FAILED, run_ids=[])


def _sinks(project: Project) -> Sink:
    """A webhook whose receiver does not answer."""
    webhook = make_sink(project, "webhook", {"url": "https://hooks.invalid/"}, name="a" * 63, event_types=["x.note"])
    run = make_run(make_agent(project, slug="reporter"), "Report")
    append(run, "a", "b")
    export(1)
    SinkCursor.objects.filter(pk=webhook.pk).update(failures=4, last_error="no answer from " + "host" * 60)
    return webhook


def _alerts(project: Project) -> None:
    add_rule(project, {"name": "Failed runs", "kind": "run_failed", "sends_email": False}, by=SYSTEM)
    failed(project, "broken")
    evaluation.evaluate()
