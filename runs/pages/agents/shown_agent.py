"""The definition of an agent as pages show it, with secrets masked; and the differences of two definitions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from agentops.base.catalogue import CatalogueEntry
from agentops.base.redaction.json_values import masked
from runs.agents import placement, policies
from runs.agents.call_rules import InvalidPolicy
from runs.agents.policies import PolicyRule, Trigger
from runs.pages.content.differences import TextDifference, difference
from runs.providers.messages import canonical
from runs.tools.base import Tool
from runs.tools.catalogue import RECORDED, TOOLS
from runs.tools.mcp_toolset import PREFIX
from runs.tools.sandbox.switches import why_off
from timeline.display import Clip, clean, clip, format_duration, format_json

#: Maximum bytes of the instructions and of a value on the page.
TEXT_BYTES, VALUE_BYTES = 64 * 1024, 4 * 1024
#: Titles of the rules of a trigger.
_TITLES = {
    Trigger.ON_IDLE: "When idle",
    Trigger.ON_DEAD: "When dead",
    Trigger.ON_ERROR: "On an error",
    Trigger.ON_PROMPT: "On a question",
    Trigger.ON_CUT: "On a cut answer",
    Trigger.ON_REFUSED: "On a refused answer",
}
#: Policy that is a choice → title.
_CHOICES = {"on_unknown_tool": "Unknown outcome of a tool call", "on_crash": "Crash in the middle of a turn"}


@dataclass(frozen=True)
class ShownTool:
    """A tool of an agent."""

    name: str
    description: str
    effect: str = ""
    time_limit: str = ""
    needs_approval: bool = False
    #: The source of the tool; empty if it is not installed.
    source: str = ""
    #: The reason why the tool is disabled on this site; empty if it is enabled.
    off: str = ""


@dataclass(frozen=True)
class ShownApprovalRule:
    """An approval rule, as it is stored."""

    tools: str
    action: str
    arguments: str
    reason: str
    expiry: str


@dataclass(frozen=True)
class ShownDefinition:
    """A definition for a template."""

    provider: str
    model: str
    max_steps: str
    instructions: Clip
    tools: list[ShownTool]
    settings: list[tuple[str, str]]
    #: The title of each trigger, and its rules as sentences with their messages.
    triggers: list[tuple[str, list[tuple[str, str]]]]
    choices: list[tuple[str, str]]
    approvals: list[ShownApprovalRule]
    #: The name, the tools and the options of each hook.
    hooks: list[tuple[str, str, str]]
    json: Clip


def shown_definition(definition: Mapping[str, Any]) -> ShownDefinition:
    """Return a definition for display. Accepts old definitions that are no longer valid."""
    value = masked(dict(definition))
    own = value.get("policies")
    own = own if isinstance(own, dict) else {}
    settings = value.get("settings")
    return ShownDefinition(
        provider=_line(value.get("provider")),
        model=_line(value.get("model")),
        max_steps=_line(value.get("max_steps")),
        instructions=clip(str(value.get("instructions") or ""), TEXT_BYTES),
        tools=[_tool(str(name)) for name in _list(value.get("tools"))],
        settings=sorted((_line(name), _value(each)) for name, each in settings.items()) if settings else [],
        triggers=[(_TITLES[trigger], _rules(trigger, own[trigger])) for trigger in Trigger if trigger in own],
        choices=[(title, _line(own[name])) for name, title in _CHOICES.items() if name in own],
        approvals=shown_rules(_list(own.get("approvals"))),
        hooks=[_hook(each) for each in _list(own.get("hooks"))],
        json=clip(format_json(value), TEXT_BYTES),
    )


def shown_rules(rules: Iterable[Any]) -> list[ShownApprovalRule]:
    """Return approval rules for a table."""
    return [_approval_rule(rule) for rule in masked(list(rules)) if isinstance(rule, dict)]


def first_line(text: str) -> str:
    """Return the first line of a description."""
    return clean(text.strip().partition("\n")[0])


def tool_facts(entry: CatalogueEntry[Tool]) -> ShownTool:
    """Return an installed tool for display."""
    tool = entry.part
    limit = "" if tool.timeout_s is None else f"{tool.timeout_s:g} s"
    text = first_line(tool.description)
    return ShownTool(tool.name, text, tool.effect.value, limit, tool.needs_approval, entry.source, why_off(tool))


def _tool(name: str) -> ShownTool:
    """Return the tool of a name in a definition, which may not be installed."""
    entry = next((each for each in TOOLS.entries() if each.name == name), None)
    if entry is not None:
        return tool_facts(entry)
    if name == RECORDED:
        return ShownTool(name, "Answers every call from the recording of the agent.", source="built in")
    if name.startswith(PREFIX):
        return ShownTool(clean(name), "The tools of an MCP server.", source="MCP server")
    return ShownTool(clean(name), "")


def _rules(trigger: Trigger, value: Any) -> list[tuple[str, str]]:
    """Return the rules of a trigger as sentences with their messages; invalid rules as JSON."""
    try:
        rules = policies.parse({trigger: value}).rules[trigger]
    except InvalidPolicy:
        return [(_value(value), "")]
    return [(_sentence(rule), clean(rule.message or "")) for rule in rules]


def _sentence(rule: PolicyRule) -> str:
    """Return a rule in words, such as "resume, at most 3 attempts, after 5 min 00 s, for rate_limited"."""
    parts = [rule.action.value if rule.run is None else f"gate: {clean(rule.run)}"]
    if rule.is_counted:
        count = rule.attempts
        parts.append("any number of attempts" if count is None else f"at most {count} attempt{'s' * (count != 1)}")
    if rule.cooldown_s:
        parts.append(f"after {format_duration(rule.cooldown_s)}")
    if rule.match:
        parts.append(f"for {', '.join(sorted(rule.match))}")
    return ", ".join(parts if rule.append else [*parts, "in a new conversation"])


def _approval_rule(rule: Mapping[str, Any]) -> ShownApprovalRule:
    arguments = rule.get("arguments")
    pairs = arguments.items() if isinstance(arguments, dict) else ()
    expires = f"{_line(rule['expires'])}, then {_line(rule.get('on_expiry', 'deny'))}" if "expires" in rule else ""
    return ShownApprovalRule(
        tools=_line(rule.get("tools", "")),
        action=_line(rule.get("action", "")),
        arguments="\n".join(f"{_line(name)}: {_line(pattern)}" for name, pattern in pairs),
        reason=_line(rule.get("reason", "")),
        expiry=expires,
    )


def _hook(use: Any) -> tuple[str, str, str]:
    """Return the name, the tools and the options of a hook."""
    if not isinstance(use, dict):
        return _line(use), "", ""
    return _line(use.get("hook")), _line(use.get("tools") or ""), _value(use["options"]) if use.get("options") else ""


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _line(value: Any) -> str:
    return clip(str(value), VALUE_BYTES).text


def _value(value: Any) -> str:
    return clip(value if isinstance(value, str) else format_json(value), VALUE_BYTES).text


#: The members of a definition that are compared.
FIELDS = ("provider", "model", "max_steps", "instructions", "tools", "settings", "policies", *placement.FIELDS)
#: Maximum bytes of a member that are compared.
MAX_BYTES = 128 * 1024


def changes_between(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[TextDifference]:
    """Return the difference of each member that differs between two definitions."""
    old, new = masked(dict(before)), masked(dict(after))
    return [
        difference(name, _text(old.get(name)), _text(new.get(name)))
        for name in FIELDS
        if canonical(before.get(name)) != canonical(after.get(name))
    ]


def _text(value: Any) -> str:
    """Return a member of a definition as the text that is compared."""
    if value in (None, "", [], {}):
        return ""
    # Sorted, because PostgreSQL stores keys in another order than forms send them.
    text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True)
    return clip(text, MAX_BYTES).text
