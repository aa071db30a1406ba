"""`secret_guard`: keeps secrets out of the arguments of tools."""

from __future__ import annotations

from typing import cast

from agentops.base.redaction.redact import DEFAULT as REDACTOR
from agentops.base.redaction.redact import REDACTED
from runs.hooks.base import JSON, Hook, HookContext, HookEvent, Verdict

PLACEHOLDER = "[REDACTED:"


class SecretGuard(Hook):
    """Denies calls whose arguments contain a registered secret, something in the form of one, or a placeholder."""

    name = "secret_guard"
    events = frozenset({HookEvent.PRE_TOOL_USE})
    guard = True

    def decide(self, context: HookContext) -> Verdict | None:
        arguments = cast("JSON", context.arguments)
        if _contains_placeholder(arguments):
            return Verdict.deny("the arguments contain a placeholder of a redacted secret, not its value")
        contains_secret = REDACTED in REDACTOR.clean(arguments)[1]
        return Verdict.deny("the arguments contain a secret") if contains_secret else None


def _contains_placeholder(value: JSON) -> bool:
    match value:
        case str():
            return PLACEHOLDER in value
        case dict():
            return any(PLACEHOLDER in name or _contains_placeholder(member) for name, member in value.items())
        case list():
            return any(map(_contains_placeholder, value))
    return False
