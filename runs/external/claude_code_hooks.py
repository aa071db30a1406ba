"""The hooks of Claude Code: the script and the settings that make Claude Code call a site, and the handling of a call.

A hook reports that a session works, waits for its user, or starts a sub-agent. The content of the session comes from
its file, which `agentops watch` follows. A hook never opens a run: a call for an unknown session is dropped.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from agentops.base.http import strict_json
from runs.external.contents import text_or_empty
from runs.external.event_input import MAX_RUN_REFERENCE
from runs.external.ingest import Sender, record
from runs.models import AgentRun
from runs.statuses import RunStatus, WaitReason
from timeline.events import EventType

#: The hooks, and whether the settings of each need a matcher for the names of tools.
HOOKS = {
    "UserPromptSubmit": False,
    "PreToolUse": True,
    "PostToolUse": True,
    "Notification": False,
    "Stop": False,
    "SubagentStop": False,
}
#: Seconds after which Claude Code ends the script, which takes some milliseconds.
TIMEOUT_S = 5
PATH = "/api/internal/agent-hooks/claude-code"
#: The script reads its whole input, starts another process that sends the input, and succeeds. Claude Code does not
#: wait for that process, and does not see its errors.
_SCRIPT = """#!/bin/sh
# Sends the input of Claude Code's hooks to agentops. Prints nothing, and succeeds immediately.
input=$(cat)
(printf '%s' "$input" | curl --silent --max-time 5 --output /dev/null --config {config} --data-binary @-) \\
    >/dev/null 2>&1 </dev/null &
exit 0
"""


class BadSettings(ValueError):
    """The settings of Claude Code are invalid. They are not changed."""


@dataclass(frozen=True)
class HookFiles:
    """The installed files: a script, and its configuration with the API key, which only the owner can read."""

    folder: Path

    @property
    def script(self) -> Path:
        return self.folder / "claude-code.sh"

    @property
    def config(self) -> Path:
        return self.folder / "claude-code.curl"

    @property
    def command(self) -> str:
        """Return the shell command of the hooks. It succeeds even if the script has been deleted."""
        return f"sh {shlex.quote(str(self.script))} 2>/dev/null || true"

    def script_text(self) -> str:
        return _SCRIPT.format(config=shlex.quote(str(self.config)))

    def write(self, url: str, key: str) -> None:
        """Write both files."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        headers = (f"Authorization: Bearer {key}", "Content-Type: application/json")
        lines = [f"url = {json.dumps(url.rstrip('/') + PATH)}", *(f"header = {json.dumps(one)}" for one in headers)]
        _replace(self.config, "\n".join(lines) + "\n", 0o600)
        _replace(self.script, self.script_text(), 0o700)


def settings_path(environ: Mapping[str, str], home: Path) -> Path:
    """Return the path of the Claude Code user settings."""
    return Path(environ.get("CLAUDE_CONFIG_DIR") or home / ".claude") / "settings.json"


def added_settings(command: str) -> dict[str, Any]:
    """Return settings that contain only these hooks."""
    return _with_hooks({}, command)


def install(settings: Path, command: str, *, now: datetime) -> Path | None:
    """Add the hooks to a settings file, and return the path of a backup of the old file.

    Returns None if there was no file, or if it already had the hooks and was not written. Raises `BadSettings` or
    `OSError`.
    """
    settings = settings.resolve()
    text = settings.read_text() if settings.exists() else None
    before = _parse(settings, text)
    after = _with_hooks(before, command)
    if after == before:
        return None
    backup, mode = None, 0o600
    if text is not None:
        backup = settings.with_name(f"{settings.name}.backup-{now:%Y%m%d-%H%M%S}")
        mode = settings.stat().st_mode & 0o777
        _replace(backup, text, mode)
    settings.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _replace(settings, json.dumps(after, indent=2, ensure_ascii=False) + "\n", mode)
    return backup


def _parse(path: Path, text: str | None) -> dict[str, Any]:
    """Return the settings in a file; empty without a file. Raises `BadSettings`."""
    if text is None or not text.strip():
        return {}
    try:
        # Strict, because a repeated key would be lost when the file is written again.
        settings = strict_json.parse(text, strict_json.FILE)
    except strict_json.NotJson as error:
        raise BadSettings(f"{path} is not JSON: {error}") from None
    if not isinstance(settings, dict) or not isinstance(settings.get("hooks", {}), dict):
        raise BadSettings(f"{path} is not a settings file of Claude Code: it, and its hooks, must be objects")
    return settings


