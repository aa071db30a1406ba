"""`command_guard`: restricts tools to the programs that a definition names."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from agentops.base.limits.patterns import decision_budget
from agentops.base.limits.work_budget import WorkBudget
from runs.hooks.base import JSON, Hook, HookContext, HookEvent, Verdict
from runs.hooks.guards import guard_options as option

COMMAND_ARGUMENTS = ("command", "cmd", "argv", "script", "shell_command")
#: Characters that a shell interprets: pipes, lists, redirections, substitutions, variables, file patterns.
SHELL_CHARACTERS = frozenset("|&;<>()$`\\\n\r{}*?[]!#~")


class CommandGuard(Hook):
    """Denies every command that is not a simple call of a program in `allow`.

    Options: `allow`, names of programs; `arguments`, the names of the arguments that hold commands; `deny`, patterns of
    commands to deny although their program is allowed.
    """

    name = "command_guard"
    events = frozenset({HookEvent.PRE_TOOL_USE})
    guard = True

    def __init__(self, options: Mapping[str, Any]) -> None:
        option.refuse_unknown(options, "allow", "arguments", "deny")
        self._allowed = frozenset(option.texts(options, "allow"))
        self._arguments = option.texts(options, "arguments", COMMAND_ARGUMENTS)
        self._deny = option.patterns(options, "deny")

    def decide(self, context: HookContext) -> Verdict | None:
        if not isinstance(context.arguments, Mapping):
            return Verdict.deny("the arguments are not a JSON object")
        budget = decision_budget()
        for name in self._arguments:
            if name in context.arguments and (fault := self._fault(context.arguments[name], budget)):
                return Verdict.deny(fault)
        return None

    def _fault(self, command: JSON, budget: WorkBudget) -> str:
        try:
            words = _words(command)
        except ValueError as error:
            return str(error)
        text = shlex.join(words)
        if not words or words[0] not in self._allowed:
            allowed = ", ".join(sorted(self._allowed)) or "none"
            return f"the program {words[0][:100] if words else ''!r} is not allowed; allowed are: {allowed}"
        if option.is_denied(self._deny, text, budget):
            return f"the command {text[:200]!r} is denied"
        return ""


def _words(command: JSON) -> list[str]:
    """Return the words of a command: a list of texts, or a text without characters that a shell interprets."""
    if isinstance(command, list) and all(isinstance(word, str) for word in command):
        return [str(word) for word in command]
    if not isinstance(command, str):
        raise ValueError("a command must be a text or a list of texts")
    if special := sorted(SHELL_CHARACTERS & set(command)):
        raise ValueError(f"the command contains {special[0]!r}, which a shell would interpret")
    try:
        return shlex.split(command)
    except ValueError as error:
        raise ValueError(f"the command cannot be split into words: {error}") from error
