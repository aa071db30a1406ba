"""`agentops record_fixtures`: record runs as fixtures, one file for each agent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils.module_loading import import_string

from agentops.projects.management.base import EXIT_USAGE, AgentopsCommand
from runs import environment
from runs.management.agent import argument_types
from runs.management.agent.input_files import STDIN, clean_argument
from runs.management.agent.options import RUN_HELP


class Command(AgentopsCommand):
    help = (
        "Record runs as fixtures, one file for each agent, with secrets masked. With --agent, a new run is executed "
        "with the agent's own model and tools, by this process unless a worker takes it, and recorded when it has "
        "completed. With --run, runs that are stored are recorded, also imported ones and those of other programs. "
        "All files are written or none."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        source = parser.add_mutually_exclusive_group(required=True)
        source.add_argument("--agent", metavar="AGENT_ID", help="ID of the agent to run (with --project)")
        source.add_argument("--run", metavar="RUN", nargs="+", help=RUN_HELP)
        parser.add_argument("--output", metavar="DIR", type=Path, required=True, help="created if missing")
        parser.add_argument("--name", metavar="NAME", help="name of the file, for one run (default: the agent's)")
        parser.add_argument("--force", action="store_true", help="overwrite existing fixtures")
        parser.add_argument("--project", metavar="SLUG", help="slug or ID")
        prompt = parser.add_mutually_exclusive_group()
        prompt.add_argument(
            "--prompt", metavar="TEXT", type=clean_argument, help="first message (default: from the recording)"
        )
        prompt.add_argument(
            "--prompt-file", metavar="F", help=f"file with the first message; {STDIN} reads standard input"
        )
        parser.add_argument(
            "--max-steps", metavar="N", type=argument_types.whole, help="step limit (default: the agent's)"
        )
        parser.add_argument(
            "--wait", metavar="SECONDS", type=argument_types.seconds, default=float("inf"),
            help="give up after so long (default: never)",
        )  # fmt: skip
        parser.add_argument("--json", action="store_true", help="print JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["agent"] and not options["project"]:
            raise CommandError("--agent needs --project", returncode=EXIT_USAGE)
        if options["run"] and (options["prompt"] is not None or options["prompt_file"] is not None):
            raise CommandError("--prompt is for a new run: use it with --agent", returncode=EXIT_USAGE)
        if options["name"] is not None and len(options["run"] or [""]) > 1:
            raise CommandError("--name is for one run", returncode=EXIT_USAGE)
        if options["agent"] and self._at_command_line:
            # The tools run in this process. Otherwise it belongs to the caller.
            environment.hide_secrets()
        # By name: the parser loads without the engine.
        import_string("runs.management.recordings.recorded_runs.record_fixtures")(self, options)
