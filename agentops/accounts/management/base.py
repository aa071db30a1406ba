"""The base class of management commands: subcommands, output formats and exit codes."""

from __future__ import annotations

import io
import json
import logging
import os
import pwd
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from django.core.management.base import BaseCommand, CommandError, CommandParser, SystemCheckError
from django.core.serializers.json import DjangoJSONEncoder
from django.db.utils import InterfaceError, OperationalError, ProgrammingError
from django.utils.module_loading import import_string

from agentops.base.http.storage_faults import NO_ANSWER, fault_of
from agentops.base.refusals import Refusal

EXIT_NOT_COMPLETED = 1
EXIT_USAGE = 2  # argparse's own
EXIT_NOT_FOUND = 3
EXIT_AMBIGUOUS = 4
EXIT_REFUSED = 5
EXIT_UNREADABLE = 6
EXIT_INVALID = 7
EXIT_RUNNING = 75  # EX_TEMPFAIL of sysexits.h
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it
EXIT_PIPE = 141  # 128 + SIGPIPE, as a shell reports it

#: All exit codes of commands, with their meaning.
EXIT_CODES = {
    0: "Done.",
    EXIT_NOT_COMPLETED: "A check found something, or a run that was waited for did not complete.",
    EXIT_USAGE: "The arguments are invalid.",
    EXIT_NOT_FOUND: "A run, project, agent or key was not found.",
    EXIT_AMBIGUOUS: "Ambiguous: a prefix matches more than one run or key.",
    EXIT_REFUSED: "Refused: the current state, or a limit, does not allow it.",
    EXIT_UNREADABLE: "A file or the database cannot be read or written.",
    EXIT_INVALID: "A file or a value has invalid contents.",
    EXIT_RUNNING: "Already running: another process uses the same `AGENTOPS_HOME`.",
    78: "A setting is invalid.",
    EXIT_INTERRUPTED: "Interrupted by Ctrl-C.",
    EXIT_PIPE: "The reader of the output closed the pipe.",
}

#: Refusals by code; all others by status.
EXIT_OF_CODE = {"ambiguous_key": EXIT_AMBIGUOUS, "ambiguous_run": EXIT_AMBIGUOUS}
EXIT_OF_STATUS = {400: EXIT_INVALID, 413: EXIT_INVALID, 422: EXIT_INVALID, 404: EXIT_NOT_FOUND, 410: EXIT_NOT_FOUND}
# All whitespace but single spaces; control characters and lone surrogates.
_BREAKS = re.compile(r"\s{2,}|[^\S ]")
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")

#: The implementation of a subcommand: a method with the options as argument, or the path "module.function" of a
#: function with the command and the options as arguments. The module is imported only when the subcommand is used.
Handler = Callable[[dict[str, Any]], None] | str


def operator() -> str:
    """Return the name of the operator for the audit log, from the user ID, because the environment can be changed."""
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        name = str(os.getuid())
    return f"cli:{name}"


def ask(question: str) -> str:
    """Return the line entered at a terminal; empty at the end of the input, for example after Ctrl-D."""
    try:
        return input(question).strip()
    except EOFError:
        return ""


class AddSubcommand(Protocol):
    def __call__(self, name: str, handler: Handler, *, help: str) -> CommandParser: ...  # noqa: A002


class AgentopsCommand(BaseCommand):
    """A command that ends with one line on stderr and an exit code instead of a traceback.

    With subcommands: override `subcommands`. Without: override `add_arguments` and `handle` as in Django.
    """

    requires_system_checks = []
    suppressed_base_arguments = {
        *("--version", "--verbosity", "--settings", "--pythonpath"),
        *("--traceback", "--no-color", "--force-color", "--skip-checks"),
    }
    _at_command_line = False
    #: Whether run events are logged by default: by the processes of a site, but not by interactive commands.
    logs_runs = False

    def subcommands(self, add: AddSubcommand) -> None:
        """Call `add(name, handler, help=…)` for each subcommand, and `add_argument` on the parser it returns."""
        raise NotImplementedError

    def add_arguments(self, parser: CommandParser) -> None:
        choices = parser.add_subparsers(metavar="COMMAND", required=True)

        def add(name: str, handler: Handler, *, help: str) -> CommandParser:  # noqa: A002
            chosen = choices.add_parser(name, help=help, description=help)
            chosen.set_defaults(handler=handler)
            return chosen

        self.subcommands(add)

    def handle(self, *args: Any, **options: Any) -> None:
        handler: Handler = options.pop("handler")
        if isinstance(handler, str):
            import_string(handler)(self, options)
        else:
            handler(options)

    def run_from_argv(self, argv: list[str]) -> None:
        self._at_command_line = True
        if not self.logs_runs and "LOG_LEVEL" not in os.environ:
            logging.getLogger("agentops.runs").setLevel(logging.CRITICAL)
        if isinstance(sys.stdout, io.TextIOWrapper):
            # Escape characters that the terminal's encoding lacks, as stderr does.
            sys.stdout.reconfigure(errors="backslashreplace")
        super().run_from_argv(argv)

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Execute the command. Expected errors become an exit code, or a CommandError if called with `call_command`."""
        try:
            output = super().execute(*args, **options)
            self.stdout.flush()
        except BrokenPipeError:
            if not self._at_command_line:
                raise
            # The reader (head, less) has closed the pipe. Redirect Python's final flush to /dev/null.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise SystemExit(EXIT_PIPE) from None
        except Exception as error:
            failure = failure_of(error)
            if failure is None or options.get("traceback"):
                raise
            if not self._at_command_line:
                raise failure from error
            self.stderr.write(f"agentops: {failure}")
            raise SystemExit(failure.returncode) from None
        return output

    def write_json(self, value: object) -> None:
        """Write a value as JSON, indented on a terminal."""
        self.stdout.write(json.dumps(value, cls=DjangoJSONEncoder, indent=2 if self.stdout.isatty() else None))

    def write_table(self, headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Write aligned columns, below headers if there are any, to a terminal; elsewhere only rows, with tabs."""
        lines = [[printable(cell) for cell in row] for row in rows]
        if not self.stdout.isatty():
            for line in lines:
                self.stdout.write("\t".join(line))
            return
        # Not at the top: its tables are loaded only for a terminal.
        from wcwidth import ljust, width

        if headers:
            lines.insert(0, [header.upper() for header in headers])
        widths = [max(map(width, column)) for column in zip(*lines, strict=True)]
        for line in lines:
            self.stdout.write("  ".join(map(ljust, line, widths)).rstrip())


def failure_of(error: Exception) -> CommandError | None:
    """Return the CommandError for an expected error; None for a bug, which shows its traceback."""
    if isinstance(error, SystemCheckError):
        return None
    if isinstance(error, CommandError):
        return error
    fault = fault_of(error)
    if fault is not None and fault is not NO_ANSWER:
        return CommandError(f"the database cannot be used: {fault.short}", returncode=EXIT_UNREADABLE)
    if isinstance(error, (OperationalError, ProgrammingError, InterfaceError)):
        reason = printable(str(error).strip().partition("\n")[0])
        return CommandError(f"the database cannot be used: {reason} (is it migrated?)", returncode=EXIT_UNREADABLE)
    if not isinstance(error, Refusal):
        return None
    exit_code = EXIT_OF_CODE.get(error.code) or EXIT_OF_STATUS.get(error.status, EXIT_REFUSED)
    return CommandError(printable(str(error)), returncode=exit_code)


def printable(value: object) -> str:
    """Return `value` as a single line without control characters."""
    text = "" if value is None else str(value)
    return _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", _BREAKS.sub(" ", text))
