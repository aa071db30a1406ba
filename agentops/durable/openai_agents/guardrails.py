"""Guardrails whose functions are steps of the durable run of their context.

A guardrail that trips is a failed step. If this ends the run, a resume executes the guardrail again.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from agents import (
    GuardrailFunctionOutput,
    InputGuardrail,
    OutputGuardrail,
    ToolGuardrailFunctionOutput,
    ToolInputGuardrail,
    ToolOutputGuardrail,
)
from pydantic_core import to_jsonable_python

from agentops.durable.errors import StepFailed
from agentops.durable.openai_agents.execution import Execution, active, executing, short_key

#: The type of the error of a guardrail's step that has tripped.
TRIPPED = "GuardrailTripped"
#: Marks functions that are steps already.
_IS_STEP = "_agentops_is_step"


def durable_input_guardrail(guardrail: InputGuardrail[Any]) -> InputGuardrail[Any]:
    """Return an input guardrail whose function is a step."""
    name = guardrail.get_name()
    return replace(guardrail, name=name, guardrail_function=_checked(guardrail.guardrail_function, name, "input"))


def durable_output_guardrail(guardrail: OutputGuardrail[Any]) -> OutputGuardrail[Any]:
    """Return an output guardrail whose function is a step."""
    name = guardrail.get_name()
    return replace(guardrail, name=name, guardrail_function=_checked(guardrail.guardrail_function, name, "output"))


def durable_tool_guardrails(guardrails: Any, stage: str) -> Any:
    """Return the input or output guardrails of a tool with functions that are steps. `stage`: in or out."""
    return None if guardrails is None else [_tool_guardrail(guardrail, stage) for guardrail in guardrails]


def _tool_guardrail(guardrail: ToolInputGuardrail[Any] | ToolOutputGuardrail[Any], stage: str) -> Any:
    name, function = guardrail.get_name(), guardrail.guardrail_function

    async def check(data: Any) -> ToolGuardrailFunctionOutput:
        if (execution := active()) is None:
            output: ToolGuardrailFunctionOutput = await _result(function(data))
            return output
        key = short_key(f"{execution.prefix}.{stage}.{data.context.tool_call_id}.{name}")
        return await _tool_step(execution, key, name, lambda: function(data))

    return replace(guardrail, name=name, guardrail_function=check)


def _checked(function: Callable[..., Any], name: str, stage: str) -> Callable[..., Any]:
    if hasattr(function, _IS_STEP):
        return function

    async def check(context: Any, agent: Any, value: Any) -> GuardrailFunctionOutput:
        if (execution := active()) is None:
            output: GuardrailFunctionOutput = await _result(function(context, agent, value))
            return output
        key = execution.key(f"{stage}.{agent.name}.{name}")
        return await _step(execution, key, name, lambda: function(context, agent, value))

    setattr(check, _IS_STEP, True)
    return check


async def _step(execution: Execution, key: str, name: str, call: Callable[[], Any]) -> GuardrailFunctionOutput:
    async def check() -> Any:
        with executing(execution.scope(key)):
            output = await _result(call())
        info = to_jsonable_python(output.output_info, fallback=str)
        if output.tripwire_triggered:
            raise StepFailed(name, TRIPPED, _text(info))
        return info

    try:
        info = await execution.run.at(key).step(name, check, effect="read", has_steps=True)
    except StepFailed as error:
        if error.type != TRIPPED:
            raise
        return GuardrailFunctionOutput(output_info=_info(error.message), tripwire_triggered=True)
    return GuardrailFunctionOutput(output_info=info, tripwire_triggered=False)


async def _tool_step(execution: Execution, key: str, name: str, call: Callable[[], Any]) -> ToolGuardrailFunctionOutput:
    async def check() -> Any:
        with executing(execution.scope(key)):
            output = await _result(call())
        info = to_jsonable_python(output.output_info, fallback=str)
        if output.behavior["type"] == "raise_exception":
            raise StepFailed(name, TRIPPED, _text(info))
        return {"info": info, "behavior": dict(output.behavior)}

    try:
        stored = await execution.run.at(key).step(name, check, effect="read", has_steps=True)
    except StepFailed as error:
        if error.type != TRIPPED:
            raise
        return ToolGuardrailFunctionOutput.raise_exception(_info(error.message))
    return ToolGuardrailFunctionOutput(output_info=stored["info"], behavior=stored["behavior"])


async def _result(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def _text(info: Any) -> str:
    return info if isinstance(info, str) else "" if info is None else json.dumps(info, ensure_ascii=False)


def _info(text: str) -> Any:
    """Return the information of a guardrail from the message of its error."""
    try:
        return json.loads(text) if text else None
    except ValueError:
        return text
