"""The options of all subcommands of `agentops run` and `agentops agent`.

Separate from the subcommands: a parser needs neither the engine nor a model library, so it loads quickly.
"""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from agentops.accounts.command_base import AddSubcommand, Handler
from agentops.accounts.current_project import add_project, add_project_filter
from runs.management.agent import arguments
from runs.management.agent.arguments import STDIN, clean_argument
from runs.statuses import RunStatus

RUN_HELP = "run ID or short ID (its end or beginning, 4 characters or more), or the ID of a session of Claude Code"
FLOW_RUN_HELP = "flow run ID or short ID (its end or beginning, 4 characters or more)"
CALL_HELP = "ID or short ID of the call, or the call ID of the model"
#: Ends the help of `apply`.
POLICIES = (
    "A definition's policies decide what happens to a run without a person. on_idle (it answers without calling done): "
    "nudge, done, fail, escalate, gate. on_dead (its worker is lost): done, fail, resume, escalate, gate. "
    "on_error (after all retries): fail, resume, escalate, gate. on_prompt (it calls ask_user): done, fail, escalate, "
    "gate. on_cut (its answer is cut off), on_refused (its answer is refused): fail, resume, escalate, pause, accept. "
    "Their options are in docs/guides/policies.md."
)
#: Default number of records to list, and of runs.
NEWEST = 200
NEWEST_RUNS = 50


def add_run_commands(add: AddSubcommand) -> None:
    """Add the subcommands of `agentops run`."""
    _add_ls(add)
    _add_show(add)
    _add_start(add)
    add_verbs(add)


def add_agent_commands(add: AddSubcommand) -> None:
    """Add the subcommands of `agentops agent`, and the former names of the subcommands of `run`, hidden."""
    _add_definitions(add)
    _add_start(former := _former(add), "run")
    add_verbs(former)


def _former(add: AddSubcommand) -> AddSubcommand:
    """Return a function that adds hidden subcommands, which ignore the project in use: scripts depend on them."""

    def add_former(name: str, handler: Handler, *, help: str, **_: Any) -> CommandParser:  # noqa: A002
        parser = add(name, handler, help=help, is_hidden=True)
        parser.set_defaults(all_projects=True)
        return parser

    return add_former


def add_verbs(add: AddSubcommand) -> None:
    """Add the subcommands for one run that have the same name in both groups."""
    _add_reads(add)
    _add_diff(add)
    _add_resume(add)
    _add_fork(add)
    _add_commands(add)
    _add_outcome(add)
    _add_approvals(add)


def _add_definitions(add: AddSubcommand) -> None:
    apply = add(
        "apply", "runs.management.agent.start_commands.apply", help="Create or change an agent from a definition"
    )
    apply.epilog = POLICIES
    apply.add_argument("file", metavar="FILE", help=f"definition in TOML or JSON; {STDIN} reads standard input")
    add_project(apply)
    arguments.add_json(apply)
    listed = add("list", "runs.management.agent.agents.list_agents", help="List agents")
    defs = add("defs", "runs.management.agent.agents.list_agents", help="List agents", is_hidden=True)
    # Scripts call it without a project, and get the agents of all.
    defs.set_defaults(all_projects=True)
    for parser in (listed, defs):
        add_project_filter(parser)
        arguments.add_json(parser, "print JSON with all fields")
    ls = add(
        "ls",
        "runs.management.agent.agents.ls",
        help="As list; but runs in a pipe and with --json, as before `run ls`, for scripts",
        aliases=(),
    )
    _add_ls_options(ls)
    show = add("show", "runs.management.agent.agents.show", help="Show an agent, or a version of it; or a run")
    show.add_argument(
        "agent", metavar="AGENT", help="ID of the agent; or of a run, for which `run show` is the new name"
    )
    show.add_argument(
        "--version", dest="number", metavar="N", type=arguments.whole, help="version (default: the newest)"
    )
    add_project(show)
    arguments.add_json(show)
    versions = add("versions", "runs.management.agent.agents.versions", help="List the versions of an agent")
    versions.add_argument("agent", metavar="AGENT", help="ID of the agent")
    add_project(versions)
    arguments.add_json(versions)


