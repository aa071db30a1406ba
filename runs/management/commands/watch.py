"""`agentops watch`: show sessions of agent programs on this machine while they are running, and install hooks."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import time
from pathlib import Path
from threading import Event
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser
from django.utils import timezone

from agentops.accounts import keys
from agentops.accounts.access import Action
from agentops.accounts.command_base import (
    EXIT_INVALID,
    EXIT_UNREADABLE,
    EXIT_USAGE,
    AgentopsCommand,
    operator,
    printable,
)
from agentops.accounts.command_parser import ProjectOption
from agentops.accounts.current_project import default_slug, named_project
from agentops.accounts.models import Scope
from agentops.base.refusals import Refusal
from runs.external.claude_code_hooks import BadSettings, HookFiles, added_settings, install, settings_path
from runs.external.followed_file import QUIET_S
from runs.external.watch_sinks import BadKey, LocalSink, RemoteSink, SinkUnavailable, WatchSink
from runs.external.watcher import Watcher, session_folders

#: Maximum characters of the label with the host's name.
MAX_LABEL = 64
_DURATION = re.compile(r"(\d{1,6})([smhd])")
#: Unit of a duration → seconds.
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


class Command(AgentopsCommand):
    help = (
        "Follow the sessions of agent programs on this machine: each is a live run, updated within a second of a line"
        " being written to its file. Without a directory, follows the folders of Claude Code, Codex CLI and Gemini"
        " CLI. Can be stopped and started again at any time: nothing is stored twice."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("directories", metavar="DIR", nargs="*", help="directories or files to follow")
        parser.add_argument(
            "--project",
            metavar="SLUG",
            action=ProjectOption,
            help=f"slug (default: see `agentops project use`, or {settings.AGENT_RUNNER_PROJECT})",
        )
        parser.add_argument(
            "--since", metavar="TIME", default="24h", help="skip older files: 30m, 7d (default: %(default)s)"
        )
        parser.add_argument(
            "--quiet",
            metavar="SECONDS",
            type=float,
            default=QUIET_S,
            help="silence after which a session waits (default: %(default)s)",
        )
        parser.add_argument("--once", action="store_true", help="store the sessions so far, and exit")
        parser.add_argument("--url", metavar="URL", help="send to another site, with the API key in AGENTOPS_API_KEY")
        parser.add_argument("--key-file", metavar="FILE", type=Path, help="the API key of the other site")
        parser.add_argument(
            "--hooks",
            choices=["claude-code"],
            help="show the hooks that report a waiting session, and follow nothing",
        )
        parser.add_argument("--install", action="store_true", help="with --hooks: add them to the program's settings")

    def handle(self, *args: Any, **options: Any) -> None:
        options["project"] = options["project"] or default_slug()[0] or settings.AGENT_RUNNER_PROJECT
        if options["hooks"]:
            show_or_install(self, options, _key(options))
        elif options["install"]:
            raise CommandError("--install needs --hooks claude-code", returncode=EXIT_USAGE)
        else:
            self._follow(options)

    def _follow(self, options: dict[str, Any]) -> None:
        folders = [Path(name).absolute() for name in options["directories"]]
        for folder in folders:
            if not folder.exists():
                raise CommandError(f"{printable(folder)} does not exist", returncode=EXIT_UNREADABLE)
        watcher = Watcher(
            folders or session_folders(os.environ, Path.home()),
            self._sink(options),
            labels=[f"host:{socket.gethostname()}"[:MAX_LABEL]],
            since=time.time() - _duration(options["since"]),  # noqa: TID251 - compared with times of local files
            quiet_s=max(options["quiet"], 0.0),
            tell=self._tell,
            warn=lambda text: self.stderr.write(f"agentops: {printable(text)}"),
        )
        try:
            if options["once"]:
                watcher.run_once()
            else:
                watcher.run(_until_signalled())
        except BadKey as error:
            raise CommandError(printable(error), returncode=EXIT_INVALID) from None
        except SinkUnavailable as error:  # only with --once; otherwise the command retries
            raise CommandError(printable(error), returncode=EXIT_UNREADABLE) from None

    def _tell(self, text: str) -> None:
        self.stdout.write(printable(text))
        self.stdout.flush()

    def _sink(self, options: dict[str, Any]) -> WatchSink:
        if not options["url"]:
            return LocalSink(named_project(options["project"], Action.INGEST), by=operator())
        try:
            return RemoteSink(options["url"], _key(options))
        except ValueError as error:
            raise CommandError(printable(error), returncode=EXIT_USAGE) from None


def _key(options: dict[str, Any]) -> str:
    """Return the API key in `--key-file`, or else in AGENTOPS_API_KEY; empty without one.

    Raises `CommandError` if the file cannot be read, or if `--url` needs a key.
    """
    key = str(settings.AGENTOPS_API_KEY)
    if options["key_file"]:
        try:
            key = options["key_file"].read_text()
        except (OSError, ValueError):
            problem = f"{printable(options['key_file'])} cannot be read"
            raise CommandError(problem, returncode=EXIT_UNREADABLE) from None
    if options["url"] and not key.strip():
        problem = "--url needs an API key of scope ingest, in AGENTOPS_API_KEY or --key-file"
        raise CommandError(problem, returncode=EXIT_USAGE)
    return key.strip()


def _duration(text: str) -> float:
    """Return a duration such as "30m" in seconds. Raises `CommandError`."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise CommandError(f"--since must be like 30m, 24h or 7d, not {printable(text)}", returncode=EXIT_USAGE)
    return int(match[1]) * _SECONDS[match[2]]


