"""The URL of every page, the access it requires, and the values of its placeholders."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from uuid import UUID

from django.urls import URLPattern, URLResolver

from agentops.accounts import rate_limits
from agentops.accounts.keys import create_key
from agentops.accounts.models import ApiKey
from runs.models import AgentRun, AgentRunMessage, FileImport, FlowRun, Schedule, Sink
from tests.support.factories import make_import
from tests.support.flows import make_ended_flow_run
from tests.support.project_rows import annotation_ids, make_schedule, make_sink

#: URL pattern → (method → required access). Members in READERS may read, in OPERATORS act, in ADMINS manage.
READ, OPERATE, MANAGE = "read", "operate", "manage"
PAGES: dict[str, dict[str, str]] = {
    "p/<slug:project>": {"GET": READ},
    "p/<slug:project>/live": {"GET": READ},
    "p/<slug:project>/charts": {"GET": READ},
    "p/<slug:project>/demo": {"POST": MANAGE},
    "p/<slug:project>/notifications": {"GET": READ},
    "p/<slug:project>/notifications/read": {"POST": READ},
    "p/<slug:project>/settings/redaction": {"GET": MANAGE},
    "p/<slug:project>/settings/redaction/add": {"POST": MANAGE},
    "p/<slug:project>/settings/redaction/model-input": {"POST": MANAGE},
    "p/<slug:project>/settings/redaction/remove": {"POST": MANAGE},
    "p/<slug:project>/settings/redaction/test": {"POST": MANAGE},
    "p/<slug:project>/settings": {"GET": MANAGE, "POST": MANAGE},
    "p/<slug:project>/settings/archive": {"POST": MANAGE},
    "p/<slug:project>/settings/unarchive": {"POST": MANAGE},
    # Refused: the table's project is not archived (tests/runs/pages/test_delete_project.py).
    "p/<slug:project>/settings/delete": {"GET": MANAGE, "POST": MANAGE},
    "p/<slug:project>/settings/members": {"GET": MANAGE},
    "p/<slug:project>/settings/members/add": {"POST": MANAGE},
    "p/<slug:project>/settings/members/role": {"POST": MANAGE},
    "p/<slug:project>/settings/members/remove": {"GET": MANAGE, "POST": MANAGE},
    "p/<slug:project>/settings/invitations/withdraw": {"POST": MANAGE},
    "p/<slug:project>/settings/keys": {"GET": MANAGE},
    "p/<slug:project>/settings/keys/create": {"POST": MANAGE},
    "p/<slug:project>/settings/keys/<uuid:key_id>": {"GET": MANAGE},
    "p/<slug:project>/settings/keys/<uuid:key_id>/rotate": {"POST": MANAGE},
    "p/<slug:project>/settings/keys/<uuid:key_id>/revoke": {"POST": MANAGE},
    "p/<slug:project>/settings/budgets": {"GET": MANAGE},
    "p/<slug:project>/settings/budgets/set": {"POST": MANAGE},
    "p/<slug:project>/settings/retention": {"GET": MANAGE},
    "p/<slug:project>/settings/retention/set": {"POST": MANAGE},
    "p/<slug:project>/settings/audit": {"GET": MANAGE},
    "p/<slug:project>/settings/audit.csv": {"GET": MANAGE},
    "p/<slug:project>/settings/approvals": {"GET": MANAGE, "POST": MANAGE},
    "p/<slug:project>/schedules": {"GET": READ},
    "p/<slug:project>/schedules/<uuid:schedule_id>": {"GET": READ},
    "p/<slug:project>/schedules/<uuid:schedule_id>/edit": {"GET": OPERATE, "POST": OPERATE},
    "p/<slug:project>/schedules/<uuid:schedule_id>/switch": {"POST": OPERATE},
    "p/<slug:project>/schedules/<uuid:schedule_id>/run": {"POST": OPERATE},
    # Last, because it removes the schedule.
    "p/<slug:project>/schedules/<uuid:schedule_id>/remove": {"POST": OPERATE},
    "p/<slug:project>/new-schedule": {"GET": OPERATE, "POST": OPERATE},
    "p/<slug:project>/alerts": {"GET": READ},
    "p/<slug:project>/alerts/mute": {"POST": OPERATE},
    "p/<slug:project>/settings/alerts": {"GET": MANAGE},
    "p/<slug:project>/settings/alerts/save": {"POST": MANAGE},
    "p/<slug:project>/settings/alerts/switch": {"POST": MANAGE},
    "p/<slug:project>/settings/alerts/remove": {"POST": MANAGE},
    "p/<slug:project>/settings/alerts/test": {"POST": MANAGE},
    "p/<slug:project>/settings/sinks": {"GET": MANAGE},
    "p/<slug:project>/settings/telemetry": {"POST": MANAGE},
    "p/<slug:project>/settings/new-sink": {"GET": MANAGE, "POST": MANAGE},
    "p/<slug:project>/settings/sinks/<uuid:sink_id>": {"GET": MANAGE},
    "p/<slug:project>/settings/sinks/<uuid:sink_id>/edit": {"GET": MANAGE, "POST": MANAGE},
    "p/<slug:project>/settings/sinks/<uuid:sink_id>/switch": {"POST": MANAGE},
    "p/<slug:project>/settings/sinks/<uuid:sink_id>/test": {"POST": MANAGE},
    "p/<slug:project>/settings/sinks/<uuid:sink_id>/rotate": {"POST": MANAGE},
    "p/<slug:project>/settings/sinks/<uuid:sink_id>/resend": {"POST": MANAGE},
    "p/<slug:project>/settings/sinks/<uuid:sink_id>/delete": {"GET": MANAGE, "POST": MANAGE},
    "p/<slug:project>/prices": {"GET": MANAGE},
    "p/<slug:project>/prices/set": {"POST": MANAGE},
    "p/<slug:project>/prices/remove": {"POST": MANAGE},
    "p/<slug:project>/agents": {"GET": READ},
    "p/<slug:project>/agents/<slug:agent>": {"GET": READ},
    "p/<slug:project>/agents/<slug:agent>/edit": {"GET": MANAGE, "POST": MANAGE},
    "p/<slug:project>/agents/<slug:agent>/versions": {"GET": READ},
    "p/<slug:project>/agents/<slug:agent>/versions/<int:number>": {"GET": READ},
    "p/<slug:project>/new-agent": {"GET": MANAGE, "POST": MANAGE},
    "p/<slug:project>/flows": {"GET": READ},
    "p/<slug:project>/flows/<slug:flow>": {"GET": READ},
    "p/<slug:project>/flows/<slug:flow>/definition": {"GET": READ},
    "p/<slug:project>/flows/<slug:flow>/versions/<int:number>": {"GET": READ},
    "p/<slug:project>/flows/<slug:flow>/versions/<int:number>/definition": {"GET": READ},
    "p/<slug:project>/flows/<slug:flow>/edit": {"GET": MANAGE, "POST": MANAGE},
    "p/<slug:project>/flows/<slug:flow>/start": {"GET": OPERATE, "POST": OPERATE},
    "p/<slug:project>/new-flow": {"GET": MANAGE, "POST": MANAGE},
    "p/<slug:project>/new-flow/drawing": {"POST": MANAGE},
    "flow-runs/<uuid:flow_run_id>": {"GET": READ},
    "flow-runs/<uuid:flow_run_id>/fixtures": {"GET": READ},
    "flow-runs/<uuid:flow_run_id>/changes": {"GET": READ},
    "flow-runs/<uuid:flow_run_id>/rows": {"GET": READ},
    "flow-runs/<uuid:flow_run_id>/state": {"GET": READ},
    "flow-runs/<uuid:flow_run_id>/replay": {"GET": READ},
    "flow-runs/<uuid:flow_run_id>/replay/frame": {"GET": READ},
    "flow-runs/<uuid:flow_run_id>/stream": {"GET": READ},
    "flow-runs/<uuid:flow_run_id>/resume": {"POST": OPERATE},
    "flow-runs/<uuid:flow_run_id>/pause": {"POST": OPERATE},
    "flow-runs/<uuid:flow_run_id>/stop": {"POST": OPERATE},
    "flow-runs/<uuid:flow_run_id>/send": {"POST": OPERATE},
    "p/<slug:project>/runs": {"GET": READ},
    "p/<slug:project>/runs/rows": {"GET": READ},
    "p/<slug:project>/runs/stream": {"GET": READ},
    "p/<slug:project>/runs/resume": {"POST": OPERATE},
    "p/<slug:project>/runs/compare": {"POST": READ},
    "p/<slug:project>/runs/label": {"POST": OPERATE},
    "p/<slug:project>/runs/export/<slug:file_format>": {"GET": READ},
    "p/<slug:project>/runs/views": {"POST": READ},
    "p/<slug:project>/runs/views/<uuid:view_id>": {"POST": READ},
    "p/<slug:project>/search": {"GET": READ},
    "p/<slug:project>/runs/new": {"GET": OPERATE, "POST": OPERATE},
    "p/<slug:project>/imports": {"GET": READ, "POST": OPERATE},
    "p/<slug:project>/imports/<uuid:import_id>": {"GET": READ},
    "p/<slug:project>/imports/<uuid:import_id>/cancel": {"POST": OPERATE},
    "p/<slug:project>/ingest": {"GET": READ},
    "runs/<uuid:run_id>": {"GET": READ},
    "runs/<uuid:run_id>/minimap": {"GET": READ},
    "runs/<uuid:run_id>/rows": {"GET": READ},
    "runs/<uuid:run_id>/head": {"GET": READ},
    "runs/<uuid:run_id>/stream": {"GET": READ},
    "runs/<uuid:run_id>/waterfall": {"GET": READ},
    "runs/<uuid:run_id>/messages": {"GET": READ},
    "runs/<uuid:run_id>/calls": {"GET": READ},
    "runs/<uuid:run_id>/errors": {"GET": READ},
    "runs/<uuid:run_id>/changes": {"GET": READ},
    "runs/<uuid:run_id>/changes.patch": {"GET": READ},
    "runs/<uuid:run_id>/cost": {"GET": READ},
    "runs/<uuid:run_id>/state": {"GET": READ},
    "runs/<uuid:run_id>/events": {"GET": READ},
    "runs/<uuid:run_id>/replay": {"GET": READ},
    "runs/<uuid:run_id>/replay/frame": {"GET": READ},
    "runs/<uuid:run_id>/fixture": {"GET": READ},
    "runs/<uuid:run_id>/export/<slug:file_format>": {"GET": READ},
    "runs/<uuid:run_id>/labels": {"POST": OPERATE},
    "runs/<uuid:run_id>/notes": {"POST": OPERATE},
    "runs/<uuid:run_id>/notes/<uuid:note_id>": {"POST": OPERATE},
    "runs/<uuid:run_id>/share": {"POST": MANAGE},
    "runs/<uuid:run_id>/share/<uuid:link_id>": {"POST": MANAGE},
    "runs/<uuid:run_id>/tree": {"GET": READ},
    "runs/<uuid:run_id>/tree/rows": {"GET": READ},
    "runs/<uuid:run_id>/messages/<uuid:message_id>": {"GET": READ},
    "runs/<uuid:run_id>/messages/<uuid:message_id>/media/<int:index>": {"GET": READ},
    "runs/<uuid:run_id>/calls/<uuid:call_id>": {"GET": READ},
    "runs/<uuid:run_id>/calls/<uuid:call_id>/resolve": {"POST": OPERATE},
    "runs/<uuid:run_id>/calls/<uuid:call_id>/decide": {"POST": OPERATE},
    "p/<slug:project>/approvals": {"GET": READ},
    "p/<slug:project>/approvals/dismiss": {"POST": OPERATE},
    "runs/<uuid:run_id>/dismiss": {"POST": OPERATE},
    "flow-runs/<uuid:flow_run_id>/dismiss": {"POST": OPERATE},
    "runs/<uuid:run_id>/events/<int:seq>": {"GET": READ},
    "runs/<uuid:run_id>/resume": {"POST": OPERATE},
    "runs/<uuid:run_id>/pause": {"POST": OPERATE},
    "runs/<uuid:run_id>/stop": {"POST": OPERATE},
    "runs/<uuid:run_id>/send": {"POST": OPERATE},
    "runs/<uuid:run_id>/answer": {"POST": OPERATE},
    "runs/<uuid:run_id>/signal": {"POST": OPERATE},
    "runs/<uuid:run_id>/fork": {"GET": OPERATE, "POST": OPERATE},
    "compare": {"GET": READ},
}
_CSRF = re.compile(r'(?<=X-CSRFToken": ")[^"]+|(?<=name="csrfmiddlewaretoken" value=")[^"]+')
UNKNOWN = UUID("01a1f86c-1b1a-72f0-b808-0c8f1390c3f4")


def addresses(patterns: list[URLPattern | URLResolver], prefix: str = "") -> Iterator[str]:
    for entry in patterns:
        address = prefix + str(entry.pattern)
        if isinstance(entry, URLResolver):
            yield from addresses(entry.url_patterns, address)
        else:
            yield address


def of(project_slug: str, run_id: object, parts: dict[str, object]) -> dict[str, object]:
    return {"slug:project": project_slug, "uuid:run_id": run_id, **parts}


def filled(address: str, parts: dict[str, object]) -> str:
    # Pages of a run export HTML, and lists export CSV.
    parts = {**parts, "slug:file_format": "html" if "run_id" in address else "csv"}
    url = "/" + re.sub(r"<([^>]+)>", lambda found: str(parts[found[1]]), address)
    if address == "compare":
        return f"{url}?a={parts['uuid:run_id']}&b={parts['uuid:run_id']}"
    return f"{url}?before=3" if address.endswith(("<uuid:run_id>/rows", "<uuid:flow_run_id>/rows")) else url


def show_picture(message: AgentRunMessage) -> None:
    """Add a picture of one pixel to the text of a message."""
    part = message.content["parts"][0]
    if isinstance(part["content"], str):
        data = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
        part["content"] = [part["content"], {"kind": "binary", "media_type": "image/png", "data": data}]
        message.save(update_fields=["content"])


def parts_of(run: AgentRun) -> dict[str, object]:
    message, call = run.messages.first(), run.tool_calls.first()
    assert message is not None
    show_picture(message)
    assert call is not None
    file_import = FileImport.objects.filter(project=run.project).first() or make_import(run)
    flow_run = FlowRun.objects.filter(project=run.project).first() or make_ended_flow_run(run.project)
    ids = {"uuid:message_id": message.pk, "uuid:call_id": call.pk, "uuid:import_id": file_import.pk}
    ids["uuid:flow_run_id"] = flow_run.pk
    webhook = Sink.objects.filter(project=run.project).first() or make_sink(
        run.project, "webhook", {"url": "https://example.org/hooks"}
    )
    ids["uuid:sink_id"] = webhook.pk
    schedule = Schedule.objects.filter(project=run.project).first() or make_schedule(run.project, run.agent)
    ids["uuid:schedule_id"] = schedule.pk
    ids |= annotation_ids(run)
    key = ApiKey.objects.filter(project=run.project).first()
    ids["uuid:key_id"] = (key or create_key(run.project, name="parts", scopes=["read"], actor="test").key).pk
    agent = run.agent.slug if run.agent else "none"
    return of(
        run.project.slug,
        run.pk,
        {**ids, "int:seq": 1, "slug:agent": agent, "slug:flow": "sample", "int:number": 1, "int:index": 0},
    )


_NO_IDS: dict[str, object] = dict.fromkeys(
    (
        *("uuid:message_id", "uuid:call_id", "uuid:import_id", "uuid:flow_run_id", "uuid:sink_id", "uuid:key_id"),
        *("uuid:note_id", "uuid:view_id", "uuid:link_id", "uuid:schedule_id"),
    ),
    UNKNOWN,
)
NOWHERE = of(
    "nowhere",
    UNKNOWN,
    {**_NO_IDS, "int:seq": 1, "slug:agent": "none", "slug:flow": "none", "int:number": 1, "int:index": 0},
)


def bare(answer: Any) -> str:
    """Return the body without values that differ between two responses: request ID, time, and masked CSRF token."""
    text = answer.getvalue().decode(errors="replace").replace(answer["X-Request-ID"], "")
    return re.sub(r'data-now="[^"]*"', "", _CSRF.sub("", text))


def headers_of(answer: Any) -> dict[str, str]:
    """Return the headers except those that count requests or identify one."""
    counted = ("X-Request-ID", rate_limits.REMAINING, rate_limits.RESET)
    return {name: value for name, value in answer.headers.items() if name not in counted}
