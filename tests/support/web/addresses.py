"""Every address of a page, whom it serves, and how its placeholders are filled."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from uuid import UUID

from django.urls import URLPattern, URLResolver

from agentops.projects.rate_limits import limits
from runs.models import AgentRun, FileImport, FlowRun, Sink
from tests.support.factories import make_import
from tests.support.flows.flow_runs import make_ended_flow_run
from tests.support.sinks import make_sink

#: Address → (method → whom it serves). Whoever is named in READERS may read, in OPERATORS act, in ADMINS manage.
READ, OPERATE, MANAGE = "read", "operate", "manage"
PAGES: dict[str, dict[str, str]] = {
    "p/<slug:project>/notifications": {"GET": READ},
    "p/<slug:project>/notifications/read": {"POST": READ},
    "p/<slug:project>/settings/redaction": {"GET": MANAGE},
    "p/<slug:project>/settings/redaction/add": {"POST": MANAGE},
    "p/<slug:project>/settings/redaction/model-input": {"POST": MANAGE},
    "p/<slug:project>/settings/redaction/remove": {"POST": MANAGE},
    "p/<slug:project>/settings/redaction/test": {"POST": MANAGE},
    "p/<slug:project>/settings/approvals": {"GET": MANAGE, "POST": MANAGE},
    "p/<slug:project>/alerts": {"GET": READ},
    "p/<slug:project>/alerts/mute": {"POST": OPERATE},
    "p/<slug:project>/settings/alerts": {"GET": MANAGE},
    "p/<slug:project>/settings/alerts/save": {"POST": MANAGE},
    "p/<slug:project>/settings/alerts/switch": {"POST": MANAGE},
    "p/<slug:project>/settings/alerts/remove": {"POST": MANAGE},
    "p/<slug:project>/settings/alerts/test": {"POST": MANAGE},
    "p/<slug:project>/settings/sinks": {"GET": MANAGE},
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
    "p/<slug:project>/flows/<slug:flow>/versions/<int:number>": {"GET": READ},
    "p/<slug:project>/flows/<slug:flow>/edit": {"GET": MANAGE, "POST": MANAGE},
    "p/<slug:project>/flows/<slug:flow>/start": {"GET": OPERATE, "POST": OPERATE},
    "p/<slug:project>/new-flow": {"GET": MANAGE, "POST": MANAGE},
    "p/<slug:project>/new-flow/drawing": {"POST": MANAGE},
    "flow-runs/<uuid:flow_run_id>": {"GET": READ},
    "flow-runs/<uuid:flow_run_id>/fixtures": {"GET": READ},
    "flow-runs/<uuid:flow_run_id>/changes": {"GET": READ},
    "flow-runs/<uuid:flow_run_id>/rows": {"GET": READ},
    "flow-runs/<uuid:flow_run_id>/state": {"GET": READ},
    "flow-runs/<uuid:flow_run_id>/stream": {"GET": READ},
    "flow-runs/<uuid:flow_run_id>/resume": {"POST": OPERATE},
    "flow-runs/<uuid:flow_run_id>/pause": {"POST": OPERATE},
    "flow-runs/<uuid:flow_run_id>/stop": {"POST": OPERATE},
    "flow-runs/<uuid:flow_run_id>/send": {"POST": OPERATE},
    "p/<slug:project>/runs": {"GET": READ},
    "p/<slug:project>/runs/rows": {"GET": READ},
    "p/<slug:project>/runs/stream": {"GET": READ},
    "p/<slug:project>/runs/resume": {"POST": OPERATE},
    "p/<slug:project>/search": {"GET": READ},
    "p/<slug:project>/runs/new": {"GET": OPERATE, "POST": OPERATE},
    "p/<slug:project>/imports": {"GET": READ, "POST": OPERATE},
    "p/<slug:project>/imports/<uuid:import_id>": {"GET": READ},
    "p/<slug:project>/ingest": {"GET": READ},
    "runs/<uuid:run_id>": {"GET": READ},
    "runs/<uuid:run_id>/rows": {"GET": READ},
    "runs/<uuid:run_id>/head": {"GET": READ},
    "runs/<uuid:run_id>/stream": {"GET": READ},
    "runs/<uuid:run_id>/replay": {"GET": READ},
    "runs/<uuid:run_id>/replay/frame": {"GET": READ},
    "runs/<uuid:run_id>/fixture": {"GET": READ},
    "runs/<uuid:run_id>/tree": {"GET": READ},
    "runs/<uuid:run_id>/tree/rows": {"GET": READ},
    "runs/<uuid:run_id>/messages/<uuid:message_id>": {"GET": READ},
    "runs/<uuid:run_id>/calls/<uuid:call_id>": {"GET": READ},
    "runs/<uuid:run_id>/calls/<uuid:call_id>/resolve": {"POST": OPERATE},
    "runs/<uuid:run_id>/calls/<uuid:call_id>/decide": {"POST": OPERATE},
    "p/<slug:project>/approvals": {"GET": READ},
    "runs/<uuid:run_id>/events/<int:seq>": {"GET": READ},
    "runs/<uuid:run_id>/resume": {"POST": OPERATE},
    "runs/<uuid:run_id>/pause": {"POST": OPERATE},
    "runs/<uuid:run_id>/stop": {"POST": OPERATE},
    "runs/<uuid:run_id>/send": {"POST": OPERATE},
    "runs/<uuid:run_id>/answer": {"POST": OPERATE},
    "runs/<uuid:run_id>/fork": {"GET": OPERATE, "POST": OPERATE},
    "compare": {"GET": READ},
}
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
    url = "/" + re.sub(r"<([^>]+)>", lambda found: str(parts[found[1]]), address)
    if address == "compare":
        return f"{url}?a={parts['uuid:run_id']}&b={parts['uuid:run_id']}"
    return f"{url}?before=3" if address.endswith(("<uuid:run_id>/rows", "<uuid:flow_run_id>/rows")) else url


def parts_of(run: AgentRun) -> dict[str, object]:
    message, call = run.messages.first(), run.tool_calls.first()
    assert message is not None
    assert call is not None
    file_import = FileImport.objects.filter(project=run.project).first() or make_import(run)
    flow_run = FlowRun.objects.filter(project=run.project).first() or make_ended_flow_run(run.project)
    ids = {"uuid:message_id": message.pk, "uuid:call_id": call.pk, "uuid:import_id": file_import.pk}
    ids["uuid:flow_run_id"] = flow_run.pk
    webhook = Sink.objects.filter(project=run.project).first() or make_sink(
        run.project, "webhook", {"url": "https://example.org/hooks"}
    )
    ids["uuid:sink_id"] = webhook.pk
    agent = run.agent.slug if run.agent else "none"
    return of(
        run.project.slug, run.pk, {**ids, "int:seq": 1, "slug:agent": agent, "slug:flow": "sample", "int:number": 1}
    )


_NO_IDS: dict[str, object] = dict.fromkeys(
    ("uuid:message_id", "uuid:call_id", "uuid:import_id", "uuid:flow_run_id", "uuid:sink_id"), UNKNOWN
)
NOWHERE = of("nowhere", UNKNOWN, {**_NO_IDS, "int:seq": 1, "slug:agent": "none", "slug:flow": "none", "int:number": 1})


def bare(answer: Any) -> str:
    return answer.content.decode().replace(answer["X-Request-ID"], "")


def headers_of(answer: Any) -> dict[str, str]:
    """But for those that count requests, or name one."""
    counted = ("X-Request-ID", limits.REMAINING, limits.RESET)
    return {name: value for name, value in answer.headers.items() if name not in counted}
