"""The MCP server over HTTP, with the SDK's client: it reads runs, controls them if allowed, and does nothing else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import httpx2
import pytest
from django.utils import timezone
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from agentops.accounts.models import ApiKey, AuditEntry
from agentops.base.http.request_origins import ForwardedClient
from agentops.base.http.threaded import ThreadedDjango
from agentops.mcp_server.api_access import LocalApi, post
from agentops.mcp_server.api_tool import MAX_RESULT
from runs.models import AgentRun, AgentRunToolCall
from tests.support.factories import (
    drive,
    make_agent,
    make_awaiting_approval,
    make_project,
    make_run,
    make_waiting,
    with_key,
)
from tests.support.secret_samples import TEXT, add_rules, seen_in
from tests.support.web_server import WebThread

READING = {
    *("list_projects", "list_agents", "list_runs", "search", "get_run", "list_messages", "get_message"),
    *("list_tool_calls", "get_tool_call", "list_errors", "list_events", "list_approvals"),
}
DESTRUCTIVE = {"stop_run", "decide_approval", "resolve_tool_call"}
CONTROL = {"resume_run", "pause_run", "answer_question", *DESTRUCTIVE}


def with_client(
    web: WebThread, headers: dict[str, str], use: Callable[[Client], Awaitable[Any]], query: str = ""
) -> Any:
    """Connect a client, and return the result of `use`."""

    async def connected() -> Any:
        async with (
            httpx2.AsyncClient(headers=headers) as http,
            Client(streamable_http_client(f"{web.url}/mcp{query}", http_client=http)) as client,
        ):
            return await use(client)

    return asyncio.run(connected())


def calls(web: WebThread, headers: dict[str, str], *wanted: tuple[str, dict[str, Any]], query: str = "") -> list[Any]:
    """Return the results of calls, as (is_error, document)."""

    async def use(client: Client) -> list[Any]:
        results = [await client.call_tool(name, arguments) for name, arguments in wanted]
        texts = [result.content[0].text for result in results]  # type: ignore[union-attr]
        assert all(len(text) <= MAX_RESULT for text in texts)
        return [(result.is_error, json.loads(text)) for result, text in zip(results, texts, strict=True)]

    return with_client(web, headers, use, query)


@pytest.fixture
def run(web: WebThread) -> AgentRun:
    return drive(make_run(make_agent(max_steps=2)))


@pytest.mark.every_database
def test_coding_agent_reads_a_run(web: WebThread, run: AgentRun) -> None:
    key, one = with_key(run.project, "read"), {"run_id": str(run.pk)}
    listed, got, messages, tools, events = calls(
        web,
        key,
        ("list_runs", {"status": ["paused"], "created_after": "1h"}),
        ("get_run", one),
        ("list_messages", {**one, "limit": 2}),
        ("list_tool_calls", {**one, "status": ["error"]}),
        ("list_events", {**one, "limit": 3}),
    )

    assert [row["id"] for row in listed[1]["results"]] == [str(run.pk)]
    assert (got[1]["run"]["status_reason"], got[1]["last_seq"]) == ("max_steps", run.log.last_seq)
    assert [call["status"] for call in got[1]["last_failed_tool_calls"]] == ["error", "error"]
    assert "has not been read yet" in got[1]["last_failed_tool_calls"][0]["output"]
    assert got[1]["last_events"][-1]["message"].startswith("Paused")
    assert [row["role"] for row in messages[1]["results"]] == ["user", "assistant"]
    assert "update go" in messages[1]["results"][0]["parts"][0]["text"]
    assert {call["tool_name"] for call in tools[1]["results"]} == {"Edit"}
    assert (events[1]["results"][-1]["seq"], events[1]["next_after_seq"]) == (3, 3)

    more, call, end = calls(
        web,
        key,
        ("list_messages", {**one, "cursor": messages[1]["next_cursor"]}),
        ("get_tool_call", {**one, "call_id": tools[1]["results"][0]["id"]}),
        ("list_messages", {**one, "limit": 2, "from_end": True, "max_text": 50}),
    )
    assert more[1]["results"][0]["position"] == 3
    assert "has not been read yet" in call[1]["output"]
    last = run.messages.order_by("-position")[0]
    [part] = end[1]["results"][-1]["parts"]
    assert (end[1]["results"][-1]["position"], end[1]["next_cursor"]) == (last.position, None)
    assert (last.role, part["tool_result"], len(part["output"]) < 90) == ("tool_result", "Edit", True)


def test_lists_can_start_from_their_end(web: WebThread, run: AgentRun) -> None:
    key, one = with_key(run.project, "read"), {"run_id": str(run.pk), "from_end": True, "limit": 2}
    (_, events), (_, tools), (_, errors) = calls(
        web, key, ("list_events", one), ("list_tool_calls", {**one, "with_content": True}), ("list_errors", one)
    )
    assert [event["seq"] for event in events["results"]] == [run.log.last_seq - 1, run.log.last_seq]
    newest = run.tool_calls.order_by("-step_number", "-id")
    assert [call["id"] for call in tools["results"]] == [str(newest[1].pk), str(newest[0].pk)]
    assert "output" in tools["results"][0]
    assert [error["context"] for error in errors["results"]] == ["max_turns"]
    assert (errors["next_cursor"], errors["previous_cursor"]) == (None, None)

    [(_, before)] = calls(web, key, ("list_tool_calls", {**one, "cursor": tools["previous_cursor"]}))
    assert before["results"][-1]["id"] == str(newest[2].pk)


def test_tool_call_is_approved_only_if_writes_are_allowed(web: WebThread) -> None:
    run = make_awaiting_approval()
    key, one = with_key(run.project, "read", "write"), {"run_id": str(run.pk)}
    (_, got), (_, listed) = calls(web, key, ("get_run", one), ("list_approvals", {}))
    [asked] = got["waits_for"]["approvals"]
    assert (asked["tool_name"], asked["reason"], listed["results"]) == ("Grep", "It reads files.", [asked])

    decide = ("decide_approval", {**one, "call_id": asked["call_id"], "decision": "deny", "message": "No."})
    [(refused, unknown)] = calls(web, key, decide)
    [(forbidden, scope)] = calls(web, with_key(run.project, "read"), decide, query="?allow_writes=true")
    other = (decide[0], {**one, "call_id": asked["call_id"], "decision": "approve"})
    (_, denied), (_, again) = calls(web, key, decide, other, query="?allow_writes=true")

    assert (refused, unknown["code"], forbidden, scope["code"]) == (True, "unknown_tool", True, "scope_required")
    assert (denied["state"], denied["message"], again["code"]) == ("denied", "No.", "approval_decided")
    assert AuditEntry.objects.get(action="run.approval_decided").actor.startswith("key:")


def test_unknown_outcome_is_listed_and_resolved(web: WebThread) -> None:
    run = make_waiting()
    key, one = with_key(run.project, "read", "write"), {"run_id": str(run.pk)}
    [(_, got)] = calls(web, key, ("get_run", one))
    [call] = got["last_failed_tool_calls"]
    resolve = ("resolve_tool_call", {**one, "call_id": call["id"], "choice": "done", "text": "42"})
    [(failed, settled)] = calls(web, key, resolve, query="?allow_writes=true")

    [waiting] = got["waits_for"]["unknown_outcomes"]
    assert (waiting["kind"], waiting["call_id"], call["status"]) == ("unknown_outcome", call["id"], "unknown")
    assert (failed, settled["output"], settled["status"]) == (False, "42", "completed")


def test_write_tools_are_offered_only_on_request(web: WebThread, run: AgentRun) -> None:
    async def tools(client: Client) -> dict[str, Any]:
        return {tool.name: tool.annotations for tool in (await client.list_tools()).tools}

    key = with_key(run.project, "read", "write")
    reading, all_tools = with_client(web, key, tools), with_client(web, key, tools, "?allow_writes=true")
    assert set(reading) == READING
    assert set(all_tools) == READING | CONTROL
    assert {name for name, hints in all_tools.items() if hints.read_only_hint} == READING
    assert {name for name, hints in all_tools.items() if hints.destructive_hint} == DESTRUCTIVE

    resume = ("resume_run", {"run_id": str(run.pk), "message": "Go on."})
    [(refused, unknown)] = calls(web, key, resume)
    [(forbidden, scope)] = calls(web, with_key(run.project, "read"), resume, query="?allow_writes=true")
    assert (refused, unknown["code"], forbidden, scope["code"]) == (True, "unknown_tool", True, "scope_required")
    assert AgentRun.objects.count() == 1

    (failed, resumed), (_, stopped) = calls(
        web, key, resume, ("pause_run", {"run_id": str(run.pk)}), query="?allow_writes=true"
    )
    assert (failed, resumed["resumed_from"]) == (False, str(run.pk))
    assert stopped["code"] == "run_terminal"
    entry = AuditEntry.objects.get(action="run.resumed")
    assert entry.actor.startswith("key:")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arguments", "code"),
    [
        ("get_run", {"run_id": "../../projects"}, "invalid_arguments"),
        ("get_run", {"run_id": "0" * 36}, "invalid_arguments"),
        ("get_run", {"run_id": "01a1f9cd-b2e1-70db-8478-b8d85dac710b"}, "run_not_found"),
        ("get_run", {}, "invalid_arguments"),
        ("list_runs", {"limit": 10**9}, "invalid_arguments"),
        ("list_runs", {"limit": "5"}, "invalid_arguments"),
        ("list_runs", {"cursor": "x&limit=200"}, "invalid_cursor"),
        ("list_runs", {"text": "a\x00b\u2028"}, None),
        ("list_runs", {"project": "../admin"}, "invalid_arguments"),
        ("list_runs", {"project": "beta"}, "project_not_found"),
        ("list_runs", {"created_after": "yesterday"}, "invalid_filter"),
        ("list_runs", {"nothing": 1}, "invalid_arguments"),
        ("list_events", {"run_id": "01a1f9cd-b2e1-70db-8478-b8d85dac710b", "after_seq": -1}, "invalid_arguments"),
        ("search", {"q": "x" * 501}, "invalid_arguments"),
        ("__class__", {}, "unknown_tool"),
    ],
)
def test_hostile_arguments_are_refused(web: WebThread, name: str, arguments: dict[str, Any], code: str | None) -> None:
    make_project("beta")
    [(is_error, document)] = calls(web, with_key(make_project("alpha"), "read"), (name, arguments))

    assert (is_error, document.get("code")) == (code is not None, code)


@pytest.mark.breaks_invariants("an answer's content is replaced by one with secrets")
def test_results_are_redacted_and_bounded(web: WebThread, run: AgentRun) -> None:
    add_rules(run.project)
    call = AgentRunToolCall.objects.filter(run=run).earliest("pk")
    AgentRunToolCall.objects.filter(pk=call.pk).update(output=TEXT + " x" * 2 * MAX_RESULT)
    one = {"run_id": str(run.pk), "call_id": str(call.pk)}
    [(_, document)] = calls(web, with_key(run.project, "read"), ("get_tool_call", one))

    assert document["output"].endswith("more characters]")
    assert "[REDACTED:" in document["output"]
    assert not seen_in(json.dumps(document, ensure_ascii=False))


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer aok_x_y_z"}, {"Authorization": "Basic eA=="}])
def test_request_without_a_valid_key_is_refused(web: WebThread, headers: dict[str, str]) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    accept = {"Accept": "application/json, text/event-stream"}
    answer = httpx.post(f"{web.url}/mcp", json=body, headers=headers | accept)

    assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert "tools" not in answer.text
    assert httpx.get(f"{web.url}/mcp", headers=headers).status_code == 405


def test_key_reads_only_its_project_and_nothing_once_revoked(web: WebThread, run: AgentRun) -> None:
    foreign, own = with_key(make_project("beta"), "read", "write"), with_key(run.project, "read")
    one = {"run_id": str(run.pk)}
    slug = run.project.slug
    hidden = calls(
        web,
        foreign,
        ("get_run", one),
        ("get_run", one | {"project": slug}),
        ("list_runs", {"project": slug}),
        ("search", {"q": "update"}),
        ("stop_run", one),
        query="?allow_writes=true",
    )
    assert [document.get("code") for _, document in hidden] == [
        *("run_not_found", "project_not_found", "project_not_found", None, "run_not_found")
    ]
    assert hidden[3][1]["results"] == []

    ApiKey.objects.filter(project=run.project).update(revoked_at=timezone.now())
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "get_run", "arguments": one}}
    accept = {"Accept": "application/json, text/event-stream"}
    assert httpx.post(f"{web.url}/mcp", json=body, headers=own | accept).status_code == 401


def test_responses_have_the_headers_of_the_site(web: WebThread) -> None:
    key = with_key(make_project(), "read") | {"Accept": "application/json, text/event-stream"}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    of_the_api = {"agentops-version", "content-encoding", "content-type", "vary"}
    expected = {*httpx.get(f"{web.url}/api/nowhere").headers} - of_the_api
    assert {"content-security-policy", "x-request-id", "x-frame-options", "permissions-policy"} <= expected
    with httpx.Client(base_url=web.url, headers=key) as client:
        answers = [
            client.post("/mcp", json=body),
            client.post("/mcp", content=b"["),
            client.post("/mcp", json=body, headers={"Authorization": "Bearer aok_x_y_z"}),
            client.post("/mcp", json=body, headers={"Origin": "https://evil.example"}),
            client.get("/mcp"),
        ]

    assert [answer.status_code for answer in answers] == [200, 400, 401, 403, 405]
    for answer in answers:
        assert expected <= {*answer.headers}, answer.status_code
        assert "no-store" in answer.headers["cache-control"]
    assert [answer.json()["code"] for answer in answers[2:]] == ["auth_invalid", "foreign_origin", "method_not_allowed"]
    assert len({answer.headers["x-request-id"] for answer in answers}) == len(answers)


def test_a_page_of_another_site_cannot_use_it(web: WebThread) -> None:
    """DNS rebinding may point the other site's name to this site."""
    key = with_key(make_project(), "read") | {"Accept": "application/json, text/event-stream"}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    for origin in ("https://evil.example", "null", web.url.replace("http:", "https:"), f"{web.url}0"):
        with httpx.Client(headers=key | {"Origin": origin}) as client:
            assert client.post(f"{web.url}/mcp", json=body).status_code == 403, origin
    assert httpx.post(f"{web.url}/mcp", json=body, headers=key | {"Origin": web.url}).status_code == 200
    assert httpx.post(f"{web.url}/mcp", json=body, headers=key | {"Host": "evil.example"}).status_code == 400


