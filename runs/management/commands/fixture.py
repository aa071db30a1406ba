"""`agentops fixture`: convert and check recordings for the `fixture` provider, and print their JSON Schema."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from agentops.accounts.command_base import EXIT_REFUSED, AddSubcommand, AgentopsCommand, printable
from runs.fixtures import fixture_files as fixtures
from runs.fixtures.claude_lines import ConversionSummary
from runs.fixtures.convert import Conversion, convert_file
from runs.fixtures.format import Fixture, FixtureError
from runs.management import fixture_folder
from runs.management.agent.arguments import unusable
from runs.management.fixture_folder import facts_of, fixture_name, write_fixtures


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
        fixture_folder.add_arguments(add("verify", self.verify, help=fixture_folder.HELP))

    def convert(self, options: dict[str, Any]) -> None:
        """Convert all files. Write nothing if a file cannot be converted."""
        recordings: dict[str, Fixture] = {}
        summaries: list[tuple[str, ConversionSummary]] = []
        for file in options["files"]:
            for name, fixture, summary in _convert(file):
                if name in recordings:
                    raise CommandError(f"{file}: another recording is also named {name!r}", returncode=EXIT_REFUSED)
                recordings[name] = fixture
                summaries.append((file, summary))
        paths = write_fixtures(recordings, options["output"], force=options["force"])
        rows = [facts_of(path, fixture) for path, fixture in zip(paths, recordings.values(), strict=True)]
        self._report_conversion(rows, summaries, options)

    def schema(self, options: dict[str, Any]) -> None:
        self.write_json(fixtures.json_schema())

    def verify(self, options: dict[str, Any]) -> None:
        fixture_folder.verify(self, options)

    def _report_conversion(
        self, rows: list[dict[str, Any]], summaries: list[tuple[str, ConversionSummary]], options: dict[str, Any]
    ) -> None:
        """Print a row for each fixture: its source, its numbers of answers, and the reasons for omitted ones."""
        if options["json"]:
            lines = []
            for row, (source, summary) in zip(rows, summaries, strict=True):
                facts = {"source": source, "answers": summary.answers}
                lines.append({**row, **facts, "left_out": dict(summary.omitted), "notes": list(summary.notes)})
            self.write_json(lines)
            return
        headers = ["source", "answers", "converted", "left out", "tool calls", "ends", "fixture"]
        table = []
        for row, (source, summary) in zip(rows, summaries, strict=True):
            left_out = ", ".join(f"{count} {reason}" for reason, count in summary.omitted.items()) or "none"
            counts = [summary.answers, summary.converted, left_out]
            table.append([source, *counts, row["tool_calls"], row["ends"], row["file"]])
        # Print headers in a pipe too, because the numbers are easily confused.
        labels = [] if self.stdout.isatty() else [[header.upper() for header in headers]]
        self.write_table(headers, [*labels, *table])
        for source, summary in summaries:
            for note in summary.notes:
                self.stdout.write(f"{printable(source)}: {note}")


def _convert(file: str) -> list[Conversion]:
    try:
        conversions = convert_file(Path(file))
    except FixtureError as error:
        raise unusable(error, file) from error
    return [each._replace(name=fixture_name(each.name)) for each in conversions]
