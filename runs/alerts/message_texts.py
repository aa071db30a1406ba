"""The texts of messages: e-mail, JSON of a webhook, and Slack blocks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.conf import settings
from django.urls import reverse

from agentops.accounts.models import Project
from agentops.base.redaction import project_scope
from runs.models import AgentRun, AlertFinding, AlertMessage, AlertRule, FlowRun
from timeline.display import LOOKAHEAD, clean

Kind, Event = AlertRule.Kind, AlertMessage.Event
#: The maximum number of runs in a message.
MAX_LISTED = 10
MAX_TITLE, MAX_ERROR = 120, 300
#: Kind → title for one run of an agent, and for several.
_SAYS = {
    Kind.RUN_FAILED: ("Run{of} failed", "{count} runs{of} failed"),
    Kind.RUN_STALLED: ("Run{of} has stalled", "{count} runs{of} have stalled"),
    Kind.RUN_WAITING: ("Run{of} waits for a person", "{count} runs{of} wait for a person"),
    Kind.RUN_COST: ("Run{of} is above its cost limit", "{count} runs{of} are above their cost limit"),
    Kind.DAY_COST: ("Cost of today is above the limit",) * 2,
    Kind.ERROR_RATE: ("Error rate{of} is above the limit",) * 2,
    Kind.SINK_BEHIND: ("A sink is behind", "{count} sinks are behind"),
}
_PREFIX: dict[str, str] = {Event.CONTINUED: "More: ", Event.REPEATED: "Still: ", Event.CLOSED: "Over: "}


@dataclass(frozen=True)
class Email:
    """The notification of a message. It quotes a run only if it is about that run alone, and is deleted with it."""

    title: str
    text: str


@dataclass(frozen=True)
class MessageRun:
    """A run, or a flow run, in a message."""

    run_id: str
    title: str
    status: str
    detail: str
    error: str
    url: str


def title_of(rule: AlertRule, agent: str, count: int, event: str) -> str:
    """Return the first line of a message. With an empty `event`, return the title of an alert."""
    if event == Event.TEST:
        return f"Test of the alert rule {rule.name}"
    one, many = _SAYS[Kind(rule.kind)]
    text = (one if count <= 1 else many).format(of=f" of {agent}" if agent else "", count=count)
    return _PREFIX.get(event, "") + text


def email_of(message: AlertMessage, findings: Sequence[AlertFinding]) -> Email:
    """Return the notification of a message about these findings."""
    agent = message.alert.agent if message.alert else ""
    title = title_of(message.rule, agent, len(findings) or message.count, message.event)
    lines = []
    if len(findings) == 1:
        lines = _lines_of_one(findings[0])
    for finding in findings[:MAX_LISTED] if len(findings) > 1 else ():
        lines.append(f"{finding.detail}: {url_of(finding)}" if finding.subject_id else finding.detail)
    if len(findings) > MAX_LISTED:
        lines.append(f"… and {len(findings) - MAX_LISTED} more")
    lines += ["", f"Alert rule: {message.rule.name}", f"Alerts: {alerts_url(message.project)}"]
    return Email(title, "\n".join(lines).strip())


def _lines_of_one(finding: AlertFinding) -> list[str]:
    """Return the lines of an e-mail about a single finding."""
    if finding.subject_id is None:
        return [finding.detail]
    with project_scope.limited_to(finding.project_id):
        runs = _listed([finding])
    return [line for run in runs for line in (run.title, run.detail, run.error) if line not in ("", run.run_id)]


def webhook_body(message: AlertMessage) -> str:
    """Return the JSON of a message: `type`, `timestamp` and `data`, as Standard Webhooks recommends."""
    alert, rule, project = message.alert, message.rule, message.project
    findings = _findings_of(message)
    agent = alert.agent if alert else ""
    data: dict[str, Any] = {
        "title": title_of(rule, agent, message.count, message.event),
        "project": {"id": str(project.pk), "slug": project.slug},
        "rule": {"id": str(rule.pk), "name": rule.name, "kind": rule.kind},
        "alert_id": str(alert.pk) if alert else None,
        "agent_id": agent or None,
        "opened_at": alert.opened_at.isoformat() if alert else None,
        "count": message.count,
        "total": alert.count if alert else 0,
        "details": [finding.detail for finding in findings if finding.subject_id is None],
        "runs": [vars(run) for run in _listed(findings)],
        "url": alerts_url(project),
    }
    body = {"type": f"alert.{message.event}", "timestamp": message.created_at.isoformat(), "data": data}
    return json.dumps(body, ensure_ascii=False)


def slack_body(message: AlertMessage) -> str:
    """Return a message as Slack's incoming webhooks take it: `text` for notifications, and `blocks`."""
    rule, project, findings = message.rule, message.project, _findings_of(message)
    title = title_of(rule, message.alert.agent if message.alert else "", message.count, message.event)
    lines = [_escaped(finding.detail) for finding in findings if finding.subject_id is None]
    for run in _listed(findings):
        said = " – ".join(_escaped(part) for part in (run.detail, run.error) if part)
        lines.append(f"• <{run.url}|{_escaped(run.title)}> {said}")
    if message.count > MAX_LISTED:
        lines.append(f"… and {message.count - MAX_LISTED} more")
    blocks: list[dict[str, Any]] = [_section(f"*{_escaped(title)}*")]
    # A section has at most 3000 characters.
    blocks += [_section("\n".join(lines[start : start + 3])[:3000]) for start in range(0, len(lines), 3)]
    context = f"{_escaped(project.slug)} · rule {_escaped(rule.name)} · <{alerts_url(project)}|All alerts>"
    blocks.append({"type": "context", "elements": [{"type": "mrkdwn", "text": context}]})
    return json.dumps({"text": _escaped(f"{project.slug}: {title}"), "blocks": blocks}, ensure_ascii=False)


