"""`agentops export`: runs, or a project's list of runs, in the same file formats as the page and the API."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from django.core.management.base import CommandError, CommandParser
from django.http import QueryDict

from agentops.accounts.access import SYSTEM, Action, project_for
from agentops.accounts.management.base import EXIT_USAGE, AgentopsCommand
from runs.exports.export_file import ExportFile
from runs.exports.list_files import ListFormat, export_list
from runs.exports.run_files import RunFormat, export_run
from runs.management.agent.input_files import clean_argument
from runs.management.agent.references import find_run
from runs.management.export_output import STDOUT, write_export, write_into
from runs.queries.run_lists import filter_values
from runs.queries.run_lists.filter_table import ON_SITE, ListFilter
from runs.queries.run_lists.run_filters import Filters


class Command(AgentopsCommand):
    help = (
        "Write runs, or the list of a project's runs, as files: the same as on the site and in the API."
        " Secrets are masked."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "runs", metavar="RUN", nargs="*", help="run ID or a unique prefix (default: the list of --project)"
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
        parser.add_argument("--project", metavar="SLUG", help="slug or ID; all runs of it that meet the filters")
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
        project = project_for(SYSTEM, options["project"], Action.EXPORT)
        return export_list(project, _filters(options), ListFormat(options["format"] or ListFormat.JSONL))


def _option_of(one: ListFilter) -> dict[str, Any]:
    """Return the option of argparse for a filter."""
    kind = one.kind
    text = "; ".join(f"{each[0].lower()}{each[1:]}".rstrip(".") for each in (one.help, kind.note) if each)
    if kind is filter_values.FLAG:
        return {"action": "store_const", "const": "1", "help": text}
    if kind.is_many:
        return {"action": "append", "choices": kind.choices, "help": f"{text}; may be repeated"}
    if kind.choices:
        # Not as choices of argparse, whose error would repeat a secret.
        text = f"{text}: {', '.join(kind.choices)}"
    return {"metavar": kind.metavar, "type": _checked(kind.parse), "help": text}


def _checked(parse: Callable[[str], str]) -> Callable[[str], str]:
    """Return the argparse type for values of a kind."""

    def checked(text: str) -> str:
        try:
            return parse(clean_argument(text))
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return checked


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
    if not options["project"]:
        return "name runs, or a project: --project SLUG"
    if options["format"] in list(RunFormat):
        return f"{options['format']} is a format of runs; of the list: {', '.join(ListFormat)}"
    return ""
