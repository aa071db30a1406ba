"""The effects of tools: what happens to a call if the process dies before its result is stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, TypeVar

from agents import FunctionTool

from agentops.durable.answers import Effect

ToolT = TypeVar("ToolT", bound=FunctionTool)
#: The attribute of a tool with its effect.
_EFFECT = "_agentops_effect"
_KEY: ContextVar[str] = ContextVar("agentops_idempotency_key", default="")


def effect(kind: Effect) -> Callable[[ToolT], ToolT]:
    """Declare the effect of a tool: `@effect("read")` above `@function_tool`. Without it, a tool is `once`.

    `read` and `idempotent` calls are repeated if the process dies in them; about `once` a person decides.
    """
    if kind not in ("read", "idempotent", "once"):
        raise ValueError(f"the effect {kind!r} must be 'read', 'idempotent' or 'once'")

    def mark(tool: ToolT) -> ToolT:
        setattr(tool, _EFFECT, kind)
        return tool

    return mark


def effect_of(tool: FunctionTool, effects: Mapping[str, Effect]) -> Effect:
    """Return the effect of a tool. `effects`: by name, before all others. MCP tools may have hints."""
    if (given := effects.get(tool.name) or effects.get(tool.qualified_name)) is not None:
        return given
    marked: Effect | None = getattr(tool, _EFFECT, None)
    if marked is not None:
        return marked
    # An agent that is a tool consists of steps, which have effects themselves.
    return "read" if tool._is_agent_tool else _hinted(tool.mcp_annotations)


def _hinted(annotations: Any) -> Effect:
    """Return the effect that the hints of an MCP server mean. mcp 1 and 2 name them differently."""
    is_of_mcp_1 = not hasattr(annotations, "read_only_hint")
    read, idempotent = ("readOnlyHint", "idempotentHint") if is_of_mcp_1 else ("read_only_hint", "idempotent_hint")
    if getattr(annotations, read, None):
        return "read"
    return "idempotent" if getattr(annotations, idempotent, None) else "once"


def idempotency_key() -> str:
    """Return the key of the tool call that executes in this context: the same in each attempt of the call."""
    if not (key := _KEY.get()):
        raise LookupError("idempotency_key() belongs into a tool that a durable run executes")
    return key


def set_idempotency_key(key: str) -> None:
    """Set the key for the tool that is called in this context."""
    _KEY.set(key)
