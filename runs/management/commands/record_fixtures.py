"""`agentops record_fixtures`: record runs as fixtures, one file for each agent or node of a flow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils.module_loading import import_string

from agentops.accounts.management.base import EXIT_USAGE, AgentopsCommand
from runs import environment
from runs.management.agent import argument_types
from runs.management.agent.input_files import STDIN, clean_argument
from runs.management.agent.options import RUN_HELP
from runs.management.flow_commands import RUN_HELP as FLOW_RUN_HELP

_OF_RUNS = "runs.management.recordings.recorded_runs.record_fixtures"
_OF_FLOWS = "runs.management.recordings.recorded_flows.record_flow_fixtures"


class Command(AgentopsCommand):
    help = (
        "Record runs as fixtures, one file for each agent, with secrets masked. With --agent or --flow, a new run is "
        "executed with its own models and tools, by this process unless a worker takes it, and recorded when it has "
        "completed. With --run, runs that are stored are recorded, also imported ones and those of other programs. "
        "A flow (--flow, --flow-run) gets a folder with a file for each agent node. All files are written or none."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        source = parser.add_mutually_exclusive_group(required=True)
        source.add_argument("--agent", metavar="AGENT_ID", help="ID of the agent to run (with --project)")
        source.add_argument("--run", metavar="RUN", nargs="+", help=RUN_HELP)
        source.add_argument("--flow", metavar="FLOW_ID", help="ID of the flow to run (with --project)")
        source.add_argument("--flow-run", metavar="RUN", help=FLOW_RUN_HELP)
        parser.add_argument("--output", metavar="DIR", type=Path, required=True, help="created if missing")
        parser.add_argument(
            "--name",
            metavar="NAME",
            help="name of the file or of the folder, for one run (default: the agent's or flow's)",
        )
        parser.add_argument("--force", action="store_true", help="overwrite existing fixtures")
        parser.add_argument("--project", metavar="SLUG", help="slug or ID")
        prompt = parser.add_mutually_exclusive_group()
        prompt.add_argument(
            "--prompt", metavar="TEXT", type=clean_argument, help="first message (default: from the recording)"
        )
        prompt.add_argument(
            "--prompt-file", metavar="F", help=f"file with the first message; {STDIN} reads standard input"
        )
        inputs = parser.add_mutually_exclusive_group()
        inputs.add_argument("--inputs", metavar="JSON", type=clean_argument, help="inputs of the flow as a JSON object")
        inputs.add_argument("--inputs-file", metavar="F", help=f"the same from a file; {STDIN} reads standard input")
        parser.add_argument(
            "--answers", metavar="JSON", type=clean_argument,
            help="answers to the questions of the flow: an object with a text, or a list of texts, for each human node",
        )  # fmt: skip
        parser.add_argument(
            "--max-steps", metavar="N", type=argument_types.whole, help="step limit (default: the agent's)"
        )
        parser.add_argument(
            "--wait", metavar="SECONDS", type=argument_types.seconds, default=float("inf"),
            help="give up after so long (default: never)",
        )  # fmt: skip
        parser.add_argument("--json", action="store_true", help="print JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        problem = _problem_of(options)
        if problem:
            raise CommandError(problem, returncode=EXIT_USAGE)
        if (options["agent"] or options["flow"]) and self._at_command_line:
            # The tools run in this process. Otherwise the process belongs to the caller.
            environment.hide_secrets()
        # Imported by name: the parser loads without the engine.
        is_flow = options["flow"] or options["flow_run"]
        import_string(_OF_FLOWS if is_flow else _OF_RUNS)(self, options)


def _problem_of(options: dict[str, Any]) -> str:
    """Return the error of an invalid combination of options; empty if it is valid."""
    for name in ("agent", "flow"):
        if options[name] and not options["project"]:
            return f"--{name} needs --project"
    if not options["agent"] and (options["prompt"] is not None or options["prompt_file"] is not None):
        return "--prompt is for a new run: use it with --agent"
    if not options["agent"] and options["max_steps"] is not None:
        return "--max-steps is for a new run: use it with --agent"
    if not options["flow"] and (options["inputs"] is not None or options["inputs_file"] is not None):
        return "--inputs is for a new flow run: use it with --flow"
    if not options["flow"] and options["answers"] is not None:
        return "--answers is for a new flow run: use it with --flow"
    if options["name"] is not None and len(options["run"] or [""]) > 1:
        return "--name is for one run"
    return ""