@pytest.mark.django_db(transaction=True)
def test_site_behind_an_https_proxy_responds(settings) -> None:
    settings.SECURE_SSL_REDIRECT = True
    settings.SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    site = ForwardedClient(ThreadedDjango(), ["*"])
    headers = with_key(make_project("alpha"), "read") | {
        "Accept": "application/json, text/event-stream",
        "X-Forwarded-For": "192.0.2.1",
        "X-Forwarded-Proto": "https",
    }
    params = {"name": "list_projects", "arguments": {}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}

    async def asked() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(site), base_url="http://localhost") as client:
            return await client.post("/mcp", json=body, headers=headers)

    answer = asyncio.run(asked())

    assert answer.status_code == 200
    assert '\\"slug\\":\\"alpha\\"' in answer.text


@pytest.mark.parametrize("body", [b"[" * 100_000, b"x" * (2 << 20), b'{"jsonrpc":"2.0","id":1}', b"\xff"])
def test_invalid_request_is_refused(web: WebThread, body: bytes) -> None:
    headers = with_key(make_project(), "read") | {
        "Accept": "application/json, text/event-stream",
        "Content-Type": "application/json",
    }
    answer = httpx.post(f"{web.url}/mcp", content=body, headers=headers)

    assert 400 <= answer.status_code < 500
    assert "Traceback" not in answer.text


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("no_hints")
def test_actions_of_the_mcp_command_are_audited_as_a_command() -> None:
    run = make_run(make_agent())

    stopped = asyncio.run(post(LocalApi(), f"projects/{run.project.slug}/agent-runs/{run.pk}/stop", {}))

    entry = AuditEntry.objects.get(action="run.stopped")
    assert (stopped["status"], entry.actor[:4], entry.door) == ("stopped", "cli:", "command")
