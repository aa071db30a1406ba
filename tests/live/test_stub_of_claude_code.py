"""The stub of Claude Code behaves like the program: the unmodified SDK drives it and sees the same messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from claude_agent_sdk import (
    AssistantMessage,
    ClaudeAgentOptions,
    HookMatcher,
    ProcessError,
    ResultMessage,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
    UserMessage,
    query,
)

from tests.support.programs.stub_cli import scripted_program

BASH = {"tool": "Bash", "input": {"command": "ls"}, "output": "ran {command}"}
READ = {"tool": "Read", "input": {"path": "a.txt"}, "output": "read {path}"}


def play(folder: Path, *acts: dict[str, Any], **options: Any) -> tuple[list[Any], Exception | None]:
    """Return the messages of one turn, and the exception with which the SDK ends."""
    own = {"CLAUDE_CONFIG_DIR": str(folder / "config"), "HOME": str(folder)}
    given = ClaudeAgentOptions(cli_path=scripted_program(folder, [list(acts)]), cwd=folder, env=own, **options)
    messages: list[Any] = []

    async def prompt() -> AsyncIterator[dict[str, Any]]:
        yield {"type": "user", "message": {"role": "user", "content": "Begin."}, "parent_tool_use_id": None}

    async def turn() -> None:
        async for message in query(prompt=prompt(), options=given):
            messages.append(message)

    try:
        asyncio.run(turn())
    except Exception as error:
        return messages, error
    return messages, None


async def _guard(given: Any, call_id: str | None, _: Any) -> Any:
    if given["tool_name"] == "Bash":
        output = {"permissionDecision": "deny", "permissionDecisionReason": "No shell."}
    else:
        output = {"permissionDecision": "allow", "updatedInput": {"path": "b.txt"}}
    return {"hookSpecificOutput": {"hookEventName": "PreToolUse", **output}}


def test_hooks_decide_about_parallel_calls_and_calls_of_sub_agents(tmp_path: Path) -> None:
    agent = {"tool": "Agent", "input": {"prompt": "Look."}, "output": "two", "subagent": [READ, {"text": "Two."}]}
    hooks: Any = {"PreToolUse": [HookMatcher(matcher="Bash|Read", hooks=[_guard])]}
    messages, error = play(tmp_path, {"tools": [BASH, READ]}, agent, {"text": "Done."}, hooks=hooks)

    assert error is None
    results = [
        (message.parent_tool_use_id is not None, block.content, bool(block.is_error))
        for message in messages
        if isinstance(message, UserMessage) and isinstance(message.content, list)
        for block in message.content
        if isinstance(block, ToolResultBlock)
    ]
    # The last of parallel calls comes first.
    assert results == [
        (False, "read b.txt", False),
        (False, "No shell.", True),
        (True, "read b.txt", False),
        (False, "two", False),
    ]
    answers = [message for message in messages if isinstance(message, AssistantMessage)]
    kinds = [(message.parent_tool_use_id is not None, type(message.content[0])) for message in answers]
    assert kinds == [
        *((False, ToolUseBlock), (False, ToolUseBlock), (False, ToolUseBlock)),
        *((True, ToolUseBlock), (True, TextBlock), (False, TextBlock)),
    ]
    assert isinstance(messages[-1], ResultMessage)


@pytest.mark.parametrize(
    ("acts", "error", "has_result"),
    [
        ([{"text": "x"}, {"exit": 137}], ProcessError, False),
        ([{"text": "x"}, {"signal": 9}], ProcessError, False),
        ([{"text": "x"}, {"exit": 0}], type(None), False),
        ([{"line": "a warning\n"}, {"text": "x"}], type(None), True),
        ([{"text": "x"}, {"line": '{"type": "resu'}, {"exit": 1}], ProcessError, False),
        ([{"result": "error_max_turns", "is_error": True, "errors": ["9 turns"]}], type(None), True),
    ],
)
def test_each_kind_of_exit(tmp_path: Path, acts: Any, error: type, has_result: bool) -> None:
    """The SDK raises for a nonzero exit, but not for a silent end."""
    messages, raised = play(tmp_path, *acts)

    assert type(raised) is error
    assert any(isinstance(message, ResultMessage) for message in messages) is has_result


def test_the_stub_refuses_the_same_sessions_as_the_program(tmp_path: Path) -> None:
    _, unknown = play(tmp_path, {"text": "x"}, resume="00000000-0000-4000-8000-000000000000")
    first, _ = play(tmp_path, {"text": "x"})
    _, taken = play(tmp_path, {"text": "x"}, session_id=first[-1].session_id)

    assert isinstance(unknown, ProcessError)
    assert isinstance(taken, ProcessError)
