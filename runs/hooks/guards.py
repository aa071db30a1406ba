"""The built-in guards, which check paths, commands, secrets and the cost. Each has options in a definition."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, cast

from agentops.base.fair_shares import WorkBudget
from agentops.base.patterns import Pattern, decision_budget
from agentops.base.redaction.redact import DEFAULT as REDACTOR
from agentops.base.redaction.redact import REDACTED
from runs.hooks.base import JSON, Hook, HookContext, HookEvent, Verdict

#: Maximum length of a list in the options.
MAX_ITEMS = 200


def refuse_unknown(options: Mapping[str, Any], *known: str) -> None:
    """Raise ValueError for an unknown option."""
    for name in options:
        if name not in known:
            raise ValueError(f"unknown option {str(name)[:64]!r}; use one of: {', '.join(known)}")


def texts(options: Mapping[str, Any], name: str, default: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return an option that is a list of texts. Raises ValueError."""
    value = options.get(name, list(default))
    if not isinstance(value, list) or len(value) > MAX_ITEMS or not all(isinstance(each, str) for each in value):
        raise ValueError(f"{name} must be a list of at most {MAX_ITEMS} texts")
    return tuple(value)


def patterns(options: Mapping[str, Any], name: str) -> tuple[Pattern, ...]:
    """Return an option that is a list of patterns. Raises ValueError."""
    return tuple(Pattern(text) for text in texts(options, name))


def is_denied(denied: tuple[Pattern, ...], text: str, budget: WorkBudget) -> bool:
    """Return whether a denied pattern occurs in a text. Raises `WorkExceeded`, which makes the guard fail and deny."""
    return any(pattern.occurs_in(text, budget) for pattern in denied)


def dollars(options: Mapping[str, Any], name: str) -> Decimal | None:
    """Return an option that is an amount in US dollars; None if it is missing. Raises ValueError."""
    value = options.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1_000_000:
        raise ValueError(f"{name} must be a number of US dollars above 0")
    return Decimal(str(value))


#: Names of arguments that contain paths in common tools.
PATH_ARGUMENTS = (
    *("path", "paths", "file", "files", "filename", "file_path", "filepath", "old_path", "new_path"),
    *("dir", "directory", "cwd", "root", "source", "src", "destination", "dst", "target"),
)
MAX_PATH_BYTES = 4_096
#: A drive letter of Windows.
DRIVE = re.compile(r"[A-Za-z]:")
#: Parts of paths that are always denied. For example, Git runs its hooks as programs.
DENIED_PARTS = ((".git", "hooks"), (".git", "config"), (".ssh",))
#: Maximum characters of a path in a reason.
MAX_SHOWN = 200


class PathGuard(Hook):
    """Denies absolute paths, `..`, `~`, drive letters, `.git/hooks`, `.git/config`, `.ssh`, NUL and over-long paths.

    Options: `arguments`, the names of the arguments that contain paths; `deny`, patterns of further paths to deny. The
    guard only sees the text of a path: a tool that opens files has to resolve links itself, as `read_file` does.
    """

    name = "path_guard"
    events = frozenset({HookEvent.PRE_TOOL_USE})
    guard = True

    def __init__(self, options: Mapping[str, Any]) -> None:
        refuse_unknown(options, "arguments", "deny")
        self._arguments = frozenset(texts(options, "arguments", PATH_ARGUMENTS))
        self._deny = patterns(options, "deny")

    def decide(self, context: HookContext) -> Verdict | None:
        budget = decision_budget()
        for path in _paths(context.arguments, self._arguments):
            fault = fault_of(path) or ("is denied" if is_denied(self._deny, path, budget) else "")
            if fault:
                shown = path if len(path) <= MAX_SHOWN else f"{path[:MAX_SHOWN]}…"
                return Verdict.deny(f"the path {shown!r} {fault}")
        return None


def fault_of(path: str) -> str:
    """Return the fault of a path, as the end of a sentence; empty if the path is allowed."""
    parts = tuple(part for part in re.split(r"[/\\]+", path) if part not in ("", "."))
    if "\0" in path:
        return "contains a NUL character"
    if len(path.encode(errors="replace")) > MAX_PATH_BYTES:
        return f"is longer than {MAX_PATH_BYTES} bytes"
    if path.startswith(("/", "\\", "~")) or DRIVE.match(path) or "://" in path:
        return "is not relative to the agent's root"
    if ".." in parts:
        return "leaves the agent's root"
    folded = tuple(part.casefold() for part in parts)
    for denied in DENIED_PARTS:
        if any(folded[start : start + len(denied)] == denied for start in range(len(folded))):
            return f"contains {'/'.join(denied)}"
    return ""


