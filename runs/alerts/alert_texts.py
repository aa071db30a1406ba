"""Lists of alerts, descriptions of rules, and the texts of messages.

A message is an e-mail, the JSON of a webhook, or Slack blocks. Pages, the API and the command line show the lists.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db.models import Prefetch, QuerySet
from django.urls import reverse

from agentops.accounts.models import Project
from agentops.base.redaction import project_scope
from runs.alerts.flow_conditions import GROUP
from runs.models import AgentRun, Alert, AlertFinding, AlertMessage, AlertRule, FlowRun
from timeline.display import LOOKAHEAD, clean

#: Maximum number of findings of an alert in a list: the newest ones.
MAX_FINDINGS = 10


def alerts_of(project: Project, *, open_only: bool = False) -> QuerySet[Alert]:
    """Return the alerts of a project, newest first, with their rules and newest findings. Two queries for a page."""
    columns = (
        *("alert_id", "run_id", "flow_run_id", "detail", "found_at", "ended_at", "run__title", "run__status"),
        *("flow_run__status", "flow_run__flow__slug", "flow_run__flow__title"),
    )
    newest = AlertFinding.objects.select_related("run", "flow_run__flow").only(*columns).order_by("-pk")[:MAX_FINDINGS]
    alerts = Alert.objects.filter(project=project).select_related("rule").order_by("-pk")
    if open_only:
        alerts = alerts.filter(closed_at=None)
    return alerts.prefetch_related(Prefetch("findings", newest, to_attr="newest_findings"))


def open_counts(project: Project) -> Counter[UUID]:
    """Return the number of open alerts by the ID of their rule. One query."""
    return Counter(Alert.objects.filter(rule__project=project, closed_at=None).values_list("rule_id", flat=True))


def group_name(agent: str) -> str:
    """Return the display name of what an alert groups runs by: an agent or a flow."""
    return agent if agent.startswith(GROUP) else f"agent {agent}"


def describe(rule: AlertRule) -> str:
    """Return a sentence that describes the condition of a rule."""
    limit = "" if rule.limit_usd is None else f"${rule.limit_usd.normalize():f}"
    sentences = {
        AlertRule.Kind.RUN_FAILED: "A run fails",
        AlertRule.Kind.RUN_STALLED: f"A run has no event for {rule.minutes} min while it should be working",
        AlertRule.Kind.RUN_WAITING: "A run waits for a person" + (f" for {rule.minutes} min" if rule.minutes else ""),
        AlertRule.Kind.RUN_COST: f"A run costs {limit} or more",
        AlertRule.Kind.DAY_COST: f"The project's day (UTC) costs {limit} or more",
        AlertRule.Kind.ERROR_RATE: f"{rule.percent} % or more of an agent's last {rule.last_runs} "
        f"run{'s' * (rule.last_runs != 1)} failed, "
        f"of at least {rule.min_runs}",
        AlertRule.Kind.SINK_BEHIND: f"The oldest event for a sink has waited {rule.minutes} min",
    }
    filters = [group_name(rule.agent)] if rule.agent else []
    filters += [f"label {rule.label}"] if rule.label else []
    return sentences[AlertRule.Kind(rule.kind)] + (f"; {', '.join(filters)} only" if filters else "")


Kind, Event = AlertRule.Kind, AlertMessage.Event
#: The maximum number of runs in a message.
MAX_LISTED = 10
#: Characters of a run's title and error in a message.
MAX_TITLE, MAX_ERROR = 120, 300
#: Kind → the title for one run, and the title for several; `{of}` is " of AGENT" or empty.
_TITLES = {
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
    """The e-mail of a message. Only an e-mail about a single run quotes it, and is deleted together with the run."""

    title: str
    text: str


@dataclass(frozen=True)
class MessageRun:
    """A run or a flow run in a message. The fields are the members of `runs` in the JSON of webhooks."""

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
    one, many = _TITLES[Kind(rule.kind)]
    text = (one if count <= 1 else many).format(of=f" of {agent}" if agent else "", count=count)
    return _PREFIX.get(event, "") + text


def email_of(message: AlertMessage, findings: Sequence[AlertFinding]) -> Email:
    """Return the e-mail about these findings; without findings, about the end of an alert or a test."""
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
        runs = _message_runs([finding])
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
        "runs": [vars(run) for run in _message_runs(findings)],
        "url": alerts_url(project),
    }
    body = {"type": f"alert.{message.event}", "timestamp": message.created_at.isoformat(), "data": data}
    return json.dumps(body, ensure_ascii=False)


def slack_body(message: AlertMessage) -> str:
    """Return a message as Slack's incoming webhooks take it: `text` for notifications, and `blocks`."""
    rule, project, findings = message.rule, message.project, _findings_of(message)
    title = title_of(rule, message.alert.agent if message.alert else "", message.count, message.event)
    lines = [_escaped(finding.detail) for finding in findings if finding.subject_id is None]
    for run in _message_runs(findings):
        detail = " – ".join(_escaped(part) for part in (run.detail, run.error) if part)
        lines.append(f"• <{run.url}|{_escaped(run.title)}> {detail}")
    if message.count > MAX_LISTED:
        lines.append(f"… and {message.count - MAX_LISTED} more")
    blocks: list[dict[str, Any]] = [_section(f"*{_escaped(title)}*")]
    # A section has at most 3000 characters, so it gets three lines, which are hardly ever longer.
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
    """Return the findings that a message is about, at most `MAX_LISTED`."""
    if message.alert is None or message.event == Event.CLOSED:
        return []
    if message.event == Event.REPEATED:
        return list(AlertFinding.objects.filter(alert=message.alert, ended_at=None).order_by("pk")[:MAX_LISTED])
    return list(AlertFinding.objects.filter(message=message).order_by("pk")[:MAX_LISTED])


def _message_runs(findings: Sequence[AlertFinding]) -> list[MessageRun]:
    """Return the runs and flow runs of findings, masked. Runs deleted by retention are left out."""
    run_ids = [finding.run_id for finding in findings if finding.run_id]
    flow_run_ids = [finding.flow_run_id for finding in findings if finding.flow_run_id]
    columns = ("status", "error_message")
    runs: dict[UUID, AgentRun | FlowRun] = {}
    if run_ids:
        runs |= AgentRun.objects.only("title", *columns).in_bulk(run_ids)
    if flow_run_ids:
        rows = FlowRun.objects.select_related("flow").only("flow__slug", "flow__title", *columns)
        runs |= rows.in_bulk(flow_run_ids)
    return [
        _message_run(finding, runs[subject_id])
        for finding in findings
        if (subject_id := finding.subject_id) is not None and subject_id in runs
    ]


def _message_run(finding: AlertFinding, run: AgentRun | FlowRun) -> MessageRun:
    title = clean(run.name if isinstance(run, FlowRun) else run.title)[:MAX_TITLE] or str(run.pk)
    error = " ".join(clean(run.error_message[:LOOKAHEAD]).split())[:MAX_ERROR]
    return MessageRun(str(run.pk), title, run.status, finding.detail, error, url_of(finding))


def url_of(finding: AlertFinding) -> str:
    """Return the URL of the run or flow run of a finding."""
    return f"{settings.AGENTOPS_BASE_URL}{page_of(finding)}"


def page_of(finding: AlertFinding) -> str:
    """Return the path of the page of a finding's run or flow run."""
    return reverse("runs:detail" if finding.run_id else "runs:flow-run", args=[finding.subject_id])
