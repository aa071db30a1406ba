"""`agentops run diff`: print the files that a run changed, as diffs, as a summary, as a patch or as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from django.core.management.base import CommandError

from agentops.accounts.command_base import EXIT_USAGE, AgentopsCommand, printable
from runs.changes.git_patch import hunk_head, patch_portions
from runs.changes.session_changes import FileChange, total
from runs.changes.unified import HunkLine
from runs.management.agent.references import find_run
from runs.queries.run_changes import ChangeScope, RunChanges, change_json, changes_of
from timeline.display import make_legible

#: The colours of lines on a terminal, by their sign; of heads, and of names of files.
_COLOURS = {"+": "\x1b[32m", "-": "\x1b[31m"}
_HEAD, _NAME, _END = "\x1b[36m", "\x1b[1m", "\x1b[0m"
Paint = Callable[[str, str], str]


def diff(command: AgentopsCommand, options: dict[str, Any]) -> None:
    """Print the changes of a run. Only a terminal gets colours."""
    if options["since_last_message"] and options["step"] is not None:
        raise CommandError("--step and --since-last-message cannot be combined", returncode=EXIT_USAGE)
    scope = ChangeScope(options["step"], options["since_last_message"])
    run_changes = changes_of(find_run(options["run"], options["project"]), scope)
    if options["json"]:
        command.write_json([change_json(change) for change in run_changes.files])
    elif options["patch"]:
        for portion in patch_portions(run_changes.files):
            command.stdout.write(portion, ending="")
    elif options["stat"]:
        _write_stat(command, run_changes)
    else:
        paint = _painted if command.stdout.isatty() else _plain
        for line in _lines(run_changes, paint):
            command.stdout.write(line)


def _write_stat(command: AgentopsCommand, run_changes: RunChanges) -> None:
    rows = [
        (change.status.value, _name(change), _counts(change), ", ".join(map(str, change.steps)))
        for change in run_changes.files
    ]
    if rows:
        command.write_table(["status", "file", "lines", "steps"], rows)
    if command.stdout.isatty():
        command.stdout.write(_summary(run_changes))


def _summary(run_changes: RunChanges) -> str:
    additions, deletions = total(run_changes.files)
    count = len(run_changes.files)
    return f"{count} file{'' if count == 1 else 's'}, +{additions} -{deletions} lines"


def _counts(change: FileChange) -> str:
    counts = [("+", change.additions), ("-", change.deletions)]
    return " ".join(f"{sign}{count}" for sign, count in counts if count is not None)


def _name(change: FileChange) -> str:
    return f"{change.old_path} -> {change.path}" if change.old_path else change.path


def _lines(run_changes: RunChanges, paint: Paint) -> Iterator[str]:
    """Yield the diffs of all files, with visible control characters."""
    for change in run_changes.files:
        yield paint(printable(f"{change.status.value} {_name(change)} ({_counts(change)})"), _NAME)
        for note in [*change.notes, *([f"Not in the patch. {change.why_no_patch}"] if change.why_no_patch else [])]:
            yield f"# {printable(note)}"
        for hunk in change.hunks:
            step = f" step {hunk.step}" if hunk.step is not None else ""
            uncertain = ", outcome unknown" if hunk.is_uncertain else ""
            yield paint(f"{hunk_head(hunk)}{step}{uncertain}", _HEAD)
            yield from (paint(_line(line), _COLOURS.get(line.sign, "")) for line in hunk.lines)
    if run_changes.files:
        yield _summary(run_changes)
    if run_changes.is_cut:
        yield "This run has more or longer edits than are read. The later changes are missing."


def _line(line: HunkLine) -> str:
    return line.sign + make_legible(line.text.replace("\r", "\u240d")).replace("\n", "\u2424")


def _painted(text: str, colour: str) -> str:
    return f"{colour}{text}{_END}" if colour else text


def _plain(text: str, colour: str) -> str:
    return text
