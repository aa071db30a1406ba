"""Transcripts that claude-agent-sdk stores on the site are runs: live, with calls, tokens, cost and status."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from claude_agent_sdk import ClaudeSDKClient

from agentops.accounts.models import Project
from agentops.claude_sessions import AgentopsSessionStore
from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall
from runs.statuses import RunStatus
from tests.support.claude_model import call
from tests.support.claude_rig import BASH, ClaudeRig, Shop
from tests.support.factories import make_project, with_key
from tests.support.web_server import WebThread

pytestmark = pytest.mark.django_db(transaction=True)
KEY: Any = {"project_key": "-work", "session_id": "01a22600-0000-7000-8000-000000000001"}


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[ClaudeRig]:
    with ExitStack() as stack:
        yield ClaudeRig(tmp_path, stack)


@pytest.fixture
def project() -> Project:
    return make_project("alpha")


@pytest.fixture
def store(web: WebThread, project: Project) -> AgentopsSessionStore:
    key = with_key(project, "read", "write", "secrets")["Authorization"].removeprefix("Bearer ")
    return AgentopsSessionStore(web.url, project=project.slug, key=key)


def texts_of(run: AgentRun) -> list[tuple[str, str]]:
    rows = AgentRunMessage.objects.filter(run=run).order_by("position")
    return [(row.role, json.dumps(row.content)) for row in rows]


def test_a_session_of_the_sdk_is_a_run_which_a_resumed_session_continues(
    rig: ClaudeRig, store: AgentopsSessionStore, project: Project
) -> None:
    shop = Shop()
    model = rig.model([call("toolu_1", "mcp__shop__price", item="tea"), BASH], "Half done.", "All done.")
    seen: list[tuple[str, int]] = []

    async def ask(prompt: str, resume: str | None = None) -> str:
        tools = {"mcp_servers": {"shop": shop.server}, "allowed_tools": ["mcp__shop", "Bash"]}
        options = rig.options(model, session_store=store, session_store_flush="eager", resume=resume, **tools)
        async with ClaudeSDKClient(options) as client:
            await client.query(prompt)
            messages = [message async for message in client.receive_response()]
            return str(messages[-1].session_id)

    session_id = asyncio.run(ask("Begin."))
    run = AgentRun.objects.get(project=project)
    seen.append((run.status, run.output_tokens))
    asyncio.run(ask("Go on.", session_id))
    run.refresh_from_db()

    assert seen == [(RunStatus.WAITING, 14)]
    assert (run.external_id, run.session_id, run.status) == (f"claude-code:{session_id}", session_id, RunStatus.WAITING)
    assert (run.title, run.input_tokens, run.output_tokens) == ("Begin.", 54, 21)
    assert run.cost_usd is not None
    calls = AgentRunToolCall.objects.filter(run=run).order_by("pk")
    assert [(row.tool_name, row.status) for row in calls] == [("mcp__shop__price", "completed"), ("Bash", "completed")]
    texts = " ".join(text for _, text in texts_of(run))
    assert texts.index("Begin.") < texts.index("tea: 500") < texts.index("Half done.") < texts.index("All done.")


def line(uuid: str, role: str, content: Any, **members: Any) -> dict[str, Any]:
    message: dict[str, Any] = {"role": role, "content": content}
    if role == "assistant":
        reason = "tool_use" if isinstance(content, list) else "end_turn"
        blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
        usage = {"input_tokens": 3, "output_tokens": 5}
        message |= {"id": f"msg_{uuid}", "model": "claude-sonnet-4-5", "content": blocks, "stop_reason": reason}
        message["usage"] = usage
    common = {"sessionId": KEY["session_id"], "timestamp": "2026-11-29T06:00:00.000Z", "isSidechain": False}
    return {"type": role, "uuid": uuid, **common, "message": message, **members}


def test_a_run_is_live_while_its_turn_lasts_and_a_repeated_entry_counts_once(
    store: AgentopsSessionStore, project: Project
) -> None:
    begun = [line("u1", "user", "Begin."), line("a1", "assistant", [call("toolu_1", "Bash", command="ls")])]
    result = [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "a file"}]
    ended = [line("u2", "user", result), line("a2", "assistant", "One file.")]

    asyncio.run(store.append(KEY, begun))
    run = AgentRun.objects.get(project=project)
    live = run.status
    asyncio.run(store.append(KEY, [*begun, *ended]))
    asyncio.run(store.append(KEY, ended))
    run.refresh_from_db()

    assert (live, run.status) == (RunStatus.RUNNING, RunStatus.WAITING)
    assert run.output_tokens == 10
    assert AgentRunToolCall.objects.get(run=run).status == "completed"


def test_a_sub_agent_is_a_child_run(store: AgentopsSessionStore, project: Project) -> None:
    spawn = call("toolu_9", "Agent", prompt="Count.", subagent_type="counter", description="Count files")
    of_agent = {"isSidechain": True, "agentId": "a77"}
    about = {"type": "agent_metadata", "agentType": "counter", "description": "Count files", "toolUseId": "toolu_9"}

    asyncio.run(store.append(KEY, [line("u1", "user", "Begin."), line("a1", "assistant", [spawn])]))
    path: Any = {**KEY, "subpath": "subagents/agent-a77"}
    asyncio.run(store.append(path, [about, line("s1", "user", "Count.", **of_agent)]))
    asyncio.run(store.append(path, [line("s2", "assistant", "Seven.", **of_agent)]))

    parent, child = AgentRun.objects.filter(project=project).order_by("created_at", "pk")
    assert (child.parent_run_id, child.agent_config["agent_id"], child.title) == (parent.pk, "counter", "Count files")


def test_entries_that_are_no_session_are_stored_and_shown_as_nothing(
    store: AgentopsSessionStore, project: Project
) -> None:
    asyncio.run(store.append(KEY, [{"type": "x", "uuid": "1", "text": "NUL \0, half \ud800"}, {"type": "summary"}]))

    assert asyncio.run(store.load(KEY)) is not None
    assert not AgentRun.objects.filter(project=project).exists()
