"""`agentops record_fixtures`: record runs as fixtures, one file for each agent or node of a flow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils.module_loading import import_string

from agentops.accounts.command_base import EXIT_USAGE, AgentopsCommand
from agentops.accounts.current_project import add_project, default_slug
from runs import environment
from runs.management.agent import arguments
from runs.management.agent.arguments import clean_argument
from runs.management.agent.options import FLOW_RUN_HELP, RUN_HELP

# By path, so that the parser loads without the engine.
_RECORD_RUNS = "runs.management.recordings.record_fixtures"
_RECORD_FLOW = "runs.management.recordings.record_flow_fixtures"
#: Option that starts a new run → what it starts, and the options that only a new run has.
_ONLY_WITH = (
    ("agent", "run", ("prompt", "prompt_file", "max_steps")),
    ("flow", "flow run", ("inputs", "inputs_file", "answers")),
)


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
        add_project(parser)
        arguments.add_prompt(parser)
        arguments.add_json_or_file(parser, "inputs", "inputs of the flow as a JSON object")
        parser.add_argument(
            "--answers",
            metavar="JSON",
            type=clean_argument,
            help="answers to the questions of the flow: an object with a text, or a list of texts, for each human node",
        )
        parser.add_argument("--max-steps", metavar="N", type=arguments.whole, help="step limit (default: the agent's)")
        parser.add_argument(
            "--wait",
            metavar="SECONDS",
            type=arguments.seconds,
            default=float("inf"),
            help="give up after so long (default: never)",
        )
        parser.add_argument("--json", action="store_true", help="print JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        problem = _problem_of(options)
        if problem:
            raise CommandError(problem, returncode=EXIT_USAGE)
        if (options["agent"] or options["flow"]) and self._at_command_line:
            # The tools run in this process, which belongs to this command.
            environment.hide_secrets()
        is_flow = options["flow"] or options["flow_run"]
        import_string(_RECORD_FLOW if is_flow else _RECORD_RUNS)(self, options)


def _problem_of(options: dict[str, Any]) -> str:
    """Return the error of an invalid combination of options; empty if it is valid."""
    for name in ("agent", "flow"):
        if options[name] and not options["project"] and not default_slug()[0]:
            return f"--{name} needs --project"
    for kind, text, names in _ONLY_WITH:
        for name in names:
            if not options[kind] and options[name] is not None:
                option = name.removesuffix("_file").replace("_", "-")
                return f"--{option} is for a new {text}: use it with --{kind}"
    if options["name"] is not None and len(options["run"] or [""]) > 1:
        return "--name is for one run"
    return ""
