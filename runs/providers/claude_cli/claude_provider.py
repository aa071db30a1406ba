"""The provider `claude_cli`, and the command line and the environment of Claude Code for an agent's settings.

A worker binds the provider to a run: it then holds the session of the run (runs.engine.sessions.held_session).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.conf import settings
from pydantic_ai.models import StreamedResponse

from runs.providers.base import FollowUp, ModelCall, ProviderUnusable

#: Without "bypassPermissions": in that mode the program asks for no permission, so no rule of agentops would apply.
PERMISSION_MODES = ("default", "acceptEdits", "plan", "dontAsk")
#: The flag and the type of each setting that is passed as a flag.
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
#: Tools of the program that change nothing outside of the session.
READS = frozenset(
    {
        *SUBAGENT_TOOLS,
        *("Read", "Glob", "Grep", "LS", "NotebookRead", "BashOutput", "TaskOutput", "ToolSearch", "StructuredOutput"),
        *("TodoWrite", "TaskCreate", "TaskGet", "TaskList", "TaskUpdate", "EnterPlanMode"),
    }
)
#: Tools of the program that its mode acceptEdits allows.
EDITS = frozenset({"Edit", "MultiEdit", "Write", "NotebookEdit"})
#: The model name that leaves the choice to the program.
DEFAULT_MODEL = "default"
#: Variables of the worker's environment, and prefixes of variables, that the program gets. None is a secret of the
#: site.
PASSED = ("PATH", "LANG", "TZ", "TERM", "TMPDIR", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "SSL_CERT_FILE")
PASSED_PREFIXES = ("LC_", "ANTHROPIC_", "CLAUDE_CODE_", "NODE_EXTRA_CA_")
#: Variables that mark the processes of a run, and of a session.
RUN_VARIABLE, SESSION_VARIABLE = "AGENTOPS_RUN_ID", "AGENTOPS_SESSION_ID"


@dataclass(frozen=True)
class Start:
    """How a session starts: as a new one, or as a copy of the session `resumed`, which it continues."""

    session_id: str
    resumed: str | None = None


def check(model: str, agent_settings: Mapping[str, Any]) -> None:
    """Check the settings of an agent. Raises `ProviderUnusable` for a setting that the program would reject."""
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
    """Return the command line. Values from users come after an equals sign, so that they are never read as flags."""
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
    """Return whether a person has to approve calls of a tool, because it may change data and no rule names it.

    If a rule names it, the program itself denies calls that do not match the pattern of the rule.
    """
    rules = [*(agent_settings.get("allowed_tools") or []), *(agent_settings.get("disallowed_tools") or [])]
    is_named = tool in {rule.partition("(")[0] for rule in rules}
    is_silent = agent_settings.get("permission_mode") in ("plan", "dontAsk")
    return not (is_named or is_silent or is_free(tool, agent_settings))


def is_free(tool: str, agent_settings: Mapping[str, Any]) -> bool:
    """Return whether all calls of a tool may run, regardless of their arguments."""
    is_accepted = agent_settings.get("permission_mode") == "acceptEdits" and tool in EDITS
    is_named = tool in (agent_settings.get("allowed_tools") or [])
    return (tool in READS or is_accepted or is_named) and tool not in (agent_settings.get("disallowed_tools") or [])


def environment(run_id: str, session_id: str, config: Path) -> dict[str, str]:
    """Return the environment of the program: the variables for reaching its API, and no secret of the site."""
    passed = {name: value for name, value in os.environ.items() if name in PASSED or name.startswith(PASSED_PREFIXES)}
    passed.pop("CLAUDE_CODE_ENTRYPOINT", None)
    own = {RUN_VARIABLE: run_id, SESSION_VARIABLE: session_id}
    return passed | {"HOME": str(config), "CLAUDE_CONFIG_DIR": str(config)} | own


class ClaudeCliProvider:
    """Sessions of Claude Code, which runs its built-in tools. Models have the program's names, or "default"."""

    def check(self, model: str, settings: Mapping[str, Any]) -> None:
        check(model, settings)

    def open(self, call: ModelCall) -> AbstractAsyncContextManager[StreamedResponse]:
        raise ProviderUnusable("a session of claude_cli belongs to a run: see runs.engine.sessions.held_session")

    def context_window(self, model: str) -> int | None:
        return None  # the program compacts its context itself

    def follow_up(self, model: str, node: str, number: int) -> FollowUp:
        return FollowUp()
