"""The output of commands: rows and results as text or JSON, progress on a terminal, and the faults of several files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.core.management.base import CommandError

from agentops.accounts.command_base import AgentopsCommand, printable


def write_rows(
    command: AgentopsCommand,
    rows: Sequence[dict[str, Any]],
    options: dict[str, Any],
    columns: Sequence[str] = (),
    *,
    optional: Sequence[str] = (),
) -> None:
    """Print rows with all their members as JSON, or as a table of these columns (default: all).

    On a terminal, the columns in `optional` may be left out, the first one first.
    """
    if options["json"]:
        command.write_json(rows)
        return
    names = columns or list(rows[0] if rows else ())
    if names:
        cells = [[row[name] for name in names] for row in rows]
        headers, less = ([name.replace("_", " ") for name in each] for each in (names, optional))
        command.write_table(headers, cells, optional=less)
    elif command.stdout.isatty():
        command.stdout.write("nothing to list")


def write_result(command: AgentopsCommand, text: str, options: dict[str, Any], facts: object) -> None:
    """Print the result of a command: `facts` as JSON, or the text."""
    if options["json"]:
        command.write_json(facts)
    else:
        command.stdout.write(text)


def show_progress(command: AgentopsCommand, text: str) -> None:
    """Show a line on a terminal that the next line overwrites."""
    if command.stderr.isatty():
        command.stderr.write(f"\r{text}", ending="")
        command.stderr.flush()


def raise_faults(command: AgentopsCommand, faults: Sequence[CommandError]) -> None:
    """Print all faults but the last, and raise `CommandError` with the last one and the highest exit code."""
    for fault in faults[:-1]:
        command.write_error(printable(fault))
    if faults:
        raise CommandError(printable(faults[-1]), returncode=max(fault.returncode for fault in faults))
