"""The policies that decide about tool calls: approval rules and hooks. Also functions that parse all policies.

Approval rules say which tool calls run automatically, which need a person, and which are denied. An agent has rules in
its definition (`policies.approvals`), and a project has rules for all its agents. Hooks are configured for the site,
and in the definition of an agent (`policies.hooks`).
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from django.conf import settings

from agentops.base.fair_shares import WorkBudget, WorkExceeded
from agentops.base.patterns import InvalidPattern, Pattern, decision_budget
from runs.hooks import hook_catalogue
from runs.hooks.base import JSON, InvalidHook
from runs.hooks.deciding import ActiveHook


class InvalidPolicy(ValueError):
    """A policy is invalid. `path` is the path of the invalid value within `policies`."""

    code = "invalid_policy"

    def __init__(self, text: str, path: Sequence[str | int]) -> None:
        super().__init__(text)
        self.path = tuple(path)


EnumT = TypeVar("EnumT", bound=enum.StrEnum)
#: Unit of a duration → its seconds. Empty: a number without a unit.
SECONDS_OF = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0, "": 1.0}
DURATION = re.compile(r"\s*(?P<number>[0-9]{1,12}(?:\.[0-9]{1,6})?)\s*(?P<unit>[a-z]*)\s*", re.ASCII)


def seconds_of(value: object) -> float:
    """Parse a duration, such as "500ms", "60s", "5m", "2h", "1d" or a number of seconds. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("a duration must be a text such as 60s or 5m, or a number of seconds")
    match = DURATION.fullmatch(value if isinstance(value, str) else str(value))
    unit = match["unit"] if match else ""
    if match is None or unit not in SECONDS_OF:
        raise ValueError(f"{str(value)[:64]!r} is not a duration; write it as 500ms, 60s, 5m, 2h or 1d")
    return float(match["number"]) * SECONDS_OF[unit]


def refuse_unknown(options: Mapping[Any, Any], known: Collection[str], path: Sequence[str | int]) -> None:
    """Raise `InvalidPolicy` if a table has an unknown option."""
    if unknown := sorted(str(name) for name in options if name not in known):
        problem = f"unknown option {unknown[0][:64]!r}; use one of: {', '.join(sorted(known))}"
        raise InvalidPolicy(problem, [*path, unknown[0]])


def member_of(kind: type[EnumT], value: object, path: Sequence[str | int]) -> EnumT:
    """Return the member of an enum with this value. Raises `InvalidPolicy`."""
    if value not in tuple(kind):
        raise InvalidPolicy(f"{path[-1]} must be one of {', '.join(kind)}, not {str(value)[:64]!r}", path)
    return kind(str(value))


MAX_RULES = 100
MAX_CONDITIONS = 20
MAX_REASON = 500
MAX_EXPIRY_S = 30 * 86_400.0
RULE_KEYS = frozenset({"tools", "arguments", "action", "reason", "expires", "on_expiry"})


class ApprovalAction(enum.StrEnum):
    """The action of a rule on a call, ordered from lenient to strict."""

    AUTO = "auto"  # the call runs
    ASK = "ask"  # the run waits for a person
    DENY = "deny"  # the call is denied


class OnExpiry(enum.StrEnum):
    """The effect of an approval that expires without a decision."""

    DENY = "deny"  # the call is denied, and the run continues
    PAUSE = "pause"  # the run pauses


_ACTIONS_BY_STRICTNESS = list(ApprovalAction)


@dataclass(frozen=True)
class ApprovalRule:
    """A rule for calls of tools whose name matches `tools`, and whose arguments meet all conditions."""

    tools: Pattern
    action: ApprovalAction
    #: Argument → the pattern that must occur in its value. If the value is not text, its JSON is searched.
    arguments: Mapping[str, Pattern] = field(default_factory=dict)
    reason: str = ""
    #: Seconds until a pending approval expires. None: use the setting of the site.
    expires_s: float | None = None
    on_expiry: OnExpiry = OnExpiry.DENY

    def applies_to(self, tool_name: str, arguments: Mapping[str, JSON] | str, budget: WorkBudget) -> bool:
        """Return whether the rule applies to a call. Arguments that are not a JSON object are text.

        `budget` limits the work of the search in the arguments.
        """
        try:
            if not self.tools.matches(tool_name, budget):
                return False
            if not self.arguments:
                return True
            if isinstance(arguments, Mapping):
                return all(
                    name in arguments and pattern.occurs_in(_text(arguments[name]), budget)
                    for name, pattern in self.arguments.items()
                )
        except WorkExceeded:
            pass
        # The arguments cannot be searched: they are not an object, or too long. To be safe, the rule then applies if it
        # restricts the call, and does not apply if it allows the call.
        return self.action is not ApprovalAction.AUTO


def approval_rules_of(value: object) -> tuple[ApprovalRule, ...]:
    """Parse a list of rules. Raises `InvalidPolicy` with a path that begins with "approvals"."""
    if not isinstance(value, list) or len(value) > MAX_RULES:
        raise InvalidPolicy(f"approvals must be a list of at most {MAX_RULES} rules", ["approvals"])
    return tuple(_rule(rule, ["approvals", index]) for index, rule in enumerate(value))


