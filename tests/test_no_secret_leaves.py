"""The rows of a run contain canary secrets of every kind; no response contains a canary unless secrets are requested.

The URLs come from the URL configuration, so a new URL fails here until the table lists it.
"""

from __future__ import annotations

import gzip
import itertools
import json
import logging
import re
import zipfile
from contextlib import suppress
from io import BytesIO, StringIO
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import transaction
from django.test import Client
from django.urls import get_resolver

from agentops.accounts.models import AuditEntry, IdempotencyKey, Role
from agentops.accounts.redaction_cache import CACHE
from agentops.base.http.log_lines import LogLine
from runs.models import (
    Agent,
    AgentRun,
    AgentRunMessage,
    AgentRunToolCall,
    Delivery,
    Flow,
    FlowRun,
    FlowVersion,
    FlowVisit,
    RunCommand,
    RunError,
    RunNote,
    Sink,
    SinkCursor,
)
from runs.pages.runs.list_query import PAGE_SIZE, ListPosition
from runs.pages.settings.sink_page import PAGE_SIZE as DELIVERIES
from tests.support.addresses import PAGES, addresses, filled, parts_of
from tests.support.factories import drive, make_agent, make_import, make_person, make_project, make_run, with_key
from tests.support.flows import make_ended_flow_run
from tests.support.loopback_servers import receiving
from tests.support.project_rows import annotate, export, fill_alerts, fill_schedule, make_sink
from tests.support.run_checks import index_all
from tests.support.second_pass import cases
from tests.support.secret_samples import CANARIES, TEXT, add_rules, answer_of, seen_in, store_raw
from timeline import log
from timeline.events.notice import Error
from timeline.log import Entry
from timeline.models import Source

pytestmark = pytest.mark.django_db

