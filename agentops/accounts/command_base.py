"""The base class of management commands: subcommands, output formats and exit codes."""

from __future__ import annotations

import argparse
import io
import json
import logging
import os
import pwd
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from django.core.management.base import BaseCommand, CommandError, CommandParser, OutputWrapper, SystemCheckError
from django.core.serializers.json import DjangoJSONEncoder
from django.db.utils import InterfaceError, OperationalError, ProgrammingError
from django.utils.module_loading import import_string

from agentops.accounts import terminal
from agentops.accounts.command_parser import CommandLineParser
from agentops.base.database.statements import NO_ANSWER, fault_of
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
    EXIT_AMBIGUOUS: "Ambiguous: a short ID or a prefix matches more than one run or key.",
    EXIT_REFUSED: "Refused: the current state, or a limit, does not allow it.",
    EXIT_UNREADABLE: "A file or the database cannot be read or written.",
    EXIT_INVALID: "A file or a value has invalid contents.",
    EXIT_RUNNING: "Already running: another process uses the same `AGENTOPS_HOME`.",
    78: "A setting is invalid.",
    EXIT_INTERRUPTED: "Interrupted by Ctrl-C.",
    EXIT_PIPE: "The reader of the output closed the pipe.",
}

#: Code of a refusal → its exit code.
EXIT_OF_CODE = {"ambiguous_key": EXIT_AMBIGUOUS, "ambiguous_run": EXIT_AMBIGUOUS}
#: HTTP status of all other refusals → their exit code. EXIT_REFUSED for other statuses.
EXIT_OF_STATUS = {400: EXIT_INVALID, 413: EXIT_INVALID, 422: EXIT_INVALID, 404: EXIT_NOT_FOUND, 410: EXIT_NOT_FOUND}
#: All whitespace except single spaces.
_BREAKS = re.compile(r"\s{2,}|[^\S ]")
#: Control characters and lone surrogates.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")

#: The implementation of a subcommand: a method that gets the options, or the path "module.function" of a function that
#: gets the command and the options. The module is imported only when the subcommand is used.
Handler = Callable[[dict[str, Any]], None] | str


def operator() -> str:
    """Return the name of the operator for the audit log: by the user ID, because users can change the environment."""
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
    """Adds a subcommand and returns its parser. `aliases` are listed in the help; a hidden subcommand is not."""

    def __call__(
        self,
        name: str,
        handler: Handler,
        *,
        help: str,  # noqa: A002
        aliases: Sequence[str] | None = None,
        is_hidden: bool = False,
    ) -> CommandParser: ...


