"""The `@tool` decorator, which turns a Python function into a `Tool`. The schema is derived from its signature."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any

import pydantic_ai
from pydantic import ValidationError
from pydantic_core import SchemaValidator, to_json

from agentops.base.http import strict_json
from runs.tools.base import Arguments, BadArguments, Effect, OutcomeUnknown, Tool, ToolContext
from runs.tools.output import clip

MAX_ARGUMENTS_BYTES = 1024 * 1024
#: The JSON limits of arguments: as for files, but a string may be as long as all arguments together.
ARGUMENTS = replace(strict_json.FILE, string=MAX_ARGUMENTS_BYTES)
#: Maximum number of invalid arguments that an error message names.
MAX_FAULTS = 10

Function = Callable[..., object]


def tool(
    *,
    effect: Effect | str = Effect.AT_MOST_ONCE,
    timeout_s: float | None = 30,
    needs_approval: bool = False,
    name: str | None = None,
    inline: bool = False,
    repeats_after_error: bool = False,
) -> Callable[[Function], Tool]:
    """Turn a function into a tool. The docstring becomes the description, the parameters become the schema.

    `effect` is `read`, `idempotent` or `at_most_once`. If the first parameter is annotated `ToolContext`, the engine
    passes the context; the model does not see it. An async function runs in a new event loop on the tool's thread.
    `repeats_after_error` allows retries of a tool with the effect at_most_once.
    """

    def decorator(function: Function) -> Tool:
        if inline and inspect.iscoroutinefunction(function):
            raise TypeError(f"Tool {function.__name__!r} is async, and cannot be inline.")
        takes_ctx, visible = _without_context(function)
        schema = pydantic_ai.Tool(visible, name=name, takes_ctx=False)
        return Tool(
            name=schema.name,
            description=schema.description or "",
            parameters_schema=schema.function_schema.json_schema,
            execute=_executor(function, schema.function_schema.validator, takes_ctx=takes_ctx),
            effect=Effect(effect),
            timeout_s=timeout_s,
            needs_approval=needs_approval,
            inline=inline,
            repeats_after_error=repeats_after_error,
        )

    return decorator


def parse(arguments: Arguments) -> dict[str, Any]:
    """Return the arguments of a call, which are an object or its JSON text, as a dict. Raises `BadArguments`.

    An empty text, which providers send for calls without arguments, becomes an empty dict.
    """
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
            raise BadArguments(_error_text(error)) from error
        value = function(ctx, **values) if takes_ctx else function(**values)
        return run(value, ctx.cancelled) if inspect.iscoroutine(value) else value

    return execute


def _without_context(function: Function) -> tuple[bool, Function]:
    """Return whether the first parameter is a `ToolContext`, and a function for the schema without this parameter.

    Raises `TypeError` if the function cannot be a tool.
    """
    if inspect.isasyncgenfunction(function):
        raise TypeError(f"Tool {function.__name__!r} must return its result, not yield it.")
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    if any(each.kind in (each.POSITIONAL_ONLY, each.VAR_POSITIONAL) for each in parameters):
        raise TypeError(f"Tool {function.__name__!r} must not have positional-only parameters or *args.")
    takes_ctx = bool(parameters) and _is_context(parameters[0].annotation)
    visible_parameters = parameters[1:] if takes_ctx else parameters

    def visible() -> None:
        """Carry the signature for pydantic-ai. Never called."""

    visible.__name__, visible.__qualname__ = function.__name__, function.__qualname__
    visible.__module__, visible.__doc__ = function.__module__, function.__doc__
    visible.__dict__["__wrapped__"] = function  # string annotations are resolved in the module of the function
    visible.__dict__["__signature__"] = signature.replace(parameters=visible_parameters, return_annotation=None)
    visible.__annotations__ = {p.name: p.annotation for p in visible_parameters if p.annotation is not p.empty}
    return takes_ctx, visible


def _is_context(annotation: object) -> bool:
    if isinstance(annotation, str):
        return annotation.rpartition(".")[2] == ToolContext.__name__
    return annotation is ToolContext


def _error_text(error: ValidationError) -> str:
    """Return the faults of the arguments, without their values, which may be secrets."""
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    lines = [f"- {'.'.join(map(str, each['loc'])) or '(all)'}: {each['msg']}" for each in errors[:MAX_FAULTS]]
    if len(errors) > MAX_FAULTS:
        lines.append(f"- and {len(errors) - MAX_FAULTS} more")
    return "The arguments do not match the tool's schema:\n" + clip("\n".join(lines), 2_000)


def _json_kind(value: object) -> str:
    kinds = {list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return kinds.get(type(value), "null")


# --- Coroutines ---

#: Seconds between two checks whether the result is still needed.
CHECK_S = 0.1


def run(coroutine: Coroutine[Any, Any, object], cancelled: Callable[[], bool]) -> object:
    """Return the result of a coroutine. If `cancelled` returns True, cancel it and raise `OutcomeUnknown`."""
    return asyncio.run(_run_until_cancelled(coroutine, cancelled))


async def _run_until_cancelled(coroutine: Coroutine[Any, Any, object], cancelled: Callable[[], bool]) -> object:
    task, is_cancelled = asyncio.ensure_future(coroutine), False
    while not task.done():
        await asyncio.wait([task], timeout=CHECK_S)
        if not task.done() and not is_cancelled and cancelled():
            # Cancel only once: a second time would interrupt the clean-up of the coroutine.
            is_cancelled = task.cancel()
    if is_cancelled and task.cancelled():
        raise OutcomeUnknown
    return task.result()