#: The pages of a single message and a single call.
PAYLOADS = ("runs/<uuid:run_id>/messages/<uuid:message_id>", "runs/<uuid:run_id>/calls/<uuid:call_id>")
#: URLs of the API, below /api/projects/<p>/ or outside it.
RUN = "api/projects/<str:project>/agent-runs/<uuid:run_id>"
FLOWS = "api/projects/<str:project>/flows"
FLOW_RUN = "api/projects/<str:project>/flow-runs/<uuid:flow_run_id>"
SESSION = "api/projects/<str:project>/agent/sessions/<str:session>"
API = {
    *(
        "api/schema",
        "api/projects",
        "api/projects/<str:project>/agents",
        "api/projects/<str:project>/agents/<str:agent>",
        "api/projects/<str:project>/agents/<str:agent>/versions",
        "api/projects/<str:project>/agents/<str:agent>/versions/<int:number>",
    ),
    *("api/projects/<str:project>/agent-runs", "api/projects/<str:project>/notifications", RUN),
    *("api/projects/<str:project>/imports", "api/projects/<str:project>/imports/<uuid:import_id>"),
    "api/projects/<str:project>/search",
    *("api/projects/<str:project>/agent-runs/export", "api/projects/<str:project>/saved-views"),
    "api/projects/<str:project>/approvals",
    *(f"api/projects/<str:project>/{part}" for part in ("alerts", "alert-rules", "alert-mutes", "schedules")),
    *(f"api/projects/<str:project>/schedules/<uuid:schedule_id>{part}" for part in ("", "/starts")),
    *(
        f"{RUN}/{part}"
        for part in (
            *("messages", "messages/<uuid:message_id>"),
            *("tool-calls", "tool-calls/<uuid:call_id>", "tool-calls/<uuid:call_id>/output"),
            *("changes", "changes.patch"),
        )
    ),
    *(
        f"{RUN}/{part}"
        for part in (
            "events",
            "replay",
            "snapshot",
            "children",
            "checkpoints",
            "errors",
            "usage",
            "fixture",
            "export",
            "notes",
        )
    ),
    SESSION,
    *(f"{FLOWS}{part}" for part in ("", "/<str:flow>", "/<str:flow>/versions", "/<str:flow>/versions/<int:number>")),
    *("api/projects/<str:project>/flow-runs", FLOW_RUN),
    *(f"{FLOW_RUN}/{part}" for part in ("events", "snapshot", "replay", "fixtures")),
}
_DELIVERIES = ("/deliveries", "/deliveries/<uuid:delivery_id>", "/deliveries/<uuid:delivery_id>/resend")
SINK_PARTS = ("", *(f"/<uuid:sink_id>{part}" for part in ("", "/test", *_DELIVERIES)))
WEBHOOK_PARTS = ("", *(f"/<uuid:webhook_id>{part}" for part in ("", "/test", "/rotate", *_DELIVERIES)))
#: URLs whose POST returns the same rows as the URLs above, or that return no run.
OTHERS = {
    *(f"{RUN}/{part}" for part in ("resume", "fork", "pause", "stop", "commands", "signals")),
    f"{RUN}/tool-calls/<uuid:call_id>/resolve",
    *(f"api/work/{part}" for part in ("agents", "claim", "heartbeat", "steps", "stream", "checkpoints", "threads")),
    *(f"api/work/runs/<uuid:run_id>/{part}" for part in ("steps", "steps/value", "release")),
    f"{RUN}/approvals/<uuid:call_id>",
    *(f"{RUN}/{part}" for part in ("notes/<uuid:note_id>", "share-links", "share-links/<uuid:link_id>")),
    "api/projects/<str:project>/saved-views/<uuid:view_id>",
    "api/projects/<str:project>/imports/<uuid:import_id>/cancel",
    *(f"api/projects/<str:project>/alert-rules/<uuid:rule_id>{part}" for part in ("", "/test")),
    "api/projects/<str:project>/schedules/<uuid:schedule_id>/run",
    *("api/docs", "api/projects/<str:project>/agent-runs/resume", "api/projects/<str:project>/notifications/read"),
    *(f"api/internal/{part}" for part in ("agent-events", "agent-hooks/claude-code")),
    *(f"api/internal/{part}" for part in ("sessions", "sessions/known", "sessions/wait")),
    *(f"api/public/{part}" for part in ("otel/v1/traces", "projects")),
    *("api/schema/events", "api/schema/fixtures", "api/schema/flows", f"{FLOWS}/validate"),
    *(f"{FLOW_RUN}/{part}" for part in ("commands", "pause", "resume", "stop", "events/stream")),
    # The events of `events` with other names.
    *(f"{SESSION}/{part}" for part in ("events", "events/stream")),
    *(f"api/jobs/<str:job>/{part}" for part in ("events", "events/stream")),
    f"{RUN}/events/stream",  # the events of `events`, streamed
    "api/projects/<str:project>/agents/<str:agent>/ag-ui",  # like the stream with dialect=ag-ui, see tests/live
    # Members of a project, and its keys without the key values.
    *(
        f"api/projects/<str:project>{part}"
        for part in (
            *("", "/archive", "/unarchive", "/deletion", "/members", "/members/<str:username>"),
            *("/invitations", "/invitations/<uuid:invitation_id>"),
            *("/keys", "/keys/<uuid:key_id>", "/keys/<uuid:key_id>/rotate", "/keys/<uuid:key_id>/revoke"),
        )
    ),
    # Destinations of events; test_no_sink_receives_a_canary checks the payloads.
    *(f"api/projects/<str:project>/sinks{part}" for part in SINK_PARTS),
    *(f"api/projects/<str:project>/webhooks{part}" for part in WEBHOOK_PARTS),
    # Names of sessions, and their unmasked entries for keys with the scope `secrets`.
    *(f"api/projects/<str:project>/claude-sessions{part}" for part in ("", "/entries", "/subpaths")),
}


