"""The command line and the environment of the program, from an agent's settings.

The agent's instructions reach the program over its standard input, never as an argument.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.conf import settings

from runs.providers.base import ProviderUnusable

#: In this mode the program never asks for permission, so no rule of agentops would apply.
FORBIDDEN_MODE = "bypassPermissions"
PERMISSION_MODES = ("default", "acceptEdits", "plan", "dontAsk")
#: The settings that are passed as flags, with the flag and the type of each.
FLAGS: dict[str, tuple[str, type]] = {
    "max_turns": ("--max-turns", int),
    "max_budget_usd": ("--max-budget-usd", float),
    "fallback_model": ("--fallback-model", str),
    "permission_mode": ("--permission-mode", str),
    "allowed_tools": ("--allowedTools", list),
    "disallowed_tools": ("--disallowedTools", list),
}
#: The tools whose calls start sub-agents: the current name and the earlier one.
SUBAGENT_TOOLS = frozenset({"Agent", "Task"})
#: The program's tools that change nothing outside of the session, and the tools that its mode acceptEdits allows.
READS = frozenset(
    {
        *SUBAGENT_TOOLS,
        *("Read", "Glob", "Grep", "LS", "NotebookRead", "BashOutput", "TaskOutput", "ToolSearch", "StructuredOutput"),
        *("TodoWrite", "TaskCreate", "TaskGet", "TaskList", "TaskUpdate", "EnterPlanMode"),
    }
)
EDITS = frozenset({"Edit", "MultiEdit", "Write", "NotebookEdit"})
#: The model name that leaves the choice to the program.
DEFAULT_MODEL = "default"
#: The variables of the worker's environment that the program gets. None contains a secret of the site.
PASSED = ("PATH", "LANG", "TZ", "TERM", "TMPDIR", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "SSL_CERT_FILE")
PASSED_PREFIXES = ("LC_", "ANTHROPIC_", "CLAUDE_CODE_", "NODE_EXTRA_CA_")
#: Variables that identify the processes of a run, and of a session.
RUN_VARIABLE, SESSION_VARIABLE = "AGENTOPS_RUN_ID", "AGENTOPS_SESSION_ID"


@dataclass(frozen=True)
class Start:
    """The start of a session: new, or as a continuation of `resumed`, which is not changed."""

    session_id: str
    resumed: str | None = None


def check(model: str, agent_settings: Mapping[str, Any]) -> None:
    """Raise `ProviderUnusable` for settings that the program would reject."""
    if not settings.AGENTOPS_CLAUDE_CLI:
        raise ProviderUnusable("the provider claude_cli is off: AGENTOPS_CLAUDE_CLI must name the program")
    if model.startswith("-"):
        raise ProviderUnusable(f"invalid model {model[:64]!r}")
    for name, (_, kind) in FLAGS.items():
        value = agent_settings.get(name)
        if value is not None and not _fits(value, kind):
            raise ProviderUnusable(f"settings.{name} is invalid: {str(value)[:64]!r}")
    mode = agent_settings.get("permission_mode", "default")
    if mode not in PERMISSION_MODES:
        raise ProviderUnusable(f"settings.permission_mode must be one of {', '.join(PERMISSION_MODES)}")


def _fits(value: object, kind: type) -> bool:
    if kind is list:
        return isinstance(value, list) and all(_fits(item, str) and "," not in item for item in value)
    if kind is str:
        return isinstance(value, str) and 0 < len(value) <= 200 and not value.startswith("-") and value.isprintable()
    return isinstance(value, int | float) and type(value) in (int, kind) and value > 0


def command(model: str, agent_settings: Mapping[str, Any], instructions: str, start: Start) -> list[str]:
    """Return the command line. Values from users follow an equals sign, so they are never read as a flag."""
    fixed = (
        "--output-format stream-json --verbose --input-format stream-json --include-partial-messages "
        "--permission-prompt-tool stdio"
    )
    words = [settings.AGENTOPS_CLAUDE_CLI, *fixed.split(), f"--session-id={start.session_id}"]
    if start.resumed:
        words += [f"--resume={start.resumed}", "--fork-session"]
    if model != DEFAULT_MODEL:
        words.append(f"--model={model}")
    if instructions:
        words.append(f"--append-system-prompt={instructions}")
    if agent_settings.get("output_schema"):
        words.append(f"--json-schema={json.dumps(agent_settings['output_schema'])}")
    return [*words, *_flags(agent_settings)]


def _flags(agent_settings: Mapping[str, Any]) -> Iterator[str]:
    for name, (flag, _) in FLAGS.items():
        value = agent_settings.get(name)
        if value:
            yield f"{flag}={','.join(value) if isinstance(value, list) else value}"


def asks_for(tool: str, agent_settings: Mapping[str, Any]) -> bool:
    """Whether a person has to approve calls of a tool, because it may change data and no rule names it.

    The program itself evaluates the patterns of rules, and denies calls that do not match.
    """
    rules = [*(agent_settings.get("allowed_tools") or []), *(agent_settings.get("disallowed_tools") or [])]
    is_named = tool in {rule.partition("(")[0] for rule in rules}
    is_silent = agent_settings.get("permission_mode") in ("plan", "dontAsk")
    return not (is_named or is_silent or is_free(tool, agent_settings))


def is_free(tool: str, agent_settings: Mapping[str, Any]) -> bool:
    """Whether all calls of a tool may run, regardless of their arguments."""
    is_accepted = agent_settings.get("permission_mode") == "acceptEdits" and tool in EDITS
    is_named = tool in (agent_settings.get("allowed_tools") or [])
    return (tool in READS or is_accepted or is_named) and tool not in (agent_settings.get("disallowed_tools") or [])


def environment(run_id: str, session_id: str, config: Path) -> dict[str, str]:
    """Return the environment: the variables that the program needs to reach its API, and none of the site's secrets."""
    passed = {name: value for name, value in os.environ.items() if name in PASSED or name.startswith(PASSED_PREFIXES)}
    passed.pop("CLAUDE_CODE_ENTRYPOINT", None)
    own = {RUN_VARIABLE: run_id, SESSION_VARIABLE: session_id}
    return passed | {"HOME": str(config), "CLAUDE_CONFIG_DIR": str(config)} | own
