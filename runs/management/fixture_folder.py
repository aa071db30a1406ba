"""Writes fixtures into a folder, and checks fixtures (`agentops fixture verify` and `agentops verify_fixtures`)."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser

from agentops.accounts.command_base import EXIT_NOT_COMPLETED, EXIT_REFUSED, EXIT_UNREADABLE, AgentopsCommand, printable
from runs.fixtures import fixture_files
from runs.fixtures.format import Fixture
from runs.fixtures.text_files import FixtureError
from runs.fixtures.verification import Verification, files_in
from runs.fixtures.verification import verify as verify_file
from runs.management.agent.arguments import unusable
from runs.management.output import raise_faults

#: Characters that names of fixtures do not have.
_UNFIT = re.compile(r"[^A-Za-z0-9._-]+")


def fixture_name(text: str) -> str:
    """Return a text as a name of a fixture: unsuitable characters become dashes."""
    return _UNFIT.sub("-", text).lstrip("._-")[:128] or "fixture"


def write_fixtures(fixtures: Mapping[str, Fixture], folder: Path, *, force: bool) -> list[Path]:
    """Write the fixtures, by name, into a folder, and return their files. Readers never see a partial file.

    Raises `CommandError` and writes nothing if a file exists, unless `force`.
    """
    paths = free_paths(list(fixtures), folder, force=force)
    new_paths = [path.with_name(f".{path.name}.{os.getpid()}") for path in paths]
    try:
        # Write all files before replacing the first, so that a full disk changes nothing.
        for new_path, fixture in zip(new_paths, fixtures.values(), strict=True):
            new_path.write_text(fixture_files.dumps(fixture), encoding="utf-8")
        for new_path, path in zip(new_paths, paths, strict=True):
            new_path.replace(path)
    except OSError as error:
        raise _unwritable(error, folder) from error
    finally:
        for new_path in new_paths:
            new_path.unlink(missing_ok=True)
    return paths


def free_paths(names: Sequence[str], folder: Path, *, force: bool) -> list[Path]:
    """Create the folder, and return the paths for these fixtures. Raises `CommandError` if a file exists."""
    paths = [folder / f"{name}.json" for name in names]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        existing = [path for path in paths if path.exists()]
    except OSError as error:
        raise _unwritable(error, folder) from error
    if existing and not force:
        raise CommandError(f"{existing[0]} already exists; pass --force to overwrite it", returncode=EXIT_REFUSED)
    return paths


def _unwritable(error: OSError, folder: Path) -> CommandError:
    problem = f"{error.filename or folder}: {error.strerror or 'cannot be written'}"
    return CommandError(problem, returncode=EXIT_UNREADABLE)


def facts_of(path: Path, fixture: Fixture) -> dict[str, Any]:
    """Return the facts of a file: its numbers of calls, and whether it marks the end of the recording."""
    calls = len(fixture.answers)
    tools = sum(len(call.tool_calls) for call in fixture.answers)
    return {"file": str(path), "calls": calls, "tool_calls": tools, "ends": fixture.ends_after(calls)}


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
        faults += [CommandError(f"{one.file}: {each}", returncode=EXIT_NOT_COMPLETED) for each in one.problems]
    _report(command, checked, as_json=options["json"])
    raise_faults(command, faults)


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