@pytest.fixture
def run() -> AgentRun:
    """Return an ended run with canaries in all data of a model, a tool or an earlier version."""
    run = drive(make_run(make_agent(make_project("alpha"))))
    add_rules(run.project)
    fill_alerts(run.project, run, 1, "alert")
    fill_schedule(run.project, 1, TEXT)
    RunNote.objects.filter(pk=annotate(run, "note")[0].pk).update(text=TEXT)
    AgentRun.objects.filter(pk=run.pk).update(
        title=TEXT[:200],
        summary=TEXT,
        result=TEXT,
        error_message=TEXT,
        prompt=TEXT,
        labels=[TEXT],
        agent_config={**run.agent_config, "instructions": TEXT},
    )
    message = answer_of(run)
    parts = [
        {"part_kind": "text", "content": TEXT},
        {"part_kind": "thinking", "content": TEXT, "signature": "abc"},
        {"part_kind": "tool-call", "tool_name": "f", "tool_call_id": "c", "args": json.dumps({"text": TEXT})},
        {
            "part_kind": "tool-call",
            "tool_name": "f",
            "tool_call_id": "d",
            "args": {"text": [TEXT], "password": "s3cret-pw"},
        },
    ]
    AgentRunMessage.objects.filter(pk=message.pk).update(
        content={**message.content, "kind": "response", "parts": parts}
    )
    # As stored in a project that does not mask model input.
    for other in AgentRunMessage.objects.filter(run=run).exclude(role=AgentRunMessage.Role.ASSISTANT):
        inputs = [{**part, "content": TEXT} for part in other.content["parts"]]
        AgentRunMessage.objects.filter(pk=other.pk).update(content={**other.content, "parts": inputs})
    RunCommand.objects.create(
        run=run,
        type=RunCommand.Type.SEND,
        payload={"message": TEXT},
        created_by="user:oscar",
        received_at=run.created_at,
    )
    call = AgentRunToolCall.objects.filter(run=run).first()
    assert call is not None
    AgentRunToolCall.objects.filter(pk=call.pk).update(
        input={"text": TEXT, "headers": [{"name": "password", "value": "s3cret-pw"}]}, output=TEXT
    )
    RunError.objects.create(
        run=run,
        step_number=1,
        context=call.tool_name[:300],
        call_id=call.call_id[:300],
        error_type="x",
        message=TEXT,
        attempt=0,
        created_at=run.created_at,
    )
    with transaction.atomic():
        log.append(run.pk, [Entry(Error(error_type="x", error=TEXT))], source=Source.WORKER)
    store_raw(run)
    store_raw_flow(run)
    make_import(run, TEXT)
    index_all()
    return AgentRun.objects.get(pk=run.pk)


def store_raw_flow(run: AgentRun) -> None:
    """Store a flow and a flow run with canaries in every text field. One node of the flow run is `run`."""
    flow_run = make_ended_flow_run(run.project)
    node = {"id": "b", "title": TEXT, "type": "agent", "agent": "any", "prompt": TEXT}
    definition = {**flow_run.definition, "description": TEXT, "nodes": [*flow_run.definition["nodes"], node]}
    Flow.objects.filter(pk=flow_run.flow_id).update(title=TEXT[:200], definition=definition)
    FlowVersion.objects.filter(flow=flow_run.flow_id).update(definition=definition)
    statuses = {**flow_run.snapshot["nodeStatus"], "b": "done"}
    snapshot = {**flow_run.snapshot, "nodeStatus": statuses, "outputs": {"a": TEXT, "b": TEXT}, "state": {"text": TEXT}}
    rows = FlowRun.objects.filter(pk=flow_run.pk)
    rows.update(definition=definition, snapshot=snapshot, inputs={"text": TEXT}, error_message=TEXT)
    FlowVisit.objects.create(
        flow_run=flow_run,
        key="b",
        node="b",
        kind="agent",
        output=TEXT,
        session=run,
        started_at=flow_run.created_at,
        ended_at=flow_run.completed_at,
    )


def parts(run: AgentRun) -> dict[str, object]:
    """Return the values for URL parameters: the run, and its message and call with canaries."""
    slug = run.agent.slug if run.agent else ""
    flow_run = FlowRun.objects.get(project=run.project)
    own = {"str:project": "alpha", "str:agent": slug, "str:session": run.pk}
    own |= {"str:flow": flow_run.slug, "uuid:flow_run_id": flow_run.pk}
    return parts_of(run) | own | {"uuid:message_id": answer_of(run).pk}


