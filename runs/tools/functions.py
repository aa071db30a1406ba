"""The `@tool` decorator: a Python function becomes a Tool, its schema taken from its signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pydantic_ai
from pydantic import ValidationError
from pydantic_core import SchemaValidator, to_json

from agentops.http import strict_json
from runs.tools.base import Arguments, BadArguments, Effect, Tool, ToolContext
from runs.tools.output import clip

MAX_ARGUMENTS_BYTES = 1024 * 1024
#: What a model says is bounded by its length; how it is written is as strict as anybody's.
ARGUMENTS = replace(strict_json.FILE, string=MAX_ARGUMENTS_BYTES)
MAX_FAULTS = 10

Function = Callable[..., object]


def tool(
    *,
    effect: Effect = Effect.AT_MOST_ONCE,
    timeout_s: float | None = 30,
    needs_approval: bool = False,
    name: str | None = None,
    inline: bool = False,
    repeats_after_error: bool = False,
) -> Callable[[Function], Tool]:
    """Make the function a tool: docstring = description, parameters = schema. A leading parameter annotated
    `ToolContext` is filled by the engine and hidden from the model. `repeats_after_error` allows retries of a tool of
    the effect at_most_once."""

    def made(function: Function) -> Tool:
        takes_ctx, visible = _without_context(function)
        schema = pydantic_ai.Tool(visible, name=name, takes_ctx=False)
        return Tool(
            name=schema.name,
            description=schema.description or "",
            parameters_schema=schema.function_schema.json_schema,
            execute=_executor(function, schema.function_schema.validator, takes_ctx=takes_ctx),
            effect=effect,
            timeout_s=timeout_s,
            needs_approval=needs_approval,
            inline=inline,
            repeats_after_error=repeats_after_error,
        )

    return made


def parse(arguments: Arguments) -> dict[str, Any]:
    """The arguments as an object, whichever way they came. Providers send an empty text for no arguments."""
    try:
        text = arguments if isinstance(arguments, str) else to_json(arguments, inf_nan_mode="constants")
        data = text.encode() if isinstance(text, str) else text
    except (ValueError, TypeError) as error:
        raise BadArguments(f"The arguments are not JSON: {clip(str(error), 200)}.") from error
    if len(data) > MAX_ARGUMENTS_BYTES:
        raise BadArguments(f"The arguments take {len(data)} bytes; the limit is {MAX_ARGUMENTS_BYTES}.")
    try:
        parsed = strict_json.parse(data.strip() or b"{}", ARGUMENTS)
    except strict_json.NotJson as error:
        raise BadArguments(f"The arguments are not JSON: {clip(str(error), 200)}.") from error
    if not isinstance(parsed, dict):
        raise BadArguments(f"The arguments must be a JSON object, not {_json_kind(parsed)}.")
    return parsed


def _executor(
    function: Function, validator: SchemaValidator, *, takes_ctx: bool
) -> Callable[[ToolContext, Arguments], object]:
    def execute(ctx: ToolContext, arguments: Arguments) -> object:
        try:
            values: Mapping[str, Any] = validator.validate_python(parse(arguments))
        except ValidationError as error:
            raise BadArguments(_faults(error)) from error
        return function(ctx, **values) if takes_ctx else function(**values)

    return execute


def _without_context(function: Function) -> tuple[bool, Function]:
    """The function as its schema is built from it. pydantic-ai would take our context for an argument."""
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"Tool {function.__name__!r} must be a plain function, not an async one.")
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    if any(each.kind in (each.POSITIONAL_ONLY, each.VAR_POSITIONAL) for each in parameters):
        raise TypeError(f"Tool {function.__name__!r} can have named parameters only.")
    takes_ctx = bool(parameters) and _is_context(parameters[0].annotation)
    shown = parameters[1:] if takes_ctx else parameters

    def visible() -> None:
        """Only looked at, never called."""

    visible.__name__, visible.__qualname__ = function.__name__, function.__qualname__
    visible.__module__, visible.__doc__ = function.__module__, function.__doc__
    visible.__dict__["__wrapped__"] = function  # annotations written as text are resolved in its module
    visible.__dict__["__signature__"] = signature.replace(parameters=shown, return_annotation=None)
    visible.__annotations__ = {p.name: p.annotation for p in shown if p.annotation is not p.empty}
    return takes_ctx, visible


def _is_context(annotation: object) -> bool:
    if isinstance(annotation, str):
        return annotation.rpartition(".")[2] == ToolContext.__name__
    return annotation is ToolContext


def _faults(error: ValidationError) -> str:
    """What was wrong where, without repeating the values."""
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    lines = [f"- {'.'.join(map(str, each['loc'])) or '(all)'}: {each['msg']}" for each in faults[:MAX_FAULTS]]
    if len(faults) > MAX_FAULTS:
        lines.append(f"- and {len(faults) - MAX_FAULTS} more")
    return "The arguments do not fit the tool's schema:\n" + clip("\n".join(lines), 2_000)


def _json_kind(value: object) -> str:
    if value is None:
        return "null"
    kinds = {list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return kinds[type(value)]
