"""`agentops fixture verify` and `agentops verify_fixtures`: check fixtures, file by file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser

from agentops.accounts.management.base import EXIT_NOT_COMPLETED, AgentopsCommand, printable
from runs.fixtures.text_files import FixtureError
from runs.fixtures.verification import Finding, Verification, files_in
from runs.fixtures.verification import verify as verify_file
from runs.management.agent.input_files import unusable
from runs.management.recordings.fixture_folder import facts_of

HELP = (
    "Check fixtures: that each file can be played, every tool call has a result, and no secret is in it. "
    "The exit code is the highest of all files."
)


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("files", metavar="PATH", nargs="+", help="fixture, or a folder of fixtures")
    parser.add_argument("--json", action="store_true", help="print JSON")


def verify(command: AgentopsCommand, options: dict[str, Any]) -> None:
    """Check every file of `options["files"]`, and print a line for each. Raises `CommandError` if a file fails."""
    checked: list[Verification] = []
    faults: list[CommandError] = []
    for name in options["files"]:
        path = Path(name)
        try:
            files = files_in(path)
        except FixtureError as error:
            faults.append(unusable(error, name))
            continue
        for file in files:
            try:
                checked.append(verify_file(file, path if file != path else None))
            except FixtureError as error:
                faults.append(unusable(error, str(file)))
    for one in checked:
        faults += [_fault_of(one, problem) for problem in one.problems]
    _report(command, checked, as_json=options["json"])
    for fault in faults[:-1]:
        command.stderr.write(f"agentops: {printable(fault)}")
    if faults:
        raise CommandError(printable(faults[-1]), returncode=max(fault.returncode for fault in faults))


def _fault_of(one: Verification, problem: Finding) -> CommandError:
    return CommandError(f"{one.file}: {problem}", returncode=EXIT_NOT_COMPLETED)


def _report(command: AgentopsCommand, checked: list[Verification], *, as_json: bool) -> None:
    rows = [facts_of(one.file, one.fixture) | {"form": one.form} for one in checked]
    if as_json:
        findings = [
            {"problems": [str(each) for each in one.problems], "remarks": [str(each) for each in one.remarks]}
            for one in checked
        ]
        command.write_json([row | more for row, more in zip(rows, findings, strict=True)])
        return
    if rows:
        command.write_table(list(rows[0]), [list(row.values()) for row in rows])
    for one in checked:
        for remark in one.remarks:
            command.stderr.write(printable(f"{one.file}: {remark}"))