def url_of(address: str, run: AgentRun) -> str:
    named = parts(run)
    # The query matches the text before each canary.
    query = "?q=." if address.endswith("/search") else ""
    return "/" + re.sub(r"<([^>]+)>", lambda found: str(named[found[1]]), address) + query


def text_of(answer: Any) -> str:
    """Return the content of a response, or of all files in a zip archive."""
    if answer["Content-Type"] != "application/zip":
        return str(answer.getvalue().decode())
    archive = zipfile.ZipFile(BytesIO(answer.content))
    return "".join(archive.read(name).decode() for name in archive.namelist())


def test_the_rows_contain_every_canary(run: AgentRun) -> None:
    assert len(CANARIES) >= 30
    message = answer_of(run)
    assert len(seen_in("\n".join(message.content["parts"][0]["content"].split("\n")))) == len(CANARIES)


def test_every_url_of_the_api_is_covered() -> None:
    known = {one for one in addresses(get_resolver("agentops.urls").url_patterns) if one.startswith("api/")}

    assert known == API | OTHERS


def test_no_response_to_a_read_key_contains_a_canary(run: AgentRun) -> None:
    headers = with_key(run.project, "read")
    leaks = {}
    for address in sorted(API):
        url = url_of(address, run)
        answer = Client().get(f"{url}?limit=200" if address.endswith(("events", "replay")) else url, headers=headers)
        assert answer.status_code == 200, url
        leaks[address] = seen_in(answer.getvalue().decode())

    assert not {address: kinds for address, kinds in leaks.items() if kinds}


def test_no_sink_receives_a_canary(run: AgentRun, settings: Any) -> None:
    """Every kind of sink masks rows of earlier versions and answers of models on export."""
    settings.AGENTOPS_ALLOW_PRIVATE_SINKS = True
    with receiving() as receiver:
        langfuse = {"base_url": receiver.url.removesuffix("/in"), "public_key": "pk-lf-1"}
        key = {"secret_key": "sk-lf-1"}
        make_sink(run.project, "http", {"url": receiver.url}, from_start=True)
        make_sink(run.project, "webhook", {"url": receiver.url}, from_start=True, event_types=["run.*", "error", "x.*"])
        make_sink(run.project, "otlp", {"url": receiver.url}, from_start=True)
        make_sink(run.project, "langfuse_otlp", langfuse, from_start=True, secrets=key)
        make_sink(run.project, "langfuse_batch", langfuse, from_start=True, secrets=key)
        export(2)
        bodies = [request.body for request in receiver.received]

    assert set(SinkCursor.objects.values_list("last_error", flat=True)) == {""}
    texts = [gzip.decompress(body) if body.startswith(b"\x1f\x8b") else body for body in bodies]
    assert len(texts) > 5
    assert any(b"REDACTED" in text for text in texts)
    assert [kinds for text in texts if (kinds := seen_in(text.decode(errors="replace")))] == []


@pytest.mark.slow
@pytest.mark.parametrize("role", [Role.OPERATOR, Role.ADMIN])
def test_no_page_contains_a_canary(run: AgentRun, role: Role) -> None:
    client = Client()
    client.force_login(make_person(run.project, role))
    named = parts(run) | {"int:seq": run.log.last_seq}
    store_raw_deliveries(run)
    urls = [filled(address, named) for address, served in PAGES.items() if "GET" in served and "stream" not in address]
    message, call = filled(PAYLOADS[0], named), filled(PAYLOADS[1], named)
    urls += [f"/p/alpha/search?q={text}" for text in (".", "REDACTED", "error")]
    urls.append(f"/runs/{run.pk}/replay?seq={run.log.last_seq}")
    urls += [f"{message}?download={name}" for name in ("json", "part-0", "part-1", "part-2", "part-3")]
    urls += [f"{call}?download={name}" for name in ("arguments", "output")]

    leaks = {url: seen_in(text_of(client.get(url, follow=True))) for url in urls}

    assert not {url: kinds for url, kinds in leaks.items() if kinds}


