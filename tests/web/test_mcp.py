"""The MCP server over HTTP, with the SDK's own client: it reads runs, controls them if allowed, and nothing more."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from agentops.mcp_server.bounds import MAX_RESULT
from agentops.projects.models import AuditEntry
from runs.models import AgentRun, AgentRunToolCall
from tests.support.accounts import with_key
from tests.support.factories import drive, make_agent, make_project, make_run
from tests.support.secret_canaries import TEXT, add_rules, seen_in
from tests.support.web.server import WebThread

READING = {
    *("list_projects", "list_agents", "list_runs", "search", "get_run", "list_messages", "get_message"),
    *("list_tool_calls", "get_tool_call", "list_errors", "list_events"),
}
CONTROL = {"resume_run", "pause_run", "stop_run", "answer_question"}


def with_client(
    web: WebThread, headers: dict[str, str], use: Callable[[Client], Awaitable[Any]], query: str = ""
) -> Any:
    """What a function makes of a connected client."""

    async def connected() -> Any:
        async with (
            httpx2.AsyncClient(headers=headers) as http,
            Client(streamable_http_client(f"{web.url}/mcp{query}", http_client=http)) as client,
        ):
            return await use(client)

    return asyncio.run(connected())


def calls(web: WebThread, headers: dict[str, str], *wanted: tuple[str, dict[str, Any]], query: str = "") -> list[Any]:
    """The results of calls, as (is_error, document)."""

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
def test_a_coding_agent_looks_into_a_run(web: WebThread, run: AgentRun) -> None:
    key, one = with_key(run.project, "read"), {"run_id": str(run.pk)}
    listed, got, messages, tools, events = calls(
        web, key, ("list_runs", {"status": ["paused"]}), ("get_run", one), ("list_messages", {**one, "limit": 2}),
        ("list_tool_calls", {**one, "status": ["error"]}), ("list_events", {**one, "limit": 3}),
    )  # fmt: skip

    assert [row["id"] for row in listed[1]["results"]] == [str(run.pk)]
    assert (got[1]["run"]["status_reason"], got[1]["last_seq"]) == ("max_steps", run.log.last_seq)
    assert [call["status"] for call in got[1]["failed_tool_calls"]] == ["error", "error"]
    assert [row["role"] for row in messages[1]["results"]] == ["user", "assistant"]
    assert "update go" in messages[1]["results"][0]["content"]["parts"][0]["content"]
    assert {call["tool_name"] for call in tools[1]["results"]} == {"Edit"}
    assert (events[1]["results"][-1]["seq"], events[1]["next_after_seq"]) == (3, 3)

    more, call = calls(
        web, key, ("list_messages", {**one, "cursor": messages[1]["next_cursor"]}),
        ("get_tool_call", {**one, "call_id": tools[1]["results"][0]["id"]}),
    )  # fmt: skip
    assert more[1]["results"][0]["position"] == 3
    assert "has not been read yet" in call[1]["output"]


def test_tools_that_write_are_offered_on_request_only(web: WebThread, run: AgentRun) -> None:
    async def tools(client: Client) -> dict[str, Any]:
        return {tool.name: tool.annotations for tool in (await client.list_tools()).tools}

    key = with_key(run.project, "read", "write")
    reading, all_tools = with_client(web, key, tools), with_client(web, key, tools, "?allow_writes=true")
    assert set(reading) == READING
    assert set(all_tools) == READING | CONTROL
    assert {name for name, hints in all_tools.items() if hints.read_only_hint} == READING
    assert {name for name, hints in all_tools.items() if hints.destructive_hint} == {"stop_run"}

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
def test_without_a_valid_key_there_is_nothing(web: WebThread, headers: dict[str, str]) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    accept = {"Accept": "application/json, text/event-stream"}
    answer = httpx.post(f"{web.url}/mcp", json=body, headers=headers | accept)

    assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert "tools" not in answer.text
    assert httpx.get(f"{web.url}/mcp", headers=headers).status_code == 405
