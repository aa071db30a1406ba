"""`agentops fixture`: convert and check recordings for the `fixture` provider, and print their JSON Schema."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from agentops.projects.management.base import EXIT_REFUSED, EXIT_UNREADABLE, AddSubcommand, AgentopsCommand, printable
from runs.fixtures import fixture_files as fixtures
from runs.fixtures.converting.conversion_summary import ConversionSummary
from runs.fixtures.converting.convert import Conversion, convert_file
from runs.fixtures.format import Fixture, FixtureError
from runs.management.agent.input_files import unusable

UNFIT = re.compile(r"[^A-Za-z0-9._-]+")


class Command(AgentopsCommand):
    help = "Convert and check recordings for the fixture provider."

    def subcommands(self, add: AddSubcommand) -> None:
        convert = add("convert", self.convert, help="Convert recorded sessions to fixtures.")
        convert.add_argument("files", metavar="FILE", nargs="+", help="Claude Code .jsonl or tau-bench .json")
        convert.add_argument("--output", metavar="DIR", type=Path, required=True, help="created if missing")
        convert.add_argument("--force", action="store_true", help="overwrite existing fixtures")
        convert.add_argument("--json", action="store_true", help="print JSON")
        schema = add("schema", self.schema, help="Print the JSON Schema of fixture files.")
        schema.add_argument("--json", action="store_true", help="no effect: the schema is JSON")
        verify = add("verify", self.verify, help="Check fixture files.")
        verify.add_argument("files", metavar="FILE", nargs="+")
        verify.add_argument("--json", action="store_true", help="print JSON")

    def convert(self, options: dict[str, Any]) -> None:
        """Convert all files, or write nothing if one of them cannot be converted."""
        recordings: dict[str, Fixture] = {}
        summaries: list[tuple[str, ConversionSummary]] = []
        for file in options["files"]:
            for name, fixture, summary in _convert(file):
                if name in recordings:
                    raise CommandError(f"{file}: another recording is also named {name!r}", returncode=EXIT_REFUSED)
                recordings[name] = fixture
                summaries.append((file, summary))
        paths = _write(recordings, options["output"], force=options["force"])
        rows = [_row(path, fixture) for path, fixture in zip(paths, recordings.values(), strict=True)]
        self._report_conversion(rows, summaries, options)

    def schema(self, options: dict[str, Any]) -> None:
        self.write_json(fixtures.json_schema())

    def verify(self, options: dict[str, Any]) -> None:
        """Check every file. The exit code is the highest of all files."""
        rows, faults = [], []
        for file in options["files"]:
            try:
                rows.append(_row(Path(file), fixtures.load(Path(file))))
            except FixtureError as error:
                faults.append(unusable(error, file))
        self._report(rows, options)
        for fault in faults[:-1]:
            self.stderr.write(f"agentops: {printable(fault)}")
        if faults:
            raise CommandError(printable(faults[-1]), returncode=max(fault.returncode for fault in faults))

    def _report_conversion(
        self, rows: list[dict[str, Any]], summaries: list[tuple[str, ConversionSummary]], options: dict[str, Any]
    ) -> None:
        """Print a line for each fixture: how many answers were converted, and why others were left out."""
        if options["json"]:
            lines = [
                row | {"source": source, "answers": summary.answers, "left_out": dict(summary.omitted),
                       "notes": list(summary.notes)}
                for row, (source, summary) in zip(rows, summaries, strict=True)
            ]  # fmt: skip
            return self.write_json(lines)
        headers = ["source", "answers", "converted", "left out", "tool calls", "ends", "fixture"]
        table = [
            [
                source,
                summary.answers,
                summary.converted,
                _omitted_text(summary),
                row["tool_calls"],
                row["ends"],
                row["file"],
            ]
            for row, (source, summary) in zip(rows, summaries, strict=True)
        ]
        # With headers in a pipe too, because the numbers are easily confused.
        labels = [] if self.stdout.isatty() else [[header.upper() for header in headers]]
        self.write_table(headers, [*labels, *table])
        for source, summary in summaries:
            for note in summary.notes:
                self.stdout.write(f"{printable(source)}: {note}")
        return None

    def _report(self, rows: list[dict[str, Any]], options: dict[str, Any]) -> None:
        if options["json"]:
            self.write_json(rows)
        elif rows:
            self.write_table(list(rows[0]), [list(row.values()) for row in rows])


def _convert(file: str) -> list[Conversion]:
    try:
        conversions = convert_file(Path(file))
    except FixtureError as error:
        raise unusable(error, file) from error
    return [each._replace(name=UNFIT.sub("-", each.name).lstrip("._-") or "fixture") for each in conversions]


def _write(recordings: dict[str, Fixture], folder: Path, *, force: bool) -> list[Path]:
    paths = [folder / f"{name}.json" for name in recordings]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        existing = [path for path in paths if path.exists()]
        if existing and not force:
            raise CommandError(f"{existing[0]} already exists; pass --force to overwrite it", returncode=EXIT_REFUSED)
        for path, fixture in zip(paths, recordings.values(), strict=True):
            # A reader finds the old file or the new one, never half of it.
            fresh = path.with_name(f".{path.name}.{os.getpid()}")
            fresh.write_text(fixtures.dumps(fixture))
            fresh.replace(path)
    except OSError as error:
        problem = f"{error.filename or folder}: {error.strerror or 'cannot be written'}"
        raise CommandError(problem, returncode=EXIT_UNREADABLE) from error
    return paths


def _omitted_text(summary: ConversionSummary) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in summary.omitted.items()) or "none"


def _row(path: Path, fixture: Fixture) -> dict[str, Any]:
    """Return the facts of a file: its calls, and whether it marks the end of the recording."""
    calls = len(fixture.answers)
    tools = sum(len(call.tool_calls) for call in fixture.answers)
    return {"file": str(path), "calls": calls, "tool_calls": tools, "ends": fixture.ends_after(calls)}
