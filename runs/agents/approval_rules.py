"""Approval rules: which tool calls run automatically, which need a person, and which are denied.

An agent has rules in its definition (`policies.approvals`), and a project has rules for all its agents.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentops.base.limits.patterns import InvalidPattern, Pattern, decision_budget
from agentops.base.limits.work_budget import WorkBudget, WorkExceeded
from runs.agents.policy_durations import seconds_of
from runs.agents.policy_errors import InvalidPolicy
from runs.hooks.base import JSON

MAX_RULES = 100
MAX_CONDITIONS = 20
MAX_REASON = 500
MAX_EXPIRY_S = 30 * 86_400.0
KEYS = frozenset({"tools", "arguments", "action", "reason", "expires", "on_expiry"})


class ApprovalAction(enum.StrEnum):
    """The action of a rule on a call, ordered from lenient to strict."""

    AUTO = "auto"  # the call runs
    ASK = "ask"  # the run waits for a person
    DENY = "deny"  # the call is denied


class OnExpiry(enum.StrEnum):
    """The effect of an approval that expires without a decision."""

    DENY = "deny"  # the call is denied, and the run continues
    PAUSE = "pause"  # the run pauses


STRICTNESS = list(ApprovalAction)


@dataclass(frozen=True)
class ApprovalRule:
    """A rule for calls of tools whose name matches `tools`, and whose arguments meet all conditions."""

    tools: Pattern
    action: ApprovalAction
    #: Argument → the pattern that must occur in its value; a value other than text is searched as JSON.
    arguments: Mapping[str, Pattern] = field(default_factory=dict)
    reason: str = ""
    #: Seconds until an approval expires. None: the setting of the site.
    expires_s: float | None = None
    on_expiry: OnExpiry = OnExpiry.DENY

    def is_about(self, tool_name: str, arguments: Mapping[str, JSON] | str, budget: WorkBudget) -> bool:
        """Return whether the rule applies to a call. `budget` is charged for the search in the arguments."""
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
        # The arguments are unreadable, or too long to search. The rule then applies if it restricts the call, not if it
        # allows it.
        return self.action is not ApprovalAction.AUTO


def parse(value: object) -> tuple[ApprovalRule, ...]:
    """Parse a list of rules. Raises `InvalidPolicy` with a path that begins with "approvals"."""
    if not isinstance(value, list) or len(value) > MAX_RULES:
        raise InvalidPolicy(f"approvals must be a list of at most {MAX_RULES} rules", ["approvals"])
    return tuple(_rule(rule, ["approvals", index]) for index, rule in enumerate(value))


def of_project(settings: object) -> tuple[ApprovalRule, ...]:
    """Return the rules in a project's settings. Raises `InvalidPolicy`: runs must not continue without the rules."""
    return parse(settings.get("approvals", [])) if isinstance(settings, Mapping) else ()


def decide(
    lists: Sequence[Sequence[ApprovalRule]], tool_name: str, arguments: Mapping[str, JSON] | str
) -> ApprovalRule | None:
    """Return the rule that decides a call; None if no rule applies.

    In each list the first matching rule counts. Among the lists, the strictest of these rules decides.
    """
    budget = decision_budget()
    first = [next((rule for rule in rules if rule.is_about(tool_name, arguments, budget)), None) for rules in lists]
    matching = [rule for rule in first if rule is not None]
    return max(matching, key=lambda rule: STRICTNESS.index(rule.action), default=None)


def may_stop(lists: Sequence[Sequence[ApprovalRule]], tool_name: str) -> bool:
    """Return whether a rule may apply to calls of this tool, for any arguments."""
    return any(rule.tools.matches(tool_name) for rules in lists for rule in rules)


def _rule(value: object, path: list[str | int]) -> ApprovalRule:
    if not isinstance(value, Mapping):
        raise InvalidPolicy("an approval rule must be a table", path)
    if unknown := sorted(str(name) for name in value if name not in KEYS):
        problem = f"unknown option {unknown[0][:64]!r}; use one of: {', '.join(sorted(KEYS))}"
        raise InvalidPolicy(problem, [*path, unknown[0]])
    return ApprovalRule(
        tools=_pattern(value.get("tools", ".*"), [*path, "tools"]),
        action=ApprovalAction(_choice(ApprovalAction, value.get("action"), [*path, "action"])),
        arguments=_conditions(value.get("arguments", {}), [*path, "arguments"]),
        reason=_reason(value.get("reason", ""), [*path, "reason"]),
        expires_s=_expiry(value.get("expires"), [*path, "expires"]),
        on_expiry=OnExpiry(_choice(OnExpiry, value.get("on_expiry", OnExpiry.DENY), [*path, "on_expiry"])),
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


def _choice(kind: type[enum.StrEnum], value: object, path: list[str | int]) -> str:
    if value not in tuple(kind):
        raise InvalidPolicy(f"{path[-1]} must be one of {', '.join(kind)}, not {str(value)[:64]!r}", path)
    return str(value)


def _reason(value: object, path: list[str | int]) -> str:
    if not isinstance(value, str) or len(value) > MAX_REASON:
        raise InvalidPolicy(f"reason must be a text of at most {MAX_REASON} characters", path)
    return value


def _expiry(value: object, path: list[str | int]) -> float | None:
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