def alerts_url(project: Project) -> str:
    """Return the URL of the project's alerts."""
    return f"{settings.AGENTOPS_BASE_URL}{reverse('runs:alerts', args=[project.slug])}"


def _section(text: str) -> dict[str, Any]:
    return {"type": "section", "text": {"type": "mrkdwn", "text": text}}


def _escaped(text: str) -> str:
    """Return a text with Slack's links and mentions escaped."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _findings_of(message: AlertMessage) -> list[AlertFinding]:
    """Return the first findings that a message is about."""
    if message.alert is None or message.event == Event.CLOSED:
        return []
    if message.event == Event.REPEATED:
        return list(AlertFinding.objects.filter(alert=message.alert, ended_at=None).order_by("pk")[:MAX_LISTED])
    return list(AlertFinding.objects.filter(message=message).order_by("pk")[:MAX_LISTED])


def _listed(findings: Sequence[AlertFinding]) -> list[MessageRun]:
    """Return the runs and flow runs of findings, masked. Runs deleted by retention are left out."""
    run_ids = [finding.run_id for finding in findings if finding.run_id]
    flow_run_ids = [finding.flow_run_id for finding in findings if finding.flow_run_id]
    columns = ("status", "error_message")
    found: dict[UUID, AgentRun | FlowRun] = {}
    if run_ids:
        found |= AgentRun.objects.only("title", *columns).in_bulk(run_ids)
    if flow_run_ids:
        rows = FlowRun.objects.select_related("flow").only("flow__slug", "flow__title", *columns)
        found |= rows.in_bulk(flow_run_ids)
    return [
        _listed_run(finding, found[subject_id])
        for finding in findings
        if (subject_id := finding.subject_id) is not None and subject_id in found
    ]


def _listed_run(finding: AlertFinding, run: AgentRun | FlowRun) -> MessageRun:
    title = clean(run.name if isinstance(run, FlowRun) else run.title)[:MAX_TITLE] or str(run.pk)
    error = " ".join(clean(run.error_message[:LOOKAHEAD]).split())[:MAX_ERROR]
    return MessageRun(str(run.pk), title, run.status, finding.detail, error, url_of(finding))


def url_of(finding: AlertFinding) -> str:
    """Return the URL of the run or flow run of a finding."""
    return f"{settings.AGENTOPS_BASE_URL}{page_of(finding)}"


def page_of(finding: AlertFinding) -> str:
    """Return the path of the page of a finding's run or flow run."""
    return reverse("runs:detail" if finding.run_id else "runs:flow-run", args=[finding.subject_id])