def of_project(settings: object) -> tuple[ApprovalRule, ...]:
    """Return the approval rules in a project's settings.

    Raises `InvalidPolicy` if they are invalid, because runs must not continue without them.
    """
    return approval_rules_of(settings.get("approvals", [])) if isinstance(settings, Mapping) else ()


def decide(
    lists: Sequence[Sequence[ApprovalRule]], tool_name: str, arguments: Mapping[str, JSON] | str
) -> ApprovalRule | None:
    """Return the rule that decides a call; None if no rule applies.

    In each list the first matching rule counts. Among the lists, the strictest of these rules decides.
    """
    budget = decision_budget()
    first = [next((rule for rule in rules if rule.applies_to(tool_name, arguments, budget)), None) for rules in lists]
    matching = [rule for rule in first if rule is not None]
    return max(matching, key=lambda rule: _ACTIONS_BY_STRICTNESS.index(rule.action), default=None)


def may_stop(lists: Sequence[Sequence[ApprovalRule]], tool_name: str) -> bool:
    """Return whether a rule names this tool, so that it applies to calls with some arguments or with all."""
    return any(rule.tools.matches(tool_name) for rules in lists for rule in rules)


def _rule(value: object, path: list[str | int]) -> ApprovalRule:
    """Parse an approval rule. Raises `InvalidPolicy`."""
    if not isinstance(value, Mapping):
        raise InvalidPolicy("an approval rule must be a table", path)
    refuse_unknown(value, RULE_KEYS, path)
    return ApprovalRule(
        tools=_pattern(value.get("tools", ".*"), [*path, "tools"]),
        action=member_of(ApprovalAction, value.get("action"), [*path, "action"]),
        arguments=_conditions(value.get("arguments", {}), [*path, "arguments"]),
        reason=_reason(value.get("reason", ""), [*path, "reason"]),
        expires_s=_expiry(value.get("expires"), [*path, "expires"]),
        on_expiry=member_of(OnExpiry, value.get("on_expiry", OnExpiry.DENY), [*path, "on_expiry"]),
    )


def _pattern(value: object, path: list[str | int]) -> Pattern:
    if not isinstance(value, str):
        raise InvalidPolicy(f"{path[-1]} must be a pattern", path)
    try:
        return Pattern(value)
    except InvalidPattern as error:
        raise InvalidPolicy(f"{path[-1]}: {error}", path) from None


def _conditions(value: object, path: list[str | int]) -> dict[str, Pattern]:
    if not isinstance(value, Mapping) or len(value) > MAX_CONDITIONS:
        raise InvalidPolicy(f"arguments must be a table of at most {MAX_CONDITIONS} patterns", path)
    return {str(name): _pattern(pattern, [*path, str(name)]) for name, pattern in value.items()}


def _reason(value: object, path: list[str | int]) -> str:
    if not isinstance(value, str) or len(value) > MAX_REASON:
        raise InvalidPolicy(f"reason must be a text of at most {MAX_REASON} characters", path)
    return value


def _expiry(value: object, path: list[str | int]) -> float | None:
    """Parse a duration from 1 second to 30 days, in seconds. Raises `InvalidPolicy`."""
    if value is None:
        return None
    try:
        seconds = seconds_of(value)
    except ValueError as error:
        raise InvalidPolicy(str(error), path) from None
    if not 1 <= seconds <= MAX_EXPIRY_S:
        raise InvalidPolicy("expires must be from 1 second to 30 days", path)
    return seconds


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)


MAX_HOOKS = 20
HOOK_KEYS = frozenset({"hook", "tools", "options"})


def hooks_of(value: object) -> tuple[ActiveHook, ...]:
    """Parse a list of hooks: names, or tables with `hook`, `tools` and `options`. Raises `InvalidPolicy`."""
    if not isinstance(value, list) or len(value) > MAX_HOOKS:
        raise InvalidPolicy(f"hooks must be a list of at most {MAX_HOOKS} hooks", ["hooks"])
    return tuple(_hook(use, index) for index, use in enumerate(value))


def of_site() -> tuple[ActiveHook, ...]:
    """Return the hooks that AGENTOPS_HOOKS names.

    Raises `InvalidHook` if one cannot be loaded, because runs must not continue without these hooks.
    """
    return tuple(ActiveHook(hook_catalogue.make(name, {})) for name in settings.AGENTOPS_HOOKS)


def _hook(value: object, index: int) -> ActiveHook:
    """Parse a hook: its name, or a table. Raises `InvalidPolicy`."""
    path: list[str | int] = ["hooks", index]
    use: Mapping[str, Any] = {"hook": value} if isinstance(value, str) else value if isinstance(value, Mapping) else {}
    refuse_unknown(use, HOOK_KEYS, path)
    name, options, tools = use.get("hook"), use.get("options", {}), use.get("tools")
    if not isinstance(name, str):
        raise InvalidPolicy("a hook must be a name, or a table with the key hook", path)
    if not isinstance(options, Mapping):
        raise InvalidPolicy("options must be a table", [*path, "options"])
    pattern = None if tools is None else _pattern(tools, [*path, "tools"])
    try:
        return ActiveHook(hook_catalogue.make(name, options), pattern)
    except InvalidHook as error:
        raise InvalidPolicy(str(error), [*path, "hook"]) from error