def store_raw_deliveries(run: AgentRun) -> None:
    """Store the response of a receiver unmasked, like an earlier version."""
    sink = Sink.objects.get(project=run.project)
    Sink.objects.update(disabled_reason=TEXT[:500], is_enabled=False, config={"url": f"https://example.org/?{TEXT}"})
    SinkCursor.objects.update(last_error=TEXT[:500], failures=1)
    texts = [shown for _, shown in CANARIES.values()]
    # Two canaries in each delivery, so that one page shows them all.
    for error, response in itertools.zip_longest(texts[::2], texts[1::2], fillvalue=""):
        made = {"error": error[:500], "response": response[:1000], "state": "dead"}
        Delivery.objects.create(sink=sink, message_id="m", event_type="x.note", **made)
    assert Delivery.objects.count() <= DELIVERIES


def test_no_admin_page_contains_a_canary(run: AgentRun) -> None:
    client = Client()
    client.force_login(User.objects.create_superuser("boss"))
    rows: list[Any] = [run, answer_of(run), run.tool_calls.first(), RunError.objects.get(run=run)]
    urls = [f"/admin/{row._meta.app_label}/{row._meta.model_name}/" for row in rows]
    urls += [f"{url}{row.pk}/change/" for url, row in zip(urls, rows, strict=True)]

    answers = {url: client.get(url) for url in urls}

    assert {answer.status_code for answer in answers.values()} == {200}
    assert not {url: kinds for url, answer in answers.items() if (kinds := seen_in(answer.getvalue().decode()))}


@pytest.mark.parametrize("kind", ["messages/<uuid:message_id>", "tool-calls/<uuid:call_id>"])
def test_a_permitted_caller_can_request_the_secrets_and_it_is_audited(run: AgentRun, kind: str) -> None:
    url = url_of(f"{RUN}/{kind}", run)
    for scopes, code in ((("read",), "scope_required"), (("read", "write"), "scope_required")):
        refused = Client().get(f"{url}?secrets=show", headers=with_key(run.project, *scopes))
        assert (refused.status_code, refused.json()["code"]) == (403, code)
    operator = Client()
    operator.force_login(make_person(run.project, Role.OPERATOR))
    assert operator.get(f"{url}?secrets=show").status_code == 403
    assert not AuditEntry.objects.filter(action="secrets.revealed").exists()

    headers = with_key(run.project, "read", "secrets")
    assert seen_in(Client().get(url, headers=headers).content.decode()) == []
    shown = Client().get(f"{url}?secrets=show", headers=headers)
    assert len(set(seen_in(json.dumps(shown.json(), ensure_ascii=False).replace("\\n", "\n")))) > 30
    assert shown.headers["Cache-Control"] == "no-store"
    admin = Client()
    admin.force_login(make_person(run.project, Role.ADMIN))
    assert admin.get(f"{url}?secrets=show").status_code == 200
    entries = AuditEntry.objects.filter(action="secrets.revealed", project=run.project)
    assert [entry.actor.partition(":")[0] for entry in entries.order_by("created_at")] == ["key", "user"]
    assert {entry.object_id for entry in entries} == {url.rpartition("/")[2]}


@pytest.mark.parametrize("page", PAYLOADS)
def test_an_admin_can_show_secrets_on_a_page_with_a_button_and_it_is_audited(run: AgentRun, page: str) -> None:
    url = "/" + filled(page, parts(run)).lstrip("/")
    for role in (Role.VIEWER, Role.OPERATOR):
        other = Client()
        other.force_login(make_person(run.project, role))
        assert b"Show secrets" not in other.get(url).content
        refused = other.get(f"{url}?secrets=show")
        assert (refused.status_code, seen_in(refused.content.decode())) == (403, [])
    assert not AuditEntry.objects.filter(action="secrets.revealed").exists()

    admin = Client()
    admin.force_login(make_person(run.project, Role.ADMIN))
    assert b'name="secrets" value="show"' in admin.get(url).content
    shown = admin.get(f"{url}?secrets=show")
    assert len(set(seen_in(shown.content.decode()))) > 30
    assert shown.headers["Cache-Control"] == "no-store"
    assert b"The audit log records that you viewed them" in shown.content
    # Downloads stay masked.
    assert not seen_in(admin.get(f"{url}?secrets=show&download=json").content.decode())
    entry = AuditEntry.objects.get(action="secrets.revealed", project=run.project)
    assert (entry.actor.partition(":")[0], entry.object_id) == ("user", url.rpartition("/")[2])