def _with_hooks(settings: dict[str, Any], command: str) -> dict[str, Any]:
    """Return the settings with the missing hooks added. Raises `BadSettings`."""
    settings = deepcopy(settings)
    hooks = settings.setdefault("hooks", {})
    for name, has_matcher in HOOKS.items():
        entries = hooks.setdefault(name, [])
        if not isinstance(entries, list):
            raise BadSettings(f"the hooks {name} are not a list")
        if command not in _commands(entries):
            hook = {"type": "command", "command": command, "timeout": TIMEOUT_S}
            entries.append({**({"matcher": "*"} if has_matcher else {}), "hooks": [hook]})
    return settings


def _commands(entries: list[Any]) -> list[object]:
    """Return the commands in the entries of a hook."""
    lists = [entry.get("hooks") for entry in entries if isinstance(entry, dict)]
    hooks = [hook for hooks in lists if isinstance(hooks, list) for hook in hooks]
    return [hook.get("command") for hook in hooks if isinstance(hook, dict)]


def _replace(path: Path, text: str, mode: int) -> None:
    """Write a file atomically, so that no reader sees a partial file."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        temporary.chmod(mode)  # the mode of os.open is reduced by the umask
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


#: Hooks of Claude Code that report that the session is working.
_WORKING = ("UserPromptSubmit", "PreToolUse", "PostToolUse")
#: Tools that start a sub-agent, by their older and newer names.
_SUB_AGENT_TOOLS = ("Task", "Agent")
#: Maximum characters of a text in an event.
_MAX_TEXT = 500


def record_claude_code(sender: Sender, document: Mapping[str, Any]) -> bool:
    """Store the events that follow from the input of a Claude Code hook. Return whether any was stored."""
    reference = f"claude-code:{text_or_empty(document.get('session_id'))}"
    if len(reference) > MAX_RUN_REFERENCE or not reference.isprintable():
        return False
    runs = AgentRun.objects.filter(project=sender.project, external_id=reference)
    run = runs.values_list("status", "status_reason").first()
    if run is None:
        return False
    status = _status_event(document, RunStatus(run[0]), run[1])
    events = [{"runId": reference, **event} for event in (status, _sub_agent_event(document)) if event is not None]
    return any(result.error is None for result in record(sender, events)) if events else False


def _status_event(document: Mapping[str, Any], status: RunStatus, reason: str) -> dict[str, Any] | None:
    """Return the event that sets the status reported by the hook; None if the run already has this status."""
    name = document.get("hook_event_name")
    if name in _WORKING:
        is_running = status is RunStatus.RUNNING
        return None if is_running else {"type": EventType.RUN_PHASE, "payload": {"status": "running"}}
    wait_reason = WaitReason.INPUT if name == "Stop" else None
    if name == "Notification":
        wait_reason = _notified_reason(document)
    if wait_reason is None or (status is RunStatus.WAITING and reason == wait_reason):
        return None
    message = text_or_empty(document.get("message"))[:_MAX_TEXT]
    payload = {"reason": wait_reason, **({"message": message} if message else {})}
    return {"type": EventType.RUN_WAITING, "payload": payload}


def _notified_reason(document: Mapping[str, Any]) -> WaitReason | None:
    """Return the wait reason that a notification reports. Older versions report it only in the message."""
    kind = text_or_empty(document.get("notification_type"))
    message = text_or_empty(document.get("message")).lower()
    if kind == "permission_prompt" or (not kind and "permission" in message):
        return WaitReason.APPROVAL
    if kind in ("idle_prompt", "elicitation_dialog") or (not kind and "waiting for your input" in message):
        return WaitReason.INPUT
    return None


def _sub_agent_event(document: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the event that a sub-agent started or stopped, if the hook reports that."""
    name, arguments = document.get("hook_event_name"), document.get("tool_input")
    if name == "PreToolUse" and document.get("tool_name") in _SUB_AGENT_TOOLS:
        fields = arguments if isinstance(arguments, Mapping) else {}
        return _custom_event("started", fields.get("subagent_type"), fields.get("description"))
    if name == "SubagentStop":
        return _custom_event("stopped", document.get("agent_type"), "")
    return None


def _custom_event(verb: str, agent: object, task: object) -> dict[str, Any]:
    agent, task = text_or_empty(agent), text_or_empty(task)
    text = f"Sub-agent {verb}{f': {agent}' if agent else ''}{f' ({task})' if task else ''}"
    return {"type": f"x.sub_agent.{verb}", "payload": {"message": text[:_MAX_TEXT]}}
