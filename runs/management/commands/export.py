"""`agentops export`: runs, or a project's list of runs, in the same file formats as the page and the API."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from django.core.management.base import CommandError, CommandParser
from django.http import QueryDict

from agentops.accounts.access import Action
from agentops.accounts.command_base import EXIT_REFUSED, EXIT_UNREADABLE, EXIT_USAGE, AgentopsCommand, printable
from agentops.accounts.current_project import add_project, chosen_project, default_slug
from runs.exports.list_files import ExportFile, ListFormat, export_list
from runs.exports.run_files import RunFormat, export_run
from runs.management.agent.arguments import clean_argument
from runs.management.agent.references import find_run
from runs.management.output import show_progress
from runs.queries.run_lists import filter_values
from runs.queries.run_lists.run_filters import ON_SITE, Filters, ListFilter


class Command(AgentopsCommand):
    help = (
        "Write runs, or the list of a project's runs, as files: the same as on the site and in the API."
        " Secrets are masked."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "runs",
            metavar="RUN",
            nargs="*",
            help="run ID or short ID (default: all runs of the project that meet the filters)",
        )
        parser.add_argument(
            "--format",
            metavar="F",
            choices=[*RunFormat, *ListFormat],
            help="of a run: json (default), events (JSONL), messages or tool-calls (CSV), html; "
            "of the list: jsonl (default) or csv",
        )
        parser.add_argument(
            "--output",
            metavar="FILE",
            default=STDOUT,
            help="file or directory; of several runs, a directory, which is made if it is missing "
            "(default: standard output)",
        )
        parser.add_argument("--force", action="store_true", help="overwrite files that exist")
        add_project(parser)
        filters = parser.add_argument_group("filters of the list")
        for name, one in ON_SITE.items():
            filters.add_argument(f"--{name.replace('_', '-')}", **_option_of(one))

    def handle(self, *args: Any, **options: Any) -> None:
        problem = _problem_of(options)
        if problem:
            raise CommandError(problem, returncode=EXIT_USAGE)
        if not options["runs"]:
            write_export(self, self._list(options), options["output"], force=options["force"])
            return
        file_format = RunFormat(options["format"] or RunFormat.JSON)
        # Look up all runs before writing the first file.
        runs = {run.pk: run for run in map(find_run, options["runs"])}
        if len(runs) == 1:
            [run] = runs.values()
            write_export(self, export_run(run, file_format), options["output"], force=options["force"])
            return
        for run in runs.values():
            write_into(self, export_run(run, file_format), Path(options["output"]), force=options["force"])

    def _list(self, options: dict[str, Any]) -> ExportFile:
        project = chosen_project(options, Action.EXPORT)
        return export_list(project, _filters(options), ListFormat(options["format"] or ListFormat.JSONL))


def _option_of(one: ListFilter) -> dict[str, Any]:
    """Return the keyword arguments of `add_argument` for a filter."""
    kind = one.kind
    text = "; ".join(f"{each[0].lower()}{each[1:]}".rstrip(".") for each in (one.help, kind.note) if each)
    if kind is filter_values.FLAG:
        return {"action": "store_const", "const": "1", "help": text}
    if kind.is_many:
        return {"action": "append", "choices": kind.choices, "help": f"{text}; may be repeated"}
    if kind.choices:
        # Not as choices of argparse, whose error would repeat a secret.
        text = f"{text}: {', '.join(kind.choices)}"
    return {"metavar": kind.metavar, "type": _argparse_type(kind.parse), "help": text}


def _argparse_type(parse: Callable[[str], str]) -> Callable[[str], str]:
    """Return the argparse type for a parser of filter values, which raises `ValueError`."""

    def parse_argument(text: str) -> str:
        try:
            return parse(clean_argument(text))
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse_argument


def _filters(options: dict[str, Any]) -> Filters:
    return Filters.parse(QueryDict(urlencode({name: options[name] or "" for name in ON_SITE}, doseq=True)))


def _problem_of(options: dict[str, Any]) -> str:
    """Return the error of an invalid combination of options; empty if it is valid."""
    has_filters = any(options[name] for name in ON_SITE)
    if options["runs"]:
        if options["project"] or has_filters:
            return "name runs, or a project and filters, not both"
        if options["format"] in list(ListFormat):
            return f"{options['format']} is a format of the list; of a run: {', '.join(RunFormat)}"
        if len(set(options["runs"])) > 1 and options["output"] == STDOUT:
            return "several runs need --output with a directory"
        return ""
    if not options["project"] and not default_slug()[0]:
        return "name runs, or a project: --project SLUG"
    if options["format"] in list(RunFormat):
        return f"{options['format']} is a format of runs; of the list: {', '.join(ListFormat)}"
    return ""


# --- Output ---

STDOUT = "-"
Write = Callable[[bytes], Any]


def write_export(command: AgentopsCommand, file: ExportFile, output: str, *, force: bool) -> None:
    """Write an export to standard output (`-`), to a file, or under its default name into a directory.

    Raises `CommandError` if the file cannot be written, or exists and `force` is not set.
    """
    if output == STDOUT:
        with _errors_of("standard output"):
            _copy(command, file, _stdout_of(command))
    elif (path := Path(output)).is_dir():
        write_into(command, file, path, force=force)
    else:
        _write_path(command, file, path, force=force)


def write_into(command: AgentopsCommand, file: ExportFile, folder: Path, *, force: bool) -> None:
    """Write an export under its default name into a directory, created if missing. Raises as `write_export`."""
    with _errors_of(folder):
        folder.mkdir(parents=True, exist_ok=True)
    _write_path(command, file, folder / file.name, force=force)


def _write_path(command: AgentopsCommand, file: ExportFile, path: Path, *, force: bool) -> None:
    with _errors_of(path):
        if path.exists() and not path.is_file():  # a device or a pipe
            with path.open("wb") as stream:
                _copy(command, file, stream.write)
            return
        if path.exists() and not force:
            raise CommandError(f"{path} already exists; pass --force to overwrite it", returncode=EXIT_REFUSED)
        # Use a temporary name until the file is complete, so that readers never see a partial file.
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with partial.open("wb") as stream:
                _copy(command, file, stream.write, shows_progress=command.stderr.isatty())
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


def _copy(command: AgentopsCommand, file: ExportFile, write: Write, *, shows_progress: bool = False) -> None:
    written = 0
    for portion in file.portions:
        data = portion.encode()
        write(data)
        written += len(data)
        if shows_progress:
            show_progress(command, f"{file.name}: {written:,} bytes")
    if shows_progress:
        command.stderr.write("")


def _stdout_of(command: AgentopsCommand) -> Write:
    """Return a function that writes UTF-8 to standard output, independent of the terminal's encoding."""
    binary = getattr(command.stdout, "buffer", None)
    if binary is None:  # a text stream of the caller
        return lambda data: command.stdout.write(data.decode(), ending="")
    command.stdout.flush()

    def write(data: bytes) -> None:
        binary.write(data)
        binary.flush()

    return write


@contextmanager
def _errors_of(target: object) -> Iterator[None]:
    """Convert operating system errors to `CommandError` with the file name. A closed pipe is not an error of a file."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        problem = f"{target}: {error.strerror or 'cannot be written'}"
        raise CommandError(printable(problem), returncode=EXIT_UNREADABLE) from error
