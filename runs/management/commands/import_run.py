"""`agentops import_run`, also `agentops import`: import the transcripts of other programs as runs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import transaction

from agentops.accounts.access import Action
from agentops.accounts.command_base import (
    EXIT_INVALID,
    EXIT_UNREADABLE,
    EXIT_USAGE,
    AgentopsCommand,
    operator,
    printable,
)
from agentops.accounts.current_project import add_project, chosen_project
from agentops.accounts.models import Project
from agentops.base import database_clock
from runs.external.import_runs import ImportReport, retry_conflicts
from runs.external.import_states import note_import
from runs.external.importers import formats
from runs.external.importers.base import ImportFile, ImportRefused, UnreadableFile
from runs.external.importers.claude_code_sessions import file_of_agent, is_about_agent
from runs.external.importers.stored_lines import LeftOut
from runs.external.prepared_import import prepared
from runs.external.watcher import session_files
from runs.management.output import raise_faults, show_progress, write_rows
from runs.models import AgentRun
from runs.upkeep import retention


class Command(AgentopsCommand):
    help = (
        "Import transcripts of other agent programs as runs. Lines that are damaged are left out and named;"
        " importing a file again, or a longer version of it, adds only what is new."
        " Retention counts from the import, or from later events, and never from the times in the file."
        " The exit code is the highest of all files."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("files", metavar="FILE", nargs="+", help="session files, and directories with such files")
        add_project(parser)
        parser.add_argument("--format", metavar="NAME", default="", help="default: recognised by the content")
        parser.add_argument("--strict", action="store_true", help="refuse a file of which a line is damaged")
        parser.add_argument("--dry-run", action="store_true", help="read and check the files, but store nothing")
        parser.add_argument("--json", action="store_true", help="print JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        known = [importer.name for importer in formats.importers()]
        if options["format"] and options["format"] not in known:
            text = f"no format is called {options['format']!r}: known are {', '.join(known)}"
            raise CommandError(printable(text), returncode=EXIT_USAGE)
        project = chosen_project(options, Action.INGEST)
        rows: list[dict[str, Any]] = []
        faults: list[CommandError] = []
        for path, is_named in _files(options["files"]):
            try:
                rows += self._import(project, path, options)
            except ImportRefused as error:
                if not is_named:
                    self.stderr.write(f"agentops: not imported: {printable(error)}")
                    continue
                code = EXIT_UNREADABLE if isinstance(error, UnreadableFile) else EXIT_INVALID
                faults.append(CommandError(printable(error), returncode=code))
        write_rows(self, rows, options)
        raise_faults(self, faults)

    def _import(self, project: Project, path: Path, options: dict[str, Any]) -> list[dict[str, Any]]:
        """Import a file, and return a row for each of its runs."""
        file = ImportFile.open(path, is_strict=options["strict"])
        importer = formats.find(file, options["format"])
        # Before the transaction: the file may be large.
        size = _size_of(path)

        def progress(report: ImportReport) -> None:
            show_progress(self, f"{printable(path.name)}: {report.events + report.known_events} events")

        def store() -> tuple[list[dict[str, Any]], LeftOut]:
            importing = prepared(project, file, importer, by=operator(), progress=progress)
            with importing as import_all, transaction.atomic():
                report = import_all()
                kept_until = retention.kept_until(project, database_clock.now())
                rows = [_row(run, importer.name, report, kept_until) for run in report.runs]
                # A file that is imported repeatedly, perhaps each night, is listed only if it has new content.
                if report.events or report.opened:
                    note_import(project, report, name=path.name, by=operator(), format_name=importer.name, **size)
                transaction.set_rollback(options["dry_run"])
            return rows, report.left_out

        try:
            rows, left_out = retry_conflicts(store, file.refuse)
        finally:
            if self.stderr.isatty():
                # Clear the line of the progress.
                self.stderr.write("\r\x1b[K", ending="")
        for text in left_out.sentences():
            self.stderr.write(f"agentops: {printable(f'{path.name}: {text}')}")
        return [{**row, "left_out": left_out.count} for row in rows] if options["json"] else rows


def _files(names: Sequence[str]) -> Iterator[tuple[Path, bool]]:
    """Yield the files to import, and whether each was named explicitly. Sessions precede their sub-agents.

    Raises `CommandError` for a directory without transcripts.
    """
    for path in map(Path, names):
        if path.is_dir():
            files = sorted(session_files([path], 0.0), key=lambda file: (len(file.parts), file))
            if not files:
                raise CommandError(f"{printable(path)} contains no session files", returncode=EXIT_UNREADABLE)
            yield from ((file, False) for file in files)
        elif not (is_about_agent(path) and file_of_agent(path).exists()):
            # A file about a sub-agent is read together with the file of the sub-agent, if that exists.
            yield path, True


def _size_of(path: Path) -> dict[str, Any]:
    """Return the size and the checksum of a file; empty for a directory that is imported as one."""
    if not path.is_file():
        return {}
    with path.open("rb") as content:
        return {"size": path.stat().st_size, "sha256": hashlib.file_digest(content, "sha256").digest()}


def _row(run: AgentRun, format_: str, report: ImportReport, kept_until: datetime | None) -> dict[str, Any]:
    run.refresh_from_db()
    state = "new" if run.pk in report.opened else "continued" if report.events_of[run.pk] else "unchanged"
    return {
        "run": str(run.pk),
        "format": format_,
        "messages": run.messages.count(),
        "tool_calls": run.tool_calls.count(),
        "tokens": run.input_tokens + run.output_tokens,
        "state": state,
        "kept_until": "forever" if kept_until is None else kept_until.date().isoformat(),
    }
