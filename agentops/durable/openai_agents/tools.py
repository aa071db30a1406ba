"""Function tools whose calls are steps of the durable run of their context."""

from __future__ import annotations

import asyncio
import copy
import inspect
import json
from dataclasses import dataclass
from typing import Any

from agents import (
    ApplyPatchTool,
    ComputerTool,
    CustomTool,
    FunctionTool,
    LocalShellTool,
    ShellTool,
    Tool,
    ToolTimeoutError,
    UserError,
)
from agents.run_config import ToolErrorFormatterArgs
from agents.tool import (
    invoke_function_tool,
    maybe_invoke_function_tool_failure_error_function,
    set_function_tool_failure_error_function,
)
from agents.tool_context import ToolContext

from agentops.durable.answers import Call
from agentops.durable.errors import Denied, RunInterrupted, StepFailed
from agentops.durable.openai_agents import effects, guardrails, outputs
from agentops.durable.openai_agents.execution import Execution, active, executing, short_key
from agentops.durable.openai_agents.responses import parsed_arguments
from agentops.durable.run import DurableRun

#: Tools that act in this process, but not by a function that could be a step.
_UNSUPPORTED = (ApplyPatchTool, ComputerTool, CustomTool, LocalShellTool)

#: Seconds until a task of an interrupted run is cancelled at the latest.
_CANCELLED_S = 5.0


class ToolFailed(Exception):
    """A tool raised an exception. This one has its text, because a durable run does not keep the exception."""

    def __init__(self, error_type: str, message: str) -> None:
        super().__init__(message)
        #: The name of the exception's class.
        self.type = error_type


def durable_tool(tool: Tool) -> Tool:
    """Return a tool whose calls are steps. Hosted tools need no change. Raises `UserError` for unsupported ones."""
    if isinstance(tool, FunctionTool):
        return _durable_function_tool(tool)
    if isinstance(tool, _UNSUPPORTED) or (isinstance(tool, ShellTool) and tool.executor is not None):
        raise UserError(
            f"{type(tool).__name__} cannot be used in a durable run, because its actions would be repeated after a "
            "crash. Write a function tool that does the same."
        )
    return tool


def _durable_function_tool(tool: FunctionTool) -> FunctionTool:
    if isinstance(tool.on_invoke_tool, _StepInvoker):
        return tool
    wrapped = copy.copy(tool)
    wrapped.on_invoke_tool = _StepInvoker(tool)
    # The step waits for the approval, and keeps the time limit.
    wrapped.needs_approval, wrapped.timeout_seconds = False, None
    wrapped.tool_input_guardrails = guardrails.durable_tool_guardrails(tool.tool_input_guardrails, "in")
    wrapped.tool_output_guardrails = guardrails.durable_tool_guardrails(tool.tool_output_guardrails, "out")
    return wrapped


@dataclass(frozen=True)
class _StepInvoker:
    """The function of a wrapped tool."""

    tool: FunctionTool

    async def __call__(self, context: ToolContext[Any], arguments: str) -> Any:
        if (execution := active()) is None:
            return await invoke_function_tool(function_tool=self.tool, context=context, arguments=arguments)
        call = await self._call(execution, context, arguments)
        execution.open_calls.pop(call.id, None)
        invocation = _Invocation(self.tool, execution, context, arguments, call)
        try:
            return await invocation.step()
        except RunInterrupted:
            # The run is being cancelled, and with it this task. The SDK reports tasks that end otherwise.
            await asyncio.sleep(_CANCELLED_S)
            raise
        except Denied as denied:
            return await _rejection(context, denied.message)
        except StepFailed as failed:
            return await self._failure(context, failed)

    async def _call(self, execution: Execution, context: ToolContext[Any], arguments: str) -> Call:
        tool, shown = self.tool, parsed_arguments(arguments)
        needs_approval = tool.needs_approval
        if callable(needs_approval):
            needs_approval = await needs_approval(context, shown, context.tool_call_id)
        return Call(
            id=context.tool_call_id,
            name=context.tool_name,
            arguments=shown,
            effect=effects.effect_of(tool, execution.options.effects),
            needs_approval=bool(needs_approval),
        )

    async def _failure(self, context: ToolContext[Any], failed: StepFailed) -> Any:
        """Return the text of a failed call for the model. Raises the failure if the tool makes no text."""
        tool = self.tool
        if failed.type == ToolTimeoutError.__name__ and tool.timeout_seconds is not None:
            raise ToolTimeoutError(tool_name=tool.name, timeout_seconds=tool.timeout_seconds) from failed
        error = ToolFailed(failed.type, failed.message)
        error.__cause__ = failed
        text = None
        if _handles_failures(tool):
            text = await maybe_invoke_function_tool_failure_error_function(
                function_tool=tool, context=context, error=error
            )
        if text is None:
            raise failed
        return text


@dataclass(frozen=True)
class _Invocation:
    """One call of a tool."""

    tool: FunctionTool
    execution: Execution
    context: ToolContext[Any]
    arguments: str
    call: Call

    async def step(self) -> Any:
        """Execute the call as a step, or by a child run, and return the stored output."""
        run = self.execution.run.at(self.execution.call_key(self.call))
        agent: str = getattr(self.tool._agent_instance, "name", "")
        if (child := self.execution.options.children.get(agent)) is not None:
            return await self._child(run, child)
        return await run.tool(self.call, self.execute, has_steps=self.tool._is_agent_tool)

    async def execute(self, *, idempotency_key: str = "", **arguments: Any) -> Any:
        """Call the tool, and return its output as JSON. `arguments`: perhaps changed by an approver or a hook."""
        effects.set_idempotency_key(idempotency_key)
        text = self.arguments if arguments == self.call.arguments else json.dumps(arguments)
        if not self.tool._is_agent_tool:
            return await self._invoke(text)
        with executing(self.execution.scope(short_key(f"{self.execution.prefix}.in.{self.call.id}"))):
            return await self._invoke(text)

    async def _invoke(self, arguments: str) -> Any:
        raising = set_function_tool_failure_error_function(copy.copy(self.tool), None)
        output = await invoke_function_tool(function_tool=raising, context=self.context, arguments=arguments)
        return outputs.as_json(self.tool, output)

    async def _child(self, run: DurableRun, agent: str) -> Any:
        """Execute the call by a child run, and return its result."""
        prompt = self.call.arguments.get("input")
        if not isinstance(prompt, str):
            prompt = json.dumps(dict(self.call.arguments), ensure_ascii=False)
        child = await run.child(agent, prompt, call=self.call)
        if child.status != "completed":
            raise StepFailed(self.tool.name, f"child_{child.status}", str(child.error or ""))
        return child.result


def _handles_failures(tool: FunctionTool) -> bool:
    """Whether the tool makes text of exceptions: tools of `function_tool` and of MCP servers do."""
    return callable(getattr(tool.on_invoke_tool, "__agents_bind_function_tool__", None))


async def _rejection(context: ToolContext[Any], message: str) -> str:
    """Return the text of a denied call for the model: from the formatter, or the reason of the denial."""
    config = context.run_config
    formatter = None if config is None else config.tool_error_formatter
    if formatter is None:
        return message
    formatted = formatter(
        ToolErrorFormatterArgs(
            kind="approval_rejected",
            tool_type="function",
            tool_name=context.tool_name,
            call_id=context.tool_call_id,
            default_message=message,
            run_context=context,
        )
    )
    text = await formatted if inspect.isawaitable(formatted) else formatted
    return message if text is None else text
