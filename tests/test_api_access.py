"""Access to the API: every URL × every kind of caller × own, foreign and unknown objects.

The URLs come from the URL configuration, so a new URL fails here until the table lists its permissions.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import time_machine
from django.contrib.auth.models import User
from django.test import Client
from django.urls import get_resolver

from agentops.accounts.access import SYSTEM
from agentops.accounts.invitations import invite
from agentops.accounts.keys import create_key
from agentops.accounts.memberships import add_member
from agentops.accounts.models import Invitation, Project, Role
from runs.alerts.alert_rule_changes import add_rule
from runs.models import AgentRun, AlertRule, FileImport, FlowRun, Schedule, Sink
from runs.telemetry import deliveries
from tests.support.addresses import addresses, bare, headers_of
from tests.support.factories import drive, make_agent, make_import, make_person, make_project, make_run, with_key
from tests.support.flows import CONSTANT, make_ended_flow_run
from tests.support.project_rows import annotation_ids, make_schedule, make_sink
from tests.support.second_pass import cases

UNKNOWN = "01a1f86c-1b1a-72f0-b808-0c8f1390c3f4"
ANYONE, READ, OPERATE, PERSON, INGEST = "anyone", "read", "operate", "person", "ingest"
REPORT, UPLOAD, VIEW_IMPORTS, REVEAL = "report", "upload", "view imports", "reveal"
#: For keys with the scope `work`, which no caller here has: see tests/runs/remote.
WORK = "work"
#: Answers 409, because the import has ended.
CANCEL = "cancel"
CONFIGURE, ADD, REMOVE, SEND, SUPER = "configure", "add", "remove", "send", "super"
#: Answers 422 to admins, because the confirmation is missing.
UNCONFIRMED = "unconfirmed"
#: Objects that belong to another user, so no caller may change them. OWN requires read access, OWN_RUN requires
#: operate.
OWN, OWN_RUN, SAVE = "own", "own of a run", "save"
SCHEDULE, UNSCHEDULE = "schedule", "unschedule"
_SESSION = "api/projects/<str:project>/agent/sessions/<str:session>"
_CLAUDE = "api/projects/<str:project>/claude-sessions"
_ALERT_RULES = "api/projects/<str:project>/alert-rules"
_SCHEDULES = "api/projects/<str:project>/schedules"
_RUN = "api/projects/<str:project>/agent-runs/<uuid:run_id>"
_FLOWS = "api/projects/<str:project>/flows"
_FLOW_RUN = "api/projects/<str:project>/flow-runs/<uuid:flow_run_id>"
_PROJECT = "api/projects/<str:project>"
_SINKS, _WEBHOOKS = "api/projects/<str:project>/sinks", "api/projects/<str:project>/webhooks"
API: dict[str, dict[str, str]] = {
    "api/schema": {"GET": ANYONE},
    "api/schema/events": {"GET": ANYONE},
    "api/schema/fixtures": {"GET": ANYONE},
    "api/internal/agent-events": {"POST": INGEST},
    "api/internal/agent-hooks/claude-code": {"POST": INGEST},
    "api/internal/sessions": {"POST": INGEST},
    "api/internal/sessions/known": {"POST": INGEST},
    "api/internal/sessions/wait": {"POST": INGEST},
    "api/work/agents": {"POST": WORK},
    "api/work/claim": {"POST": WORK},
    "api/work/heartbeat": {"POST": WORK},
    "api/work/stream": {"GET": WORK},
    "api/work/checkpoints": {"GET": WORK},
    "api/work/threads": {"POST": WORK},
    "api/work/steps": {"POST": WORK},
    "api/work/runs/<uuid:run_id>/steps": {"GET": WORK, "POST": WORK},
    "api/work/runs/<uuid:run_id>/steps/value": {"GET": WORK},
    "api/work/runs/<uuid:run_id>/release": {"POST": WORK},
    "api/public/otel/v1/traces": {"POST": INGEST},
    "api/public/projects": {"GET": INGEST},
    "v1/traces": {"POST": INGEST},
    "v1/logs": {"POST": INGEST},
    "v1/metrics": {"POST": INGEST},
    "api/projects": {"GET": ANYONE, "POST": SUPER},
    _PROJECT: {"GET": READ, "PATCH": CONFIGURE, "DELETE": UNCONFIRMED},
    f"{_PROJECT}/deletion": {"GET": CONFIGURE},
    f"{_PROJECT}/members": {"GET": CONFIGURE, "POST": ADD},
    f"{_PROJECT}/members/<str:username>": {"PATCH": CONFIGURE, "DELETE": REMOVE},
    f"{_PROJECT}/invitations": {"GET": CONFIGURE, "POST": ADD},
    f"{_PROJECT}/invitations/<uuid:invitation_id>": {"DELETE": REMOVE},
    f"{_PROJECT}/keys": {"GET": CONFIGURE, "POST": ADD},
    f"{_PROJECT}/keys/<uuid:key_id>": {"GET": CONFIGURE},
    f"{_PROJECT}/keys/<uuid:key_id>/rotate": {"POST": ADD},
    f"{_PROJECT}/keys/<uuid:key_id>/revoke": {"POST": CONFIGURE},
    # Archive and restore in this order, because an archived project refuses every action.
    f"{_PROJECT}/archive": {"POST": CONFIGURE},
    f"{_PROJECT}/unarchive": {"POST": CONFIGURE},
    "api/projects/<str:project>/agents": {"GET": READ},
    "api/projects/<str:project>/agents/<str:agent>": {"GET": READ},
    "api/projects/<str:project>/agents/<str:agent>/versions": {"GET": READ},
    "api/projects/<str:project>/agents/<str:agent>/versions/<int:number>": {"GET": READ},
    "api/projects/<str:project>/agents/<str:agent>/ag-ui": {"POST": OPERATE},
    "api/projects/<str:project>/agent-runs": {"GET": READ, "POST": OPERATE},
    "api/projects/<str:project>/agent-runs/resume": {"POST": OPERATE},
    "api/projects/<str:project>/agent-runs/export": {"GET": READ},
    "api/projects/<str:project>/saved-views": {"GET": READ, "POST": SAVE},
    "api/projects/<str:project>/saved-views/<uuid:view_id>": {"PATCH": OWN, "DELETE": OWN},
    "api/jobs/<str:job>/events": {"GET": READ},
    "api/jobs/<str:job>/events/stream": {"GET": READ},
    _SESSION: {"GET": READ, "PATCH": REPORT},
    f"{_SESSION}/events": {"GET": READ},
    f"{_SESSION}/events/stream": {"GET": READ},
    _CLAUDE: {"GET": READ, "POST": OPERATE},
    f"{_CLAUDE}/entries": {"GET": REVEAL, "DELETE": OPERATE},
    f"{_CLAUDE}/subpaths": {"GET": READ},
    f"{_ALERT_RULES}": {"GET": READ, "POST": CONFIGURE},
    f"{_ALERT_RULES}/<uuid:rule_id>/test": {"POST": CONFIGURE},
    f"{_ALERT_RULES}/<uuid:rule_id>": {"GET": READ, "PATCH": CONFIGURE, "DELETE": CONFIGURE},
    "api/projects/<str:project>/alerts": {"GET": READ},
    "api/projects/<str:project>/alert-mutes": {"GET": READ, "POST": OPERATE},
    _SCHEDULES: {"GET": READ, "POST": SCHEDULE},
    f"{_SCHEDULES}/<uuid:schedule_id>/starts": {"GET": READ},
    f"{_SCHEDULES}/<uuid:schedule_id>/run": {"POST": SCHEDULE},
    # Last, because it deletes the schedule.
    f"{_SCHEDULES}/<uuid:schedule_id>": {"GET": READ, "PATCH": OPERATE, "DELETE": UNSCHEDULE},
    "api/projects/<str:project>/imports": {"GET": VIEW_IMPORTS, "POST": UPLOAD},
    "api/projects/<str:project>/imports/<uuid:import_id>": {"GET": VIEW_IMPORTS},
    "api/projects/<str:project>/imports/<uuid:import_id>/cancel": {"POST": CANCEL},
    "api/projects/<str:project>/search": {"GET": READ},
    "api/projects/<str:project>/notifications": {"GET": READ},
    "api/projects/<str:project>/notifications/read": {"POST": PERSON},
    _RUN: {"GET": READ, "PATCH": OPERATE},
    f"{_RUN}/export": {"GET": READ},
    f"{_RUN}/notes": {"GET": READ, "POST": OPERATE},
    f"{_RUN}/notes/<uuid:note_id>": {"PATCH": OWN_RUN, "DELETE": OWN_RUN},
    f"{_RUN}/share-links": {"GET": CONFIGURE, "POST": CONFIGURE},
    f"{_RUN}/share-links/<uuid:link_id>": {"DELETE": CONFIGURE},
    f"{_RUN}/messages": {"GET": READ},
    f"{_RUN}/messages/<uuid:message_id>": {"GET": READ},
    f"{_RUN}/tool-calls": {"GET": READ},
    f"{_RUN}/tool-calls/<uuid:call_id>": {"GET": READ},
    f"{_RUN}/tool-calls/<uuid:call_id>/output": {"GET": READ},
    f"{_RUN}/tool-calls/<uuid:call_id>/resolve": {"POST": OPERATE},
    f"{_RUN}/events": {"GET": READ},
    f"{_RUN}/events/stream": {"GET": READ},
    f"{_RUN}/replay": {"GET": READ},
    f"{_RUN}/snapshot": {"GET": READ},
    f"{_RUN}/fixture": {"GET": READ},
    f"{_RUN}/children": {"GET": READ},
    f"{_RUN}/checkpoints": {"GET": READ},
    f"{_RUN}/changes": {"GET": READ},
    f"{_RUN}/changes.patch": {"GET": READ},
    f"{_RUN}/errors": {"GET": READ},
    f"{_RUN}/usage": {"GET": READ},
    f"{_RUN}/resume": {"POST": OPERATE},
    f"{_RUN}/fork": {"POST": OPERATE},
    f"{_RUN}/pause": {"POST": OPERATE},
    f"{_RUN}/stop": {"POST": OPERATE},
    f"{_RUN}/commands": {"POST": OPERATE},
    f"{_RUN}/signals": {"POST": OPERATE},
    f"{_RUN}/approvals/<uuid:call_id>": {"POST": OPERATE},
    "api/projects/<str:project>/approvals": {"GET": READ},
    "api/schema/flows": {"GET": ANYONE},
    "api/projects/<str:project>/flow-runs": {"GET": READ, "POST": OPERATE},
    _FLOW_RUN: {"GET": READ},
    f"{_FLOW_RUN}/events": {"GET": READ},
    f"{_FLOW_RUN}/fixtures": {"GET": READ},
    f"{_FLOW_RUN}/replay": {"GET": READ},
    f"{_FLOW_RUN}/events/stream": {"GET": READ},
    f"{_FLOW_RUN}/snapshot": {"GET": READ},
    f"{_FLOW_RUN}/commands": {"POST": OPERATE},
    f"{_FLOW_RUN}/pause": {"POST": OPERATE},
    f"{_FLOW_RUN}/resume": {"POST": OPERATE},
    f"{_FLOW_RUN}/stop": {"POST": OPERATE},
    _FLOWS: {"GET": READ, "POST": CONFIGURE},
    f"{_FLOWS}/validate": {"POST": READ},
    f"{_FLOWS}/<str:flow>/versions": {"GET": READ},
    f"{_FLOWS}/<str:flow>/versions/<int:number>": {"GET": READ},
    # Last, because it deletes the flow.
    f"{_FLOWS}/<str:flow>": {"GET": READ, "PUT": CONFIGURE, "DELETE": CONFIGURE},
    _SINKS: {"GET": CONFIGURE, "POST": ADD},
    f"{_SINKS}/<uuid:sink_id>/test": {"POST": SEND},
    f"{_SINKS}/<uuid:sink_id>/deliveries": {"GET": CONFIGURE},
    f"{_SINKS}/<uuid:sink_id>/deliveries/<uuid:delivery_id>": {"GET": CONFIGURE},
    f"{_SINKS}/<uuid:sink_id>/deliveries/<uuid:delivery_id>/resend": {"POST": SEND},
    f"{_SINKS}/<uuid:sink_id>": {"GET": CONFIGURE, "PATCH": CONFIGURE, "DELETE": REMOVE},
    _WEBHOOKS: {"GET": CONFIGURE, "POST": ADD},
    f"{_WEBHOOKS}/<uuid:webhook_id>/test": {"POST": SEND},
    f"{_WEBHOOKS}/<uuid:webhook_id>/rotate": {"POST": CONFIGURE},
    f"{_WEBHOOKS}/<uuid:webhook_id>/deliveries": {"GET": CONFIGURE},
    f"{_WEBHOOKS}/<uuid:webhook_id>/deliveries/<uuid:delivery_id>": {"GET": CONFIGURE},
    f"{_WEBHOOKS}/<uuid:webhook_id>/deliveries/<uuid:delivery_id>/resend": {"POST": SEND},
    f"{_WEBHOOKS}/<uuid:webhook_id>": {"GET": CONFIGURE, "PATCH": CONFIGURE, "DELETE": REMOVE},
}
#: HTML pages of the API, tested in tests/runs/api/test_openapi.py.
PAGES = {"api/docs"}
#: Required query parameters of each URL.
QUERIES = {
    "api/work/runs/<uuid:run_id>/steps": "?epoch=1",
    "api/work/runs/<uuid:run_id>/steps/value": "?epoch=1&key=1",
    "api/projects/<str:project>/search": "?q=go",
    f"{_CLAUDE}/entries": "?project_key=work&session_id=theirs",
    f"{_CLAUDE}/subpaths": "?project_key=work&session_id=theirs",
}
BODIES = {
    "api/internal/agent-events": {"runId": "theirs", "type": "run.started"},
    "api/internal/agent-hooks/claude-code": {"session_id": "theirs"},
    "api/internal/sessions": {"runs": []},
    "api/internal/sessions/known": {"runId": "theirs", "event_ids": []},
    "api/internal/sessions/wait": {"runId": "theirs"},
    "api/projects/<str:project>/agents/<str:agent>/ag-ui": {
        "threadId": "t",
        "runId": "r",
        "messages": [{"id": "m", "role": "user", "content": "Go."}],
    },
    "api/projects": {"slug": "gamma"},
    f"{_PROJECT}/members": {"user": "joiner", "role": "viewer"},
    f"{_PROJECT}/members/<str:username>": {"role": "operator"},
    f"{_PROJECT}/invitations": {"email": "new@example.org", "role": "viewer"},
    f"{_PROJECT}/keys": {"name": "ci", "scopes": ["read"]},
    "api/projects/<str:project>/agent-runs": {"agent_id": "AGENT"},
    "api/projects/<str:project>/agent-runs/resume": {"ids": [UNKNOWN]},
    "api/projects/<str:project>/notifications/read": {"ids": [UNKNOWN]},
    _ALERT_RULES: {"name": "Failures", "kind": "run_failed"},
    f"{_ALERT_RULES}/<uuid:rule_id>": {"group_minutes": 5},
    "api/projects/<str:project>/alert-mutes": {"agent_id": "AGENT", "minutes": 5},
    _SCHEDULES: {"name": "Another", "agent_id": "AGENT", "every_s": 60},
    f"{_SCHEDULES}/<uuid:schedule_id>": {"is_enabled": False},
    _SINKS: {"name": "another", "kind": "jsonl"},
    _WEBHOOKS: {"name": "one-more", "url": "https://example.org/hook"},
    _CLAUDE: {"project_key": "work", "session_id": "theirs", "entries": [{"type": "x"}]},
    "api/projects/<str:project>/flow-runs": {"flow_id": "FLOW"},
    f"{_FLOW_RUN}/commands": {"type": "resume"},
    _FLOWS: {"definition": CONSTANT},
    f"{_FLOWS}/validate": {"definition": CONSTANT},
    f"{_FLOWS}/<str:flow>": {"definition": {"nodes": CONSTANT["nodes"]}},
    f"{_RUN}/approvals/<uuid:call_id>": {"decision": "approve"},
    f"{_RUN}/commands": {"type": "stop"},
    f"{_RUN}/signals": {"name": "paid"},
    f"{_RUN}/fork": {"step": 1},
    _RUN: {"add_labels": ["nightly"]},
    f"{_RUN}/notes": {"text": "Seen."},
    f"{_RUN}/notes/<uuid:note_id>": {"text": "Changed."},
    "api/projects/<str:project>/saved-views": {"name": "Mine", "query": "status=failed"},
    "api/projects/<str:project>/saved-views/<uuid:view_id>": {"name": "Ours"},
    f"{_RUN}/tool-calls/<uuid:call_id>/resolve": {"choice": "retry"},
}
DONE = {ADD: 201, SUPER: 201, UNCONFIRMED: 422, SAVE: 201, REMOVE: 204, UPLOAD: 202, SEND: 202, CANCEL: 409}
DONE |= {SCHEDULE: 201, UNSCHEDULE: 204}
READERS = {"viewer", "operator", "admin", "superuser", "key:read", "key:write"}
OPERATORS = {"operator", "admin", "superuser", "key:write"}
PEOPLE = {"viewer", "operator", "admin", "superuser"}
ADMINS = {"admin", "superuser"}
UPLOADERS = {"operator", *ADMINS, "key:ingest"}
ALLOWED = {
    "read": READERS,
    "operate": OPERATORS,
    "person": PEOPLE,
    SUPER: {"superuser"},
    OWN: READERS,
    SAVE: PEOPLE,
    OWN_RUN: OPERATORS,
    **dict.fromkeys([SCHEDULE, UNSCHEDULE], OPERATORS),
    "report": {"key:ingest", "key:write"},
    UPLOAD: UPLOADERS,
    CANCEL: UPLOADERS,
    "reveal": ADMINS,
    **dict.fromkeys([CONFIGURE, ADD, REMOVE, SEND, UNCONFIRMED], ADMINS),
    "view imports": {*READERS, "key:ingest"},
}
RUNNERS = {"key:ingest", "outsider's key"}
FOREIGNERS = {"outsider", "outsider's key"}
CALLERS = ["anonymous", *sorted(FOREIGNERS), *sorted(READERS), "key:ingest"]
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]
Parts = dict[str, object]


@pytest.fixture
def project(db: None) -> Project:
    return make_project("alpha")


@pytest.fixture
def foreign(db: None) -> Project:
    return make_project("beta")


def ended_run(project: Project) -> AgentRun:
    return drive(make_run(make_agent(project)))


def caller(who: str, project: Project, foreign: Project) -> Client:
    if who.startswith("key:"):
        return Client(headers=with_key(project, who.removeprefix("key:")))
    if who == "outsider's key":
        return Client(headers=with_key(foreign, "read", "write", "ingest"))
    client = Client()
    if who == "superuser":
        client.force_login(User.objects.create_superuser("boss"))
    elif who != "anonymous":
        client.force_login(make_person(*((foreign, Role.ADMIN) if who == "outsider" else (project, Role(who)))))
    return client


def parts_of(run: AgentRun) -> Parts:
    message, call = run.messages.earliest("position"), run.tool_calls.earliest("pk")
    agent = run.agent_config["agent_id"]
    own = {"project": run.project.slug, "agent": agent, "number": 1, "session": run.pk, "job": run.pk}
    file_import = FileImport.objects.filter(project=run.project).first() or make_import(run)
    flow_run = FlowRun.objects.filter(project=run.project).first() or make_ended_flow_run(run.project)
    own |= {"flow": flow_run.slug, "flow_run_id": flow_run.pk}
    rule = AlertRule.objects.filter(project=run.project).first()
    rule = rule or add_rule(run.project, {"name": "Stalls", "kind": "run_stalled"}, by="test")[0]
    schedule = Schedule.objects.filter(project=run.project).first() or make_schedule(run.project, run.agent)
    own |= {"schedule_id": schedule.pk}
    annotations = {name.removeprefix("uuid:"): pk for name, pk in annotation_ids(run).items()}
    ids = annotations | {"rule_id": rule.pk, "message_id": message.pk, "call_id": call.pk, "import_id": file_import.pk}
    sink, webhook = sinks_of(run.project)
    deliveries = {"delivery_id": sink[1], "webhook's delivery": webhook[1]}
    ids |= managed_parts(run.project)
    return {**own, "run_id": run.pk, **ids, "sink_id": sink[0], "webhook_id": webhook[0], **deliveries}


def managed_parts(project: Project) -> Parts:
    """Create a member, an invitation and a key for the requests to change or remove, and a user to add."""
    name = f"member of {project.slug}"
    if not User.objects.filter(username=name).exists():
        add_member(project, User.objects.create_user(name), Role.VIEWER, actor=SYSTEM)
        User.objects.get_or_create(username="joiner")
    invitation = Invitation.objects.filter(project=project, email="old@example.org").first()
    invitation = invitation or invite(project, "old@example.org", Role.VIEWER, actor=SYSTEM)
    key = project.api_keys.filter(name="to rotate").first()
    key = key or create_key(project, name="to rotate", scopes=["read"], actor=SYSTEM).key
    return {"username": name, "invitation_id": invitation.pk, "key_id": key.pk}


def sinks_of(project: Project) -> list[tuple[object, object]]:
    """Return the IDs of a sink and a webhook, each with a delivery."""
    existing = list(Sink.objects.filter(project=project, name__in=["sink", "webhook"]).order_by("name"))
    config: dict[str, dict[str, str]] = {"jsonl": {}, "webhook": {"url": "https://example.org/hook"}}
    made = existing or [make_sink(project, kind, config[kind], name=kind.replace("jsonl", "sink")) for kind in config]
    return [(sink.pk, (sink.deliveries.first() or deliveries.queue_test(sink)).pk) for sink in made]


def of_nobody(parts: Parts) -> Parts:
    return {**dict.fromkeys(parts, UNKNOWN), "project": "nowhere", "agent": "nobody", "flow": "nobody", "number": 9}


def ask(client: Client, method: str, address: str, parts: Parts) -> Any:
    if "webhook_id" in address:
        parts = {**parts, "delivery_id": parts["webhook's delivery"]}
    url = "/" + re.sub(r"<\w+:(\w+)>", lambda found: str(parts[found[1]]), address)
    url += "" if method == "POST" else QUERIES.get(address, "")
    body = json.dumps(BODIES.get(address, {})).replace("AGENT", str(parts["agent"]))
    body = body.replace("FLOW", str(parts["flow"]))
    return client.generic(
        method, url, body if method in ("POST", "PATCH", "PUT") else "", content_type="application/json"
    )


def of_somebody_else(served: str, method: str, who: str) -> set[int]:
    """Return the expected statuses for an object of another user: admins may delete such notes and shared views."""
    return {204} if method == "DELETE" and who in ADMINS else {403 if served == OWN_RUN else 404}


def expected(address: str, method: str, who: str) -> set[int]:
    served = API[address][method]
    if who == "anonymous":
        return {401}
    if served == INGEST:
        # The event goes into the key's project. A session does not authenticate a runner.
        return {200} if who in RUNNERS else {403} if who.startswith("key:") else {401}
    if served in (ANYONE, WORK):
        return {200 if served == ANYONE else 403}
    if who in FOREIGNERS:
        return {403 if served == SUPER else 404}
    if who not in ALLOWED[served]:
        return {403}
    if who == "key:ingest" and "import_id" in address:
        return {404}  # another key uploaded it
    if served in (OWN, OWN_RUN):
        return of_somebody_else(served, method, who)
    if served in DONE:
        return {DONE[served]}
    if address == f"{_FLOW_RUN}/fixtures":
        return {409}  # no agent node ran
    # The run has ended, so an allowed request may still answer 409.
    return {200, 201, 409} if served == OPERATE else {200, 201, 204} if served == CONFIGURE else {200}


def test_every_url_is_in_the_table() -> None:
    every = addresses(get_resolver("agentops.urls").url_patterns)
    known = {address for address in every if address.startswith(("api/", "v1/"))}

    assert known - PAGES == set(API)


def wrong_answers(who: str, client: Client, parts: Parts) -> dict[tuple[str, str], int]:
    """Return the unexpected statuses of every method of every URL."""
    statuses = {
        (address, method): ask(client, method, address, parts).status_code for address in API for method in API[address]
    }
    return {key: status for key, status in statuses.items() if status not in expected(*key, who)}


@pytest.mark.parametrize("who", sorted(OPERATORS))
def test_each_caller_gets_the_expected_status(who: str, project: Project, foreign: Project) -> None:
    client, parts = caller(who, project, foreign), parts_of(ended_run(project))

    assert not wrong_answers(who, client, parts)
    assert AgentRun.objects.exclude(pk=parts["run_id"]).count() == 4


def test_a_caller_without_permission_changes_nothing(project: Project, foreign: Project) -> None:
    parts = parts_of(ended_run(project))

    wrong = {who: wrong_answers(who, caller(who, project, foreign), parts) for who in CALLERS if who not in OPERATORS}
    assert not any(wrong.values()), wrong
    # Ingest keys created runs, each in the key's project.
    assert AgentRun.objects.filter(external_id=None).count() == 1


def test_an_unsupported_method_is_refused_for_every_caller(project: Project, foreign: Project) -> None:
    """The method is checked before the credentials: all are tried without credentials, and one per URL with them."""
    parts = parts_of(ended_run(project))
    others = {address: [method for method in METHODS if method not in served] for address, served in API.items()}

    for who in cases(["anonymous", "outsider's key", "key:ingest", "superuser"]):
        client = caller(who, project, foreign)
        for address, methods in others.items():
            for method in methods if who == "anonymous" else methods[-1:]:
                assert ask(client, method, address, parts).status_code == 405, (who, method, address)


def test_only_admins_may_kill_runs_and_resume_all_runs(project: Project, foreign: Project) -> None:
    run = ended_run(project)
    base = "/api/projects/alpha/agent-runs"
    for who in sorted(READERS):
        client = caller(who, project, foreign)
        for url, body in ((f"{base}/{run.pk}/resume", {"kill": True}), (f"{base}/resume", {"all": True})):
            answer = client.post(url, body, content_type="application/json")
            assert answer.status_code in ({200, 409} if who in ADMINS else {403}), (who, body)


@pytest.mark.parametrize("who", ["viewer", "admin"])
def test_a_foreign_object_looks_like_an_unknown_one(who: str, project: Project, foreign: Project) -> None:
    """The responses are identical except for the request ID. An operator has the same rights as either a viewer or an
    admin.
    """
    client, theirs = caller(who, project, foreign), parts_of(ended_run(foreign))
    ours = {**theirs, "project": "alpha"}  # the ID of their run in a URL of our project
    with time_machine.travel(1_795_000_000, tick=False):
        for address, served in API.items():
            if "<" not in address or WORK in served.values():
                continue
            for method in served:
                nobodys = ask(client, method, address, of_nobody(theirs))
                assert nobodys.status_code == 404, address
                assert same(ask(client, method, address, theirs), nobodys), address
                if "run_id" not in address or who not in ALLOWED[served[method]]:
                    continue
                unknown = ask(client, method, address, {**of_nobody(theirs), "project": "alpha"})
                assert unknown.status_code == 404, address
                assert same(ask(client, method, address, ours), unknown), address


def same(one: Any, other: Any) -> bool:
    return (one.status_code, bare(one), headers_of(one)) == (other.status_code, bare(other), headers_of(other))


def test_responses_do_not_depend_on_the_content_of_another_project(project: Project, foreign: Project) -> None:
    client, parts = caller("operator", project, foreign), parts_of(ended_run(project))

    def seen() -> list[str]:
        with time_machine.travel(1_795_000_000, tick=False):
            answers = [ask(client, "GET", address, parts) for address, served in API.items() if "GET" in served]
        return [bare(answer) for answer in answers if not answer.streaming]

    before = seen()
    assert len(before) > 12
    for _ in range(3):
        ended_run(foreign)

    assert seen() == before
