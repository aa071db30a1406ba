"""`agentops watch`: show sessions of agent programs on this machine while they are running."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from pathlib import Path
from threading import Event
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser

from agentops.accounts.access import SYSTEM, Action, project_for
from agentops.accounts.management.base import (
    EXIT_INVALID,
    EXIT_UNREADABLE,
    EXIT_USAGE,
    AgentopsCommand,
    operator,
    printable,
)
from runs.external.watching.agent_folders import session_folders
from runs.external.watching.followed_file import QUIET_S
from runs.external.watching.remote_sink import BadKey, RemoteSink
from runs.external.watching.watch_sinks import LocalSink, SinkUnavailable, WatchSink
from runs.external.watching.watcher import Watcher
from runs.management.agent import watch_hooks

MAX_LABEL = 64
_DURATION = re.compile(r"(\d{1,6})([smhd])")
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
            "--project", metavar="SLUG", default=settings.AGENT_RUNNER_PROJECT, help="slug (default: %(default)s)"
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
        parser.add_argument("--once", action="store_true", help="store what is there, and end")
        parser.add_argument("--url", metavar="URL", help="send to another site, with the API key in AGENTOPS_API_KEY")
        parser.add_argument("--key-file", metavar="FILE", type=Path, help="the API key of the other site")
        parser.add_argument(
            "--hooks", choices=["claude-code"], help="show the hooks that tell when a session waits, and follow nothing"
        )
        parser.add_argument("--install", action="store_true", help="with --hooks: add them to the program's settings")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["hooks"]:
            watch_hooks.show_or_install(self, options, _key(options))
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
            return LocalSink(project_for(SYSTEM, options["project"], Action.INGEST), by=operator())
        key = _key(options)
        if not key:
            text = "--url needs an API key of scope ingest, in AGENTOPS_API_KEY or --key-file"
            raise CommandError(text, returncode=EXIT_USAGE)
        try:
            return RemoteSink(options["url"], key)
        except ValueError as error:
            raise CommandError(printable(error), returncode=EXIT_USAGE) from None


def _key(options: dict[str, Any]) -> str:
    """Return the given API key; empty without one."""
    if not options["key_file"]:
        return str(settings.AGENTOPS_API_KEY).strip()
    try:
        return str(options["key_file"].read_text()).strip()
    except (OSError, ValueError):
        text = f"{printable(options['key_file'])} cannot be read"
        raise CommandError(text, returncode=EXIT_UNREADABLE) from None


def _duration(text: str) -> float:
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
