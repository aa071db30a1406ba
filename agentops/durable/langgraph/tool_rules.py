"""What the metadata of LangChain's tools says about their effects and approvals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from langchain_core.messages import ToolCall
from langchain_core.tools import BaseTool

from agentops.durable.answers import Call, Effect

#: The member of a tool's `metadata` or `extras` with its rule.
MEMBER = "agentops"


@dataclass(frozen=True)
class ToolRule:
    """How the calls of a tool are executed."""

    effect: Effect = "once"
    #: Whether a person must approve each call.
    approval: bool = False
    #: False: the tool is a graph itself. Its model calls, tools and interrupts are steps; the tool is not one.
    step: bool = True

    @classmethod
    def of(cls, tool: BaseTool) -> ToolRule:
        """Return the rule in the metadata or the extras of a tool. Raises `ValueError` for an invalid one."""
        for members in (tool.metadata, tool.extras):
            if isinstance(rule := (members or {}).get(MEMBER), Mapping):
                return cls._read(tool.name, rule)
        return cls()

    @classmethod
    def _read(cls, tool: str, rule: Mapping[str, Any]) -> ToolRule:
        if unknown := set(rule) - {"effect", "approval", "step"}:
            raise ValueError(f"tool {tool!r} has the unknown setting {min(unknown)!r}: use effect, approval and step")
        if rule.get("effect", "once") not in get_args(Effect):
            raise ValueError(
                f"tool {tool!r} has the effect {rule['effect']!r}: use one of {', '.join(get_args(Effect))}"
            )
        if rule.get("approval") and not rule.get("step", True):
            # The tool is recorded when it has ended, which is too late for a decision about it.
            raise ValueError(
                f'tool {tool!r} has "approval" and "step": False, but only steps can be approved: '
                "give the approval to the tools inside of it"
            )
        return cls(**rule)


class ToolRules:
    """The rules of the tools of a graph, by name."""

    def __init__(self, tools: Iterable[BaseTool] = ()) -> None:
        self._rules = {tool.name: ToolRule.of(tool) for tool in tools}

    def call(self, requested: ToolCall) -> Call:
        """Return the call that a model requests, with the rule of its tool."""
        rule = self._rules.get(requested["name"], ToolRule())
        return Call(
            id=str(requested["id"]),
            name=requested["name"],
            arguments=requested["args"],
            # The steps inside of such a tool are not repeated, so that the tool can be.
            effect=rule.effect if rule.step else "idempotent",
            needs_approval=rule.approval,
        )