def _paths(value: JSON | Mapping[str, JSON], names: frozenset[str], *, is_path: bool = False) -> Iterator[str]:
    """Yield the texts in the arguments with these names, at any depth."""
    if isinstance(value, Mapping):
        for name, member in value.items():
            yield from _paths(member, names, is_path=is_path or name in names)
    elif isinstance(value, list):
        for member in value:
            yield from _paths(member, names, is_path=is_path)
    elif isinstance(value, str) and is_path:
        yield value


#: Names of arguments that contain commands in common tools.
COMMAND_ARGUMENTS = ("command", "cmd", "argv", "script", "shell_command")
#: Characters that a shell interprets: pipes, lists, redirections, substitutions, variables, file patterns.
SHELL_CHARACTERS = frozenset("|&;<>()$`\\\n\r{}*?[]!#~")


class CommandGuard(Hook):
    """Denies every command that is not a simple call of a program in `allow`.

    Options: `allow`, names of programs; `arguments`, the names of the arguments that contain commands; `deny`, patterns
    of commands to deny although their program is allowed.
    """

    name = "command_guard"
    events = frozenset({HookEvent.PRE_TOOL_USE})
    guard = True

    def __init__(self, options: Mapping[str, Any]) -> None:
        refuse_unknown(options, "allow", "arguments", "deny")
        self._allowed = frozenset(texts(options, "allow"))
        self._arguments = texts(options, "arguments", COMMAND_ARGUMENTS)
        self._deny = patterns(options, "deny")

    def decide(self, context: HookContext) -> Verdict | None:
        if not isinstance(context.arguments, Mapping):
            return Verdict.deny("the arguments are not a JSON object")
        budget = decision_budget()
        for name in self._arguments:
            if name in context.arguments and (fault := self._fault(context.arguments[name], budget)):
                return Verdict.deny(fault)
        return None

    def _fault(self, command: JSON, budget: WorkBudget) -> str:
        """Return why a command is denied; empty if it is allowed."""
        try:
            words = _words(command)
        except ValueError as error:
            return str(error)
        text = shlex.join(words)
        if not words or words[0] not in self._allowed:
            allowed = ", ".join(sorted(self._allowed)) or "none"
            return f"the program {words[0][:100] if words else ''!r} is not allowed; allowed are: {allowed}"
        if is_denied(self._deny, text, budget):
            return f"the command {text[:200]!r} is denied"
        return ""


def _words(command: JSON) -> list[str]:
    """Return the words of a command, which is a list of texts, or a text without characters that a shell interprets.

    Raises ValueError.
    """
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


#: The start of the placeholder of a redacted secret.
PLACEHOLDER = "[REDACTED:"


class SecretGuard(Hook):
    """Denies calls whose arguments contain a registered secret, a text in the form of one, or its placeholder."""

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


class CostGuard(Hook):
    """Asks a person about each call once the run has cost `ask_above_usd`, and denies calls from `deny_above_usd` on.

    Tools that only read are not affected. Unlike a budget, which pauses the run, this guard does not prevent its
    completion.
    """

    name = "cost_guard"
    events = frozenset({HookEvent.PRE_TOOL_USE})
    guard = True

    def __init__(self, options: Mapping[str, Any]) -> None:
        refuse_unknown(options, "ask_above_usd", "deny_above_usd")
        self._ask, self._deny = dollars(options, "ask_above_usd"), dollars(options, "deny_above_usd")
        if self._ask is None and self._deny is None:
            raise ValueError("set ask_above_usd, deny_above_usd or both")

    def decide(self, context: HookContext) -> Verdict | None:
        if context.effect == "read":
            return None
        if self._deny is not None and context.cost_usd >= self._deny:
            return Verdict.deny(f"the run has cost {context.cost_usd:.2f} US dollars; the limit is {self._deny}")
        if self._ask is not None and context.cost_usd >= self._ask:
            return Verdict.ask(f"the run has cost {context.cost_usd:.2f} US dollars")
        return None


BUILTIN: tuple[type[Hook], ...] = (PathGuard, CommandGuard, SecretGuard, CostGuard)