def test_no_command_prints_a_canary(run: AgentRun) -> None:
    commands = [("agent", name, str(run.pk)) for name in ("show", "messages", "calls", "errors", "tail")]
    commands.append(("replay", str(run.pk), "--at-once"))
    for command, form in itertools.product(commands, ([], ["--json"])):
        out = StringIO()
        with suppress(SystemExit):  # `show` and `tail` exit with the code of the run's end
            call_command(*command, *form, stdout=out)

        assert out.getvalue(), (command, form)
        assert seen_in(out.getvalue()) == seen_in(out.getvalue().replace("\\n", "\n")) == [], (command, form)


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_lists_of_agents_and_calls_print_no_canary(run: AgentRun, form: list[str]) -> None:
    """Agent definitions are stored unmasked, and a model invents the names and IDs of calls."""
    token = CANARIES["npm"][1]
    assert run.agent is not None
    Agent.objects.filter(pk=run.agent.pk).update(
        model=f"openai:{token}", instructions=TEXT, settings={"note": [TEXT]}, policies={"on_idle": {"message": TEXT}}
    )
    call = run.tool_calls.first()
    assert call is not None
    AgentRunToolCall.objects.filter(pk=call.pk).update(tool_name=token, call_id=token)
    out = StringIO()
    call_command("agent", "defs", *form, stdout=out)
    call_command("agent", "calls", str(run.pk), *form, stdout=out)

    assert "[REDACTED:" in out.getvalue()
    assert seen_in(out.getvalue().replace("\\n", "\n")) == []


@pytest.mark.parametrize("kind", ["stripe", "rule_plain"])
def test_no_search_reveals_parts_of_a_secret(run: AgentRun, kind: str) -> None:
    """Only visible text matches: the text before and after a masked secret, but no part of the secret."""
    message = answer_of(run)
    secret, shown = CANARIES[kind]
    texts = [f"first {shown}", f"the words beside {shown} are found"]
    content = {"kind": "response", "parts": [{"part_kind": "text", "content": text} for text in texts]}
    AgentRunMessage.objects.filter(pk=message.pk).update(content=content)
    url, headers = "/api/projects/alpha/agent-runs", with_key(run.project, "read")
    for said, count in ((secret, 0), (secret[8:14], 0), (secret[:12].upper(), 0), ("words beside", 1), ("First", 1)):
        answer = Client().get(url, {"q": said}, headers=headers)
        assert (answer.status_code, len(answer.json()["results"])) == (
            200,
            count,
        )


def test_no_search_of_the_run_list_reveals_a_secret_in_a_title(run: AgentRun) -> None:
    """Titles of an earlier version may contain unmasked secrets. There are more of them than one page holds."""
    secret, shown = CANARIES["stripe"]
    AgentRun.objects.filter(pk=run.pk).update(title=f"the words beside {shown}")
    others = [make_run(run.agent) for _ in range(PAGE_SIZE + 5)]
    AgentRun.objects.filter(pk__in=[one.pk for one in others]).update(title=f"words {shown}")
    client = Client()
    client.force_login(make_person(run.project, Role.VIEWER))
    since = ListPosition.at(run.created_at, run.pk)
    for said, found, new in ((secret, 0, "0"), (secret[8:14], 0, "0"), ("WORDS BESIDE", 1, "0"), ("Words", 50, "55")):
        page = client.get("/p/alpha/runs", {"q": said})
        assert len(page.context["rows"]) == found, said
        rows = client.get("/p/alpha/runs/rows", {"q": said, "since": str(since)})
        assert str(rows.context["new"]) == new, said
    beside = client.get(
        "/p/alpha/runs", {"q": "beside", "after": str(ListPosition.at(others[0].created_at, UUID(int=0)))}
    )
    assert len(beside.context["rows"]) == 0


