"""The Claude Code hooks that notify a site when a session waits: a script, its configuration, and the settings."""

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

#: The hooks, and whether each is registered with the name of a tool.
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
#: The script reads its whole input, starts another process that sends it, and succeeds. Claude Code does not wait for
#: that process, and does not see its errors.
_SCRIPT = """#!/bin/sh
# Tells agentops what Claude Code tells its hooks. Prints nothing, and always succeeds at once.
input=$(cat)
(printf '%s' "$input" | curl --silent --max-time 5 --output /dev/null --config {config} --data-binary @-) \\
    >/dev/null 2>&1 </dev/null &
exit 0
"""


class BadSettings(ValueError):
    """The settings of Claude Code are invalid. They are not changed."""


@dataclass(frozen=True)
class HookFiles:
    """The installed files: a script, and its configuration, which has the API key and is readable only by its owner."""

    folder: Path

    @property
    def script(self) -> Path:
        return self.folder / "claude-code.sh"

    @property
    def config(self) -> Path:
        return self.folder / "claude-code.curl"

    @property
    def command(self) -> str:
        """Return the command of the hooks. It succeeds even if the script has been deleted."""
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
    """Add the hooks to a settings file. Return the backup of the old file; None without an old file.

    A file that already has the hooks is not written. Raises `BadSettings` or `OSError`.
    """
    settings = settings.resolve()
    text = settings.read_text() if settings.exists() else None
    before = _parse(settings, text)
    after = _with_hooks(before, command)
    if after == before:
        return None
    backup, mode = None, 0o600
    if text is not None:
        backup, mode = (
            settings.with_name(f"{settings.name}.backup-{now:%Y%m%d-%H%M%S}"),
            settings.stat().st_mode & 0o777,
        )
        _replace(backup, text, mode)
    settings.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _replace(settings, json.dumps(after, indent=2, ensure_ascii=False) + "\n", mode)
    return backup


def _parse(path: Path, text: str | None) -> dict[str, Any]:
    if text is None or not text.strip():
        return {}
    try:
        # Strict parsing: of duplicate keys, one would be lost when the file is written again.
        settings = strict_json.parse(text, strict_json.FILE)
    except strict_json.NotJson as error:
        raise BadSettings(f"{path} is not JSON: {error}") from None
    if not isinstance(settings, dict) or not isinstance(settings.get("hooks", {}), dict):
        raise BadSettings(f"{path} is not a settings file of Claude Code: it, and its hooks, must be objects")
    return settings


def _with_hooks(settings: dict[str, Any], command: str) -> dict[str, Any]:
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
    inner = [entry.get("hooks") for entry in entries if isinstance(entry, dict)]
    hooks = [hook for hooks in inner if isinstance(hooks, list) for hook in hooks]
    return [hook.get("command") for hook in hooks if isinstance(hook, dict)]


def _replace(path: Path, text: str, mode: int) -> None:
    """Write a file atomically, so that no reader sees a partial file."""
    made = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        made.chmod(mode)
        made.replace(path)
    finally:
        made.unlink(missing_ok=True)
