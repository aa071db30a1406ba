"""The options of all subcommands of `agentops agent`.

Separate from the subcommands: a parser needs neither the engine nor a model library, so it loads quickly.
"""

from __future__ import annotations

from django.core.management.base import CommandParser

from agentops.accounts.command_base import AddSubcommand
from runs.management.agent import arguments
from runs.management.agent.arguments import STDIN, clean_argument
from runs.statuses import RunStatus

RUN_HELP = "run ID, a unique prefix of it of 4 characters or more, or the ID of a session of Claude Code"
FLOW_RUN_HELP = "flow run ID, or a unique prefix of it of 4 characters or more"
CALL_HELP = "ID of the call, or the call ID of the model"
#: Ends the help of `apply`.
POLICIES = (
    "A definition's policies decide what happens to a run without a person. on_idle (it answers without calling done): "
    "nudge, done, fail, escalate, gate. on_dead (its worker is lost): done, fail, resume, escalate, gate. "
    "on_error (after all retries): fail, resume, escalate, gate. on_prompt (it calls ask_user): done, fail, escalate, "
    "gate. on_cut (its answer is cut off), on_refused (its answer is refused): fail, resume, escalate, pause, accept. "
    "Their options are in docs/guides/policies.md."
)
#: Default number of records to list.
NEWEST = 200


def add_all(add: AddSubcommand) -> None:
    _add_definitions(add)
    _add_run(add)
    _add_reads(add)
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
    apply.add_argument("--project", metavar="SLUG", required=True, help="slug or ID")
    arguments.add_json(apply)
    defs = add("defs", "runs.management.agent.show.defs", help="List agents")
    defs.add_argument("--project", metavar="SLUG", help="slug or ID (default: all projects)")
    arguments.add_json(defs, "print JSON with all fields")


def _add_run(add: AddSubcommand) -> None:
    run = add("run", "runs.management.agent.start_commands.run", help="Start a run and print its ID")
    run.add_argument("agent_id", metavar="AGENT_ID", help="ID of the agent")
    run.add_argument("--project", metavar="SLUG", required=True, help="slug or ID")
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


def _add_reads(add: AddSubcommand) -> None:
    ls = add("ls", "runs.management.agent.run_table.ls", help="List runs, newest first")
    ls.add_argument("--project", metavar="SLUG", help="slug or ID (default: all projects)")
    ls.add_argument("--status", action="append", choices=[s.value for s in RunStatus], help="status; may be repeated")
    arguments.add_limit(ls, 50, f"number of runs, at most {arguments.MAX_ROWS} (default: 50)")
    arguments.add_json(ls)
    show = add("show", "runs.management.agent.show.show", help="Show everything about one run")
    _add_run_argument(show)
    arguments.add_json(show)
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


def _add_resume(add: AddSubcommand) -> None:
    resume = add(
        "resume",
        "runs.management.agent.run_commands.resume",
        help="Continue a paused run as a new one and print its ID",
    )
    resume.add_argument("run", metavar="RUN", nargs="?", help=RUN_HELP)
    resume.add_argument("--all", action="store_true", help="resume every paused run, and with --kill every running one")
    resume.add_argument("--project", metavar="SLUG", help="only this project (with --all)")
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
        "send", "runs.management.agent.run_commands.send", help="Send a message to a run, or answer its question"
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