KINDS = ["stripe", "github", "jwt", "url", "password_env", "mysql", "cookie", "netrc", "pem", "rule_format"]


def test_no_error_message_repeats_a_secret(run: AgentRun) -> None:
    url, headers = "/api/projects/alpha/agent-runs", with_key(run.project, "read", "write")
    program, client = Client(headers=headers), Client()
    client.force_login(make_person(run.project, Role.OPERATOR))
    agent_id = run.agent.slug if run.agent else ""
    for shown in (CANARIES[kind][1] for kind in cases(KINDS)):
        answers = [program.get(url, {name: shown}) for name in ("limit", "status", "source", shown)]
        answers += [
            program.post(url, body, "application/json")
            for body in (
                {"agent_id": agent_id, "prompt": "x", shown: 1},
                {"agent_id": shown[:60]},
                "{" + json.dumps(shown),
            )
        ]
        answers.append(program.post(f"{url}/{run.pk}/commands", {"type": shown}, "application/json"))
        answers += [client.get("/p/alpha/runs", {name: shown}) for name in ("status", "source")]

        assert all(400 <= answer.status_code < 500 for answer in answers), shown
        assert [seen for answer in answers if (seen := seen_in(answer.content.decode().replace("\\n", "\n")))] == []


def test_the_start_form_shows_no_secret_of_an_agent(run: AgentRun) -> None:
    assert run.agent is not None
    Agent.objects.filter(pk=run.agent.pk).update(model=f"openai:{CANARIES['stripe'][1]}", tools=[CANARIES["npm"][1]])
    client = Client()
    client.force_login(make_person(run.project, Role.OPERATOR))

    page = client.get("/p/alpha/runs/new", follow=True).content.decode()

    assert "openai:[REDACTED:" in page
    assert seen_in(page) == []


@pytest.mark.parametrize("kind", ["stripe", "basic", "url", "password_env", "curl_user", "cookie", "rule_percent"])
def test_no_log_line_contains_a_secret(kind: str) -> None:
    """Django logs the URL of refused requests, and library errors quote the request."""
    secret, shown = CANARIES[kind]
    add_rules(make_project())
    assert CACHE.has_rules  # loads the rules into this process
    try:
        raise ValueError(shown)
    except ValueError as error:
        record = logging.LogRecord(
            "django.request",
            logging.ERROR,
            "",
            1,
            "Bad Request: /x/%s",
            (shown,),
            (ValueError, error, error.__traceback__),
        )

    line = LogLine("%(message)s").format(record)

    assert line.count("[REDACTED:") >= 2
    assert secret not in line


def test_labels_and_keys_are_masked_before_they_are_stored(run: AgentRun) -> None:
    token = CANARIES["stripe"][0]
    other = token[:-1] + ("a" if token[-1] != "a" else "b")
    url, headers = "/api/projects/alpha/agent-runs", with_key(run.project, "read", "write")
    body = {"agent_id": run.agent.slug if run.agent else "", "prompt": "go", "labels": [f"k {token}"], "title": token}
    ids = []
    for key in (token, token, other):
        answer = Client().post(url, body, "application/json", headers={**headers, "Idempotency-Key": key})
        assert answer.status_code == 201
        assert token not in answer.content.decode()
        ids.append(answer.json()["id"])
    assert ids[0] == ids[1] != ids[2]
    send = f"{url}/{ids[0]}/commands"
    sent = [
        Client().post(send, {"type": "send", "message": "m", "key": key}, "application/json", headers=headers)
        for key in (token, other)
    ]
    assert [answer.status_code for answer in sent] == [202, 202]
    assert sent[0].json()["id"] != sent[1].json()["id"]
    RunCommand.objects.filter(payload={"message": TEXT}).delete()
    rows = [row for model in (IdempotencyKey, RunCommand) for row in model.objects.values_list()]
    rows += list(AgentRun.objects.exclude(pk=run.pk).values_list())
    assert not [row for row in rows if token in str(row) or other in str(row)]
