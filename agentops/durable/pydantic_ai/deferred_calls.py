"""Tool calls of an agent that no step executes: requests to people, and calls that the library settles itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from pydantic_ai.messages import ModelMessage, ToolCallPart, ToolReturnPart
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, RunContext, ToolApproved, ToolDenied

from agentops.durable.errors import Denied
from agentops.durable.pydantic_ai.executions import AgentExecution, execution_of
from agentops.durable.pydantic_ai.model_answers import arguments_of

#: Maximum characters of a question.
MAX_QUESTION = 10_000
#: Arguments of tools that ask a question: the text, and the answers to choose from.
_TEXTS, _CHOICES = ("question", "prompt", "text"), ("choices", "options")


async def resolve_calls(ctx: RunContext[Any], requests: DeferredToolRequests) -> DeferredToolResults:
    """Return a result for each deferred call. The run waits for people without a process."""
    execution = execution_of(ctx)
    approvals: dict[str, Any] = {}
    for call in requests.approvals:
        approvals[call.tool_call_id] = await _approval(execution, call)
    calls: dict[str, Any] = {}
    for call in requests.calls:
        question, choices = _question(call, is_question=requests.kind(call.tool_call_id) == "question")
        step = execution.run.at(_key(execution, call, "answer"))
        calls[call.tool_call_id] = await step.ask(question, choices)
    return requests.build_results(approvals=approvals, calls=calls)


async def _approval(execution: AgentExecution, call: ToolCallPart) -> ToolApproved | ToolDenied:
    """Return the decision about a call.

    A call whose tool was not called yet is approved here: the site asks the person when the tool is called, so that the
    request is about the model's own call, and the person may change its arguments.
    """
    if call.tool_call_id in execution.calls and call.tool_call_id not in execution.executed:
        execution.reviewed.add(call.tool_call_id)
        return ToolApproved()
    decision = await execution.run.at(_key(execution, call, "approval")).approve(call.tool_name, arguments_of(call))
    return ToolApproved() if decision else ToolDenied(decision.message or ToolDenied().message)


def _key(execution: AgentExecution, call: ToolCallPart, what: str) -> str:
    known = execution.calls.get(call.tool_call_id)
    return execution.step_key(f"{what}/{known.id if known is not None else call.tool_call_id}", None)


async def settle_calls(execution: AgentExecution, messages: Sequence[ModelMessage]) -> None:
    """Tell the site the results of calls that no step has executed: wrong ones, answered ones, and skipped ones.

    `messages`: the history of the agent, whose last requests have the results.
    """
    if not (open_ids := execution.calls.keys() - execution.executed):
        return
    parts = [part for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]
    results = {part.tool_call_id: part for part in parts if part.tool_call_id in open_ids}
    for call_id, part in results.items():
        execution.executed.add(call_id)
        call = execution.calls[call_id]
        if part.outcome != "success":
            execution.run.at(f"call:{call.id}").reject(call, part.model_response_str())
            continue
        step = execution.run.at(f"call:{call.id}")
        with suppress(Denied):
            await step.tool(replace(call, effect="read"), partial(_stated, part.model_response_str()))


async def _stated(text: str, /, **arguments: Any) -> str:
    return text


def _question(call: ToolCallPart, *, is_question: bool) -> tuple[str, list[str]]:
    """Return the question about a call, and the answers to choose from."""
    arguments = arguments_of(call)
    if is_question:
        text = next((arguments[name] for name in _TEXTS if isinstance(arguments.get(name), str)), None)
        choices: list[Any] = next((arguments[name] for name in _CHOICES if isinstance(arguments.get(name), list)), [])
        if text is not None:
            return text[:MAX_QUESTION], [choice for choice in choices if isinstance(choice, str)]
    shown = json.dumps(arguments, ensure_ascii=False)
    return f"What is the result of {call.tool_name}({shown})?"[:MAX_QUESTION], []
