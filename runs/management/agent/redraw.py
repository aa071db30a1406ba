"""`--watch`: draw a text on a terminal again and again, in place."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.core.management.base import CommandError

from agentops.accounts import terminal
from agentops.accounts.command_base import EXIT_INTERRUPTED, EXIT_USAGE, AgentopsCommand

#: Seconds between two drawings.
EVERY_S = 1.0
CLEAR, HOME, END_OF_LINE, END_OF_SCREEN = "\x1b[2J", "\x1b[H", "\x1b[K", "\x1b[J"


@dataclass(frozen=True)
class WatchFrame:
    """The lines to show, and whether they will not change any more."""

    text: str
    is_last: bool = False


def redraw(command: AgentopsCommand, options: dict[str, Any], draw: Callable[[], WatchFrame]) -> None:
    """Draw until the last drawing, or until Ctrl-C. Raises `CommandError` without a terminal, and with `--json`."""
    if options["json"] or not command.stdout.isatty():
        problem = "--watch draws on a terminal; for programs, `agentops run tail RUN --json` follows a run"
        raise CommandError(problem, returncode=EXIT_USAGE)
    try:
        command.stdout.write(CLEAR, ending="")
        while True:
            drawing = draw()
            _, height = terminal.size()
            lines = drawing.text.splitlines()
            if len(lines) >= height:
                lines = [*lines[: height - 2], "…"]
            command.stdout.write(HOME + "".join(f"{line}{END_OF_LINE}\n" for line in lines) + END_OF_SCREEN, ending="")
            command.stdout.flush()
            if drawing.is_last:
                return
            time.sleep(EVERY_S)
    except KeyboardInterrupt:
        raise SystemExit(EXIT_INTERRUPTED) from None
