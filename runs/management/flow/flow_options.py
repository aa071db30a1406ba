"""The options of all subcommands of `agentops flow`, apart from what they do, so that a parser loads quickly."""

from __future__ import annotations

from django.core.management.base import CommandParser

from agentops.projects.management.base import AddSubcommand
from runs.management.agent import argument_types
from runs.management.agent.input_files import STDIN, clean_argument

RUN_HELP = "flow run ID, or a unique prefix of it of 4 characters or more"
_DEFINITIONS = "runs.management.flow.definition_commands"
_RUNS = "runs.management.flow.flow_run_commands"


def add_all(add: AddSubcommand) -> None:
    _add_definitions(add)
    _add_run(add)
    _add_control(add)


def _add_definitions(add: AddSubcommand) -> None:
    apply = add("apply", f"{_DEFINITIONS}.apply", help="Create or change a flow from a definition")
    apply.add_argument("file", metavar="FILE", help=f"definition in TOML or JSON; {STDIN} reads standard input")
    apply.add_argument("--dry-run", action="store_true", help="check the definition and change nothing")
    ls = add("ls", f"{_DEFINITIONS}.ls", help="List flows, or with --runs flow runs, newest first")
    ls.add_argument("--project", metavar="SLUG", help="slug or ID (default: all projects)")
    ls.add_argument("--runs", action="store_true", help="list flow runs")
    ls.add_argument(
        "--limit", metavar="N", type=argument_types.limit, default=50, help="number of flow runs (default: 50)"
    )
    _add_json(ls)
    show = add("show", f"{_RUNS}.show", help="Show a flow run: its nodes, edges and runs")
    _add_run_argument(show)
    _add_json(show)
    export = add("export", f"{_DEFINITIONS}.export", help="Print the definition of a flow as JSON")
    export.add_argument("flow_id", metavar="FLOW_ID", help="ID of the flow")
    export.add_argument(
        "--version", dest="number", metavar="N", type=argument_types.whole, help="version (default: the newest)"
    )
    for parser in (apply, export):
        parser.add_argument("--project", metavar="SLUG", required=True, help="slug or ID")
    _add_json(apply)


def _add_run(add: AddSubcommand) -> None:
    run = add("run", f"{_RUNS}.run", help="Start a run of a flow and print its ID")
    run.add_argument("flow_id", metavar="FLOW_ID", help="ID of the flow")
    run.add_argument("--project", metavar="SLUG", required=True, help="slug or ID")
    inputs = run.add_mutually_exclusive_group()
    inputs.add_argument("--inputs", metavar="JSON", type=clean_argument, help="inputs as a JSON object")
    inputs.add_argument("--inputs-file", metavar="F", help=f"the same from a file; {STDIN} reads standard input")
    _add_json(run)


def _add_control(add: AddSubcommand) -> None:
    pause = add("pause", f"{_RUNS}.pause", help="Pause a flow run, and its nodes after their current steps")
    resume = add("resume", f"{_RUNS}.resume", help="Resume a paused flow run")
    resume.add_argument(
        "--message", metavar="M", type=clean_argument, help='message to the open agents (default: "continue")'
    )
    stop = add("stop", f"{_RUNS}.stop", help="Stop a flow run and the runs of its nodes; it cannot be resumed")
    stop.add_argument("--dry-run", action="store_true", help="list the runs that would be stopped")
    send = add("send", f"{_RUNS}.send", help="Send a message to a run of a flow run, or answer its question")
    tail = add("tail", f"{_RUNS}.tail", help="Print a flow run's events until it ends or pauses")
    for parser in (pause, resume, stop, send, tail):
        _add_run_argument(parser)
    for parser in (pause, resume, stop, send):
        _add_json(parser)
    send.add_argument("to", metavar="TO", help="run ID that gets the message, or the node if it has one open run")
    send.add_argument("message", metavar="MESSAGE", type=clean_argument, help="message text")
    tail.add_argument(
        "--after", metavar="SEQ", type=argument_types.seq, default=0, help="only events after this sequence number"
    )
    tail.add_argument("--no-follow", dest="follow", action="store_false", help="exit after the stored events")
    _add_json(tail, "print JSON, one event per line")


def _add_run_argument(parser: CommandParser) -> None:
    parser.add_argument("run", metavar="RUN", help=RUN_HELP)


def _add_json(parser: CommandParser, text: str = "print JSON") -> None:
    parser.add_argument("--json", action="store_true", help=text)
