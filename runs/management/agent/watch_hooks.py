"""`agentops watch --hooks claude-code`: shows the hooks, or adds them to the settings of Claude Code."""

from __future__ import annotations

import json
import os
import shutil
import socket
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError
from django.utils import timezone

from agentops.accounts import keys
from agentops.accounts.access import SYSTEM, Action, project_for
from agentops.accounts.management.base import (
    EXIT_INVALID,
    EXIT_UNREADABLE,
    EXIT_USAGE,
    AgentopsCommand,
    operator,
    printable,
)
from agentops.accounts.models import Scope
from agentops.base.refusals import Refusal
from runs.external.watching.claude_code_hooks import BadSettings, HookFiles, added_settings, install, settings_path


def show_or_install(command: AgentopsCommand, options: dict[str, Any], key: str) -> None:
    """Print the hooks and their script; with `--install`, write both. `key` is the other site's API key, or empty."""
    files = HookFiles(settings.AGENTOPS_HOME / "hooks")
    path = settings_path(os.environ, Path.home())
    if options["url"] and not key:
        text = "--url needs an API key of scope ingest, in AGENTOPS_API_KEY or --key-file"
        raise CommandError(text, returncode=EXIT_USAGE)
    if not options["install"]:
        command.stdout.write(json.dumps(added_settings(files.command), indent=2))
        text = f"--install adds this to {path}, and writes {files.script}:\n\n{files.script_text()}"
        command.stderr.write(printable(text) if not text.isascii() else text)
        return
    if shutil.which("curl") is None:
        text = "the hooks send with curl, and this machine has no curl on its PATH: install it, and repeat the command"
        raise CommandError(text, returncode=EXIT_USAGE)
    url = options["url"] or settings.AGENTOPS_BASE_URL or f"http://127.0.0.1:{settings.PORT}"
    # AGENTOPS_API_KEY belongs to another site.
    is_of_url = options["url"] or options["key_file"]
    try:
        files.write(url, key if key and is_of_url else _own_key(files, options["project"]))
        backup = install(path, files.command, now=timezone.localtime())
    except BadSettings as error:
        raise CommandError(printable(error), returncode=EXIT_INVALID) from None
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(printable(error), returncode=EXIT_UNREADABLE) from None
    kept = f"; what it was is in {backup.name}" if backup else ""
    command.stdout.write(printable(f"Claude Code tells {url} when a session waits: {path}{kept}"))


def _own_key(files: HookFiles, project: str) -> str:
    """Return the previously installed key if it is still valid, or a new key."""
    row = project_for(SYSTEM, project, Action.MANAGE)
    for line in files.config.read_text().splitlines() if files.config.exists() else []:
        token = line.rpartition("Bearer ")[2].rstrip('"')
        try:
            if "Bearer " in line and keys.authenticate(token).project_id == row.pk:
                return token
        except Refusal:
            continue
    name = f"Hooks of Claude Code on {socket.gethostname()}"[:64]
    return keys.create_key(row, name=name, scopes=[Scope.INGEST], actor=operator()).plain
