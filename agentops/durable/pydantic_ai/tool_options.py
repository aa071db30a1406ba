"""How a durable run executes a tool: metadata of the tool, and hints of an MCP server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, cast, get_args

from pydantic_ai.exceptions import UserError
from pydantic_ai.tools import ToolDefinition

from agentops.durable.answers import Effect

#: The key of the options in the metadata of a tool.
METADATA_KEY = "agentops"
#: Hints of MCP servers about their tools, in the order in which they count.
_HINTS: tuple[tuple[str, Effect], ...] = (("readOnlyHint", "read"), ("idempotentHint", "idempotent"))


@dataclass(frozen=True, kw_only=True)
class ToolOptions:
    """The options of a tool: `metadata={"agentops": {"effect": "read"}}`."""

    #: What happens if the process dies in the call, as for `DurableRun.step`.
    effect: Effect = "once"
    #: Number of retries after exceptions. `ModelRetry` and `ToolFailed` are no exceptions here.
    retries: int = 0
    #: Seconds for each attempt.
    timeout_s: float | None = None
    #: The name of an agent of the project: its child run executes the call, in place of the function.
    child: str = ""

    def __post_init__(self) -> None:
        if self.effect not in get_args(Effect):
            raise UserError(f"the effect {self.effect!r} of a tool must be one of {', '.join(get_args(Effect))}")


_NAMES = {field.name for field in fields(ToolOptions)}


def options_of(tool: ToolDefinition | None) -> ToolOptions | Literal[False]:
    """Return the options of a tool; False if it is called without a step. Raises `UserError` for unknown options."""
    metadata: Mapping[str, Any] = (tool.metadata if tool is not None else None) or {}
    given = metadata.get(METADATA_KEY, {})
    if given is False:
        return False
    if not isinstance(given, Mapping) or not given.keys() <= _NAMES:
        name = tool.name if tool is not None else ""
        raise UserError(
            f"the tool {name!r} has the metadata {METADATA_KEY}={given!r}: give False, or an object with "
            f"{', '.join(sorted(_NAMES))}"
        )
    options = {"effect": _hinted_effect(metadata), **given}
    return ToolOptions(**cast("dict[str, Any]", options))


def _hinted_effect(metadata: Mapping[str, Any]) -> Effect:
    """Return the effect according to the annotations of an MCP server."""
    annotations = metadata.get("annotations")
    if isinstance(annotations, Mapping):
        for hint, effect in _HINTS:
            if annotations.get(hint) is True:
                return effect
    return "once"