def _add_start(add: AddSubcommand, name: str = "start") -> None:
    run = add(name, "runs.management.agent.start_commands.run", help="Start a run and print its ID")
    run.add_argument("agent_id", metavar="AGENT_ID", help="ID of the agent")
    add_project(run)
    arguments.add_prompt(run)
    run.add_argument("--max-steps", metavar="N", type=arguments.whole, help="step limit (default: the agent's)")
    run.add_argument(
        "--title", metavar="T", type=arguments.title, default="", help="title (default: the prompt's first line)"
    )
    run.add_argument(
        "--label", metavar="L", type=arguments.label, action="append", default=[], help="label; may be repeated"
    )
    run.add_argument(
        "--wait",
        metavar="SECONDS",
        nargs="?",
        type=arguments.seconds,
        const=float("inf"),
        help="wait until the run ends or pauses and print its status; exit code 1 if it did not complete",
    )
    arguments.add_json(run)


def _add_ls(add: AddSubcommand) -> None:
    ls = add("ls", "runs.management.agent.run_table.ls", help="List runs, newest first")
    _add_ls_options(ls)
    _add_watch(ls, "draw the list again every second, until Ctrl-C")


def _add_ls_options(ls: CommandParser) -> None:
    add_project_filter(ls)
    ls.add_argument("--status", action="append", choices=[s.value for s in RunStatus], help="status; may be repeated")
    arguments.add_limit(ls, None, f"number of runs, at most {arguments.MAX_ROWS} (default: {NEWEST_RUNS})")
    arguments.add_json(ls)


def _add_show(add: AddSubcommand) -> None:
    show = add("show", "runs.management.agent.show.show", help="Show everything about one run")
    _add_run_argument(show)
    arguments.add_json(show)
    _add_watch(show, "draw it again every second, until the run ends or pauses, or until Ctrl-C")


def _add_watch(parser: CommandParser, text: str) -> None:
    parser.add_argument("--watch", action="store_true", help=f"{text}; on a terminal alone")


def _add_reads(add: AddSubcommand) -> None:
    tail = add("tail", "runs.management.agent.tail.tail", help="Print a run's events until it ends or pauses")
    _add_run_argument(tail)
    arguments.add_tail(tail)
    for name, help_text in (
        ("messages", "List a run's messages, newest last"),
        ("calls", "List a run's tool calls, newest last"),
        (
            "errors",
            "List the errors of a run, as its page does: failed attempts, also before a retry, and failed calls",
        ),
    ):
        records = add(name, f"runs.management.agent.show.{name}", help=help_text)
        _add_run_argument(records)
        arguments.add_limit(records, NEWEST, "only the newest N (default: %(default)s)")
        arguments.add_json(records)


def _add_diff(add: AddSubcommand) -> None:
    diff = add("diff", "runs.management.agent.changes.diff", help="Print what a run changed in files")
    _add_run_argument(diff)
    diff.add_argument(
        "--step", metavar="N", type=arguments.whole_up_to(2**31 - 1), help="only the changes of this step"
    )
    diff.add_argument(
        "--since-last-message", action="store_true", help="only changes after the last message of a person"
    )
    form = diff.add_mutually_exclusive_group()
    form.add_argument("--stat", action="store_true", help="print the files and numbers of lines only")
    form.add_argument("--patch", action="store_true", help="print a patch for git apply, of the files known whole")
    form.add_argument("--json", action="store_true", help="print JSON")


def _add_resume(add: AddSubcommand) -> None:
    resume = add(
        "resume",
        "runs.management.agent.run_commands.resume",
        help="Continue a paused run as a new one and print its ID",
    )
    resume.add_argument("run", metavar="RUN", nargs="?", help=RUN_HELP)
    resume.add_argument("--all", action="store_true", help="resume every paused run, and with --kill every running one")
    add_project_filter(resume)
    resume.add_argument("--message", metavar="M", type=clean_argument, help='next user message (default: "continue")')
    resume.add_argument("--replace", action="store_true", help="start over with the message as the prompt")
    resume.add_argument(
        "--max-steps", metavar="N", type=arguments.whole, help="step limit of the new run (default: the old run's)"
    )
    resume.add_argument("--kill", action="store_true", help="stop the worker of a running run first")
    resume.add_argument("--dry-run", action="store_true", help="list what would be resumed")
    resume.add_argument("--yes", action="store_true", help="do not ask before stopping workers")
    arguments.add_json(resume)


