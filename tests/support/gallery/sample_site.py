"""A project with runs, flows, imports, sinks and alerts in every state; an empty and an archived project; and users."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.contrib.auth.models import User
from django.test import override_settings

from agentops.accounts.access import SYSTEM
from agentops.accounts.memberships import add_member, archive_project
from agentops.accounts.models import Project, Role
from runs.actions import run_actions
from runs.alerts import evaluation
from runs.alerts.alert_rule_changes import add_rule
from runs.models import AgentRun, AlertRule, FileImport, FlowRun, ImportState, Schedule, Sink, SinkCursor
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
from tests.support.gallery import sample_settings
from tests.support.live.growing_logs import grow
from tests.support.schedules import fill_schedule, make_schedule
from tests.support.sinks import append, export, make_sink, make_troubled_run
from tests.support.web.receiver import receiving

LONG_WORD = "Compare-the-prices-of-every-supplier-" * 12
LABELS = ["nightly", "host:" + "x" * 59, "branch:main", "more"]
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
    """The objects that URLs need. `runs` has a run for each state; `invitation` is a path."""

    project: Project
    empty: Project
    archived: Project
    boss: User
    viewer: User
    runs: dict[str, AgentRun]
    flow_run: FlowRun
    sink: Sink
    alert_rule: AlertRule
    schedule: Schedule
    uploads: list[FileImport]
    invitation: str


def make_sample_site(worker: Worker) -> SampleSite:
    """Create all objects. Takes a few seconds."""
    project, empty, archived = make_project("alpha"), make_project("nothing-yet"), make_project("of-last-year")
    boss = User.objects.create_superuser("boss")
    for own in (project, empty, archived):
        add_member(own, boss, Role.ADMIN, actor=SYSTEM)
    # First, because driving a flow also drives all queued runs.
    flow_run = play(make_flow_run(REVIEW, project, {"files": ["a.py", "b.py"]}), worker)
    runs = _runs(project)
    _imports(project, runs["completed"])
    for number in range(3):
        fill_schedule(project, number, LONG_WORD)
    schedule = make_schedule(project, name="n" * 63, cron="0 9 * * 1-5", time_zone="Europe/Berlin")
    site = SampleSite(
        project=project, empty=empty, archived=archived, boss=boss, viewer=make_person(project, Role.VIEWER), runs=runs,
        flow_run=flow_run, sink=_sinks(project), alert_rule=_alerts(project), schedule=schedule,
        uploads=sample_settings.make_uploads(project), invitation=sample_settings.make_members(project),
    )  # fmt: skip
    sample_settings.make_keys(project)
    sample_settings.make_notice(runs["long"])
    sample_settings.make_old(runs["stopped"])
    # Last, because the rules would redact the objects above, and require approvals in them.
    sample_settings.make_rules(project)
    archive_project(archived, actor=SYSTEM)
    return site


def _runs(project: Project) -> dict[str, AgentRun]:
    runs = {
        "completed": drive(make_run(make_agent(project, slug="compiler"))),
        "approval": make_awaiting_approval(project),
        "question": make_asking(project),
        "unknown": make_waiting(project),
        "queued": make_run(make_agent(project, slug="patient"), LONG_WORD, labels=LABELS),
        "running": external(project, "live", {"type": "message.added", "payload": {"role": "user", "content": "Go"}}),
        "session": external(project, "asks", {"type": "run.waiting", "payload": {"reason": "approval"}}),
        "failed": make_troubled_run(project, "failed"),
        "stopped": make_troubled_run(project, "stopped"),
        "hostile": make_run(make_agent(project, slug="hostile"), WHOLE),
        "long": make_run(make_agent(project, slug="long"), "A run with many events"),
        "empty": make_run(make_agent(project, slug="fresh"), "Begin"),
        "limited": drive(make_run(make_agent(project, slug="limited", max_steps=1), "Look into it.")),
        "over-budget": sample_settings.make_reviewer(project),
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
    """Create a webhook with failed deliveries, and a sink; the receiver has refused both. Return the webhook."""
    with receiving() as receiver, override_settings(AGENTOPS_ALLOW_PRIVATE_SINKS=True):
        webhook = make_sink(project, "webhook", {"url": receiver.url}, name="a" * 63, event_types=["x.note"])
        make_sink(project, "http", {"url": receiver.url}, secrets={"headers": {"X-Key": "a secret of a team"}})
        receiver.answer(400, body=b"x" * 900)
        append(make_run(make_agent(project, slug="reporter"), "Report"), "a", "b")
        export(2)
    SinkCursor.objects.filter(pk=webhook.pk).update(failures=4, last_error="no answer from " + "host" * 60)
    return webhook


def _alerts(project: Project) -> AlertRule:
    """Create a rule, and an alert with the maximum number of visible runs."""
    rule, _ = add_rule(project, {"name": "n" * 63, "kind": "run_failed", "sends_email": False}, by=SYSTEM)
    for number in range(5):
        failed(project, f"{number}-{'x' * 60}")
    evaluation.evaluate()
    return rule