def _until_signalled() -> Event:
    """Return an event that SIGINT and SIGTERM set."""
    stop = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    return stop


# --- Hooks ---


def show_or_install(command: AgentopsCommand, options: dict[str, Any], key: str) -> None:
    """Print the hooks and their script; with `--install`, write both. `key` is the other site's API key, or empty."""
    files = HookFiles(settings.AGENTOPS_HOME / "hooks")
    path = settings_path(os.environ, Path.home())
    if not options["install"]:
        command.stdout.write(json.dumps(added_settings(files.command), indent=2))
        text = f"--install adds this to {path}, and writes {files.script}:\n\n{files.script_text()}"
        command.stderr.write(printable(text) if not text.isascii() else text)
        return
    if shutil.which("curl") is None:
        text = "the hooks send with curl, and this machine has no curl on its PATH: install it, and repeat the command"
        raise CommandError(text, returncode=EXIT_USAGE)
    url = options["url"] or settings.AGENTOPS_BASE_URL or f"http://127.0.0.1:{settings.PORT}"
    # Without --url, a key in AGENTOPS_API_KEY is ignored: it belongs to another site.
    is_key_used = key and (options["url"] or options["key_file"])
    try:
        files.write(url, key if is_key_used else _key_of_project(files, options["project"]))
        backup = install(path, files.command, now=timezone.localtime())
    except BadSettings as error:
        raise CommandError(printable(error), returncode=EXIT_INVALID) from None
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(printable(error), returncode=EXIT_UNREADABLE) from None
    kept = f"; the previous settings are in {backup.name}" if backup else ""
    command.stdout.write(printable(f"Claude Code tells {url} when a session waits: {path}{kept}"))


def _key_of_project(files: HookFiles, project: str) -> str:
    """Return the key in the installed hooks if it is a valid one of the project; otherwise create a key."""
    row = named_project(project, Action.MANAGE)
    for line in files.config.read_text().splitlines() if files.config.exists() else []:
        token = line.rpartition("Bearer ")[2].rstrip('"')
        try:
            if "Bearer " in line and keys.authenticate(token).project_id == row.pk:
                return token
        except Refusal:
            continue
    name = f"Hooks of Claude Code on {socket.gethostname()}"[:64]
    return keys.create_key(row, name=name, scopes=[Scope.INGEST], actor=operator()).plain