def _add_fork(add: AddSubcommand) -> None:
    fork = add("fork", "runs.management.agent.run_commands.fork", help="Start a run from a step of another one")
    _add_run_argument(fork)
    fork.add_argument("--step", metavar="N", type=arguments.whole, required=True, help="step to fork after")
    fork.add_argument("--message", metavar="M", type=clean_argument, help="next user message")
    fork.add_argument("--model", metavar="MODEL", type=clean_argument, help="model of the new run (default: the same)")
    fork.add_argument("--instructions-file", metavar="F", help=f"file with instructions; {STDIN}: standard input")
    fork.add_argument(
        "--max-steps", metavar="N", type=arguments.whole, help="step limit of the new run (default: the old run's)"
    )
    fork.add_argument("--settings-file", metavar="F", help="file with settings in TOML or JSON; replaces all")
    arguments.add_json(fork)


def _add_commands(add: AddSubcommand) -> None:
    pause = add(
        "pause",
        "runs.management.agent.run_commands.pause",
        help="Pause a run after its current step, and its child runs that have not ended",
    )
    stop = add(
        "stop",
        "runs.management.agent.run_commands.stop",
        help="Stop a run and its child runs that have not ended; they cannot be resumed. Of a run of another program, "
        "stop the recording",
    )
    for parser, verb in ((pause, "paused"), (stop, "stopped")):
        parser.add_argument("--dry-run", action="store_true", help=f"list the runs that would be {verb}")
    send = add(
        "send",
        "runs.management.agent.run_commands.send",
        help="Send a message to a run, or answer its question",
        aliases=("message",),
    )
    signal = add(
        "signal",
        "runs.management.agent.run_commands.signal",
        help="Send a signal to a remote run, which its code waits for by name",
    )
    for parser in (pause, stop, send, signal):
        _add_run_argument(parser)
        arguments.add_json(parser)
    send.add_argument("message", metavar="MESSAGE", type=clean_argument, help="message text")
    signal.add_argument("name", metavar="NAME", type=clean_argument, help="name of the signal")
    signal.add_argument(
        "--payload", metavar="JSON", type=clean_argument, help="value that the code gets (default: null)"
    )


def _add_outcome(add: AddSubcommand) -> None:
    outcome = add(
        "outcome", "runs.management.agent.run_commands.outcome", help="Resolve a tool call whose outcome is unknown"
    )
    _add_run_argument(outcome)
    outcome.add_argument("call", metavar="CALL", type=clean_argument, help=CALL_HELP)
    choice = outcome.add_mutually_exclusive_group(required=True)
    choice.add_argument(
        "--retry", action="store_true", help="run it again; a lost call that succeeded has its effect twice"
    )
    choice.add_argument("--done", metavar="OUTPUT", type=clean_argument, help="the call succeeded, with this output")
    choice.add_argument("--failed", metavar="ERROR", type=clean_argument, help="the call failed, with this error")
    arguments.add_json(outcome)


def _add_approvals(add: AddSubcommand) -> None:
    approve = add("approve", "runs.management.agent.run_commands.approve", help="Approve a waiting tool call")
    deny = add("deny", "runs.management.agent.run_commands.deny", help="Deny a waiting tool call")
    for parser in (approve, deny):
        _add_run_argument(parser)
        parser.add_argument(
            "call", metavar="CALL", nargs="?", type=clean_argument, help=f"{CALL_HELP} (default: the waiting call)"
        )
        arguments.add_json(parser)
    arguments.add_json_or_file(approve, "arguments", "run the call with these arguments instead")
    approve.add_argument("--always", action="store_true", help="approve all later calls of the tool in this run too")
    deny.add_argument(
        "--message", metavar="TEXT", type=clean_argument, default="", help="what the model is told besides the denial"
    )


def _add_run_argument(parser: CommandParser) -> None:
    parser.add_argument("run", metavar="RUN", help=RUN_HELP)
    parser.add_argument("--project", metavar="SLUG", help="only runs of this project: slug or ID")
