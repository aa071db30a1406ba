"""`agentops replay`: replay the stored events of a run, read-only."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from agentops.accounts.command_base import EXIT_USAGE, AgentopsCommand
from runs.management.agent import arguments
from runs.management.agent.options import RUN_HELP
from runs.management.agent.tail import replay

MAX_SPEED = 32


class Command(AgentopsCommand):
    help = (
        "Print the stored events of a run or flow run in order, at their recorded pace, each with the state after it. "
        "Read-only: no model and no tool is called, and nothing is changed. Pauses longer than 5 seconds are shortened."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("run", metavar="RUN", help=f"{RUN_HELP}; or a flow run, likewise")
        pace = parser.add_mutually_exclusive_group()
        pace.add_argument(
            "--speed", metavar="N", type=arguments.whole, default=1, help="times as fast, 1 to 32 (default: 1)"
        )
        pace.add_argument("--at-once", action="store_true", help="do not wait between events")
        parser.add_argument(
            "--from", metavar="SEQ", dest="begin", type=arguments.seq, default=1, help="first event (default: 1)"
        )
        parser.add_argument(
            "--to", metavar="SEQ", dest="end", type=arguments.seq, help="last event (default: the newest)"
        )
        parser.add_argument("--json", action="store_true", help="print JSON, one event per line")

    def handle(self, *args: Any, **options: Any) -> None:
        if not 1 <= options["speed"] <= MAX_SPEED:
            raise CommandError(f"--speed must be 1 to {MAX_SPEED}, not {options['speed']}", returncode=EXIT_USAGE)
        if options["end"] is not None and options["end"] < options["begin"]:
            raise CommandError(f"--to {options['end']} is before --from {options['begin']}", returncode=EXIT_USAGE)
        replay(self, options)