class AgentopsCommand(BaseCommand):
    """A command that reports an expected error by a line on stderr and an exit code, not by a traceback.

    A command with subcommands overrides `subcommands`; others override `add_arguments` and `handle` as in Django.
    """

    requires_system_checks = []
    suppressed_base_arguments = {
        *("--version", "--verbosity", "--settings", "--pythonpath"),
        *("--traceback", "--no-color", "--force-color", "--skip-checks"),
    }
    #: Whether the command was started at a command line, and not by `call_command`.
    _at_command_line = False
    #: Whether events of runs are logged by default. The processes of a site do; interactive commands do not.
    logs_runs = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Django writes all of it in red. Here, only errors are.
        self.stderr.style_func = None
        #: The option --force-color or --no-color; None for neither.
        self._colour_option: bool | None = None

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        base = super().create_parser(prog_name, subcommand, add_help=False, **kwargs)
        return CommandLineParser(
            prog=base.prog,
            description=base.description,
            epilog=base.epilog,
            formatter_class=base.formatter_class,
            called_from_command_line=base.called_from_command_line,
            parents=[base],
        )

    def subcommands(self, add: AddSubcommand) -> None:
        """Call `add(name, handler, help=…)` for each subcommand, and `add_argument` on the parser it returns."""
        raise NotImplementedError

    def add_arguments(self, parser: CommandParser) -> None:
        self.subcommands(subcommand_adder(parser, "COMMAND"))

    def handle(self, *args: Any, **options: Any) -> None:
        handler: Handler = options.pop("handler")
        if isinstance(handler, str):
            import_string(handler)(self, options)
        else:
            handler(options)

    def run_from_argv(self, argv: list[str]) -> None:
        self._at_command_line = True
        if isinstance(sys.stdout, io.TextIOWrapper):
            # Escape characters that the terminal's encoding lacks, as stderr does.
            sys.stdout.reconfigure(errors="backslashreplace")
        logger = logging.getLogger("agentops.runs")
        level = logger.level
        if not self.logs_runs and "LOG_LEVEL" not in os.environ:
            logger.setLevel(logging.CRITICAL)
        try:
            super().run_from_argv(argv)
        finally:
            logger.setLevel(level)

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Execute the command. Expected errors become an exit code, or a CommandError if called with `call_command`."""
        if options["force_color"] or options["no_color"]:
            self._colour_option = options["force_color"]
        try:
            output = super().execute(*args, **options)
            self.stdout.flush()
        except BrokenPipeError:
            if not self._at_command_line:
                raise
            # The reader of the pipe, such as head, has ended. Without this, Python's final flush would raise again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise SystemExit(EXIT_PIPE) from None
        except Exception as error:
            failure = failure_of(error)
            if failure is None or options.get("traceback"):
                raise
            if not self._at_command_line:
                raise failure from error
            self.write_error(str(failure))
            raise SystemExit(failure.returncode) from None
        return output

    def write_error(self, text: str) -> None:
        """Write an error on standard error, in red on a terminal."""
        self.stderr.write(self.painted(f"agentops: {text}", "red", self.stderr))

    def painted(self, text: str, style: str, stream: OutputWrapper | None = None) -> str:
        """Return the text in a style of rich if standard output, or `stream`, has colours."""
        return terminal.painted(text, style) if style and self.has_colours(stream or self.stdout) else text

    def has_colours(self, stream: OutputWrapper) -> bool:
        if self._colour_option is not None:
            return self._colour_option
        # A test that replaces the stream gets none, unless it forces them.
        is_terminal = stream.isatty() and stream._out in (sys.stdout, sys.stderr)
        return terminal.wants_colours(is_terminal=is_terminal)

    def write_json(self, value: object) -> None:
        """Write a value as JSON, indented on a terminal."""
        self.stdout.write(json.dumps(value, cls=DjangoJSONEncoder, indent=2 if self.stdout.isatty() else None))

    def write_table(
        self, headers: Sequence[str], rows: Iterable[Sequence[object]], *, optional: Sequence[str] = ()
    ) -> None:
        """Write rows: on a terminal in columns that fit below the headers, otherwise with tabs and without headers.

        On a terminal, UUIDs are shortened, moments are relative, and the columns in `optional` may be left out.
        """
        rows = list(rows)
        if not self.stdout.isatty():
            for row in rows:
                self.stdout.write("\t".join(map(printable, row)))
        else:
            self.stdout.write(self.table(headers, rows, optional=optional), ending="")

    def table(self, headers: Sequence[str], rows: Sequence[Sequence[object]], *, optional: Sequence[str] = ()) -> str:
        """Return rows as `write_table` writes them on a terminal."""
        if not rows:
            return "nothing to list\n"
        lines = [[printable(cell) for cell in row] for row in terminal.shown_cells(rows)]
        return terminal.rendered(headers, lines, optional=optional, has_colours=self.has_colours(self.stdout))


def subcommand_adder(parser: CommandParser, metavar: str, *, required: bool = True) -> AddSubcommand:
    """Return the function that adds subcommands to a parser. `ls` gets the alias `list`, unless others are passed."""
    choices = parser.add_subparsers(metavar=metavar, required=required, parser_class=CommandLineParser)

    def add(
        name: str,
        handler: Handler,
        *,
        help: str,  # noqa: A002
        aliases: Sequence[str] | None = None,
        is_hidden: bool = False,
    ) -> CommandParser:
        if aliases is None:
            aliases = ("list",) if name == "ls" else ()
        visible: dict[str, Any] = {} if is_hidden else {"help": help}
        added: CommandParser = choices.add_parser(name, description=help, aliases=aliases, **visible)
        added.set_defaults(handler=handler)
        # Also after the subcommand, where people write it.
        added.add_argument("--no-color", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        return added

    return add


def failure_of(error: Exception) -> CommandError | None:
    """Return the `CommandError` for an expected error; None for other errors, whose traceback is shown."""
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
