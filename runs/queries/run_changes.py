"""The files that a run changed, from its tool calls and the `file.changed` events of its runner.

The calls are selected by the names of their tools; outputs are read only of calls that edit, and of calls that read a
file that is edited.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, TypeAlias
from uuid import UUID

from django.conf import settings
from django.db.models import OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce

from agentops.base.redaction.redact import DEFAULT as REDACTOR
from runs.changes.apply_patch import BEGIN
from runs.changes.call_facts import CallReader, FileCall
from runs.changes.edit_tools import SHELLS, names_of
from runs.changes.file_edits import NumberedHunk, Opaque
from runs.changes.file_states import Touch
from runs.changes.session_changes import FileChange, SessionFiles
from runs.conversation.transcript import text_of
from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall, RunCommand
from runs.queries.long_texts import JsonText
from runs.statuses import ToolStatus
from timeline import log
from timeline.display import ANSI, clean
from timeline.events import EventType
from timeline.models import Event
from timeline.shown_events import payload_of

#: Maximum calls that edit, calls that read, and events, of a run that are read.
MAX_EDITS, MAX_READS, MAX_EVENTS = 5_000, 5_000, 5_000
#: Characters of arguments and outputs of a run that are read: they are in memory together.
MAX_CHARACTERS = 64 * 1024 * 1024
#: Messages of rules that are skipped in search of the last message of a person.
MAX_NUDGES = 50
#: The value of the parameter `since`.
LAST_MESSAGE = "last_message"
#: Bytes of an output above which it is not read.
MAX_OUTPUT = 4 * 1024 * 1024
_EDIT_USES = ("replace", "write", "patch", "editor", "notebook", "delete", "move")
#: Only these calls may have changed a file.
_TOOK_EFFECT = (ToolStatus.COMPLETED, ToolStatus.UNKNOWN)
_WITHOUT_EFFECT = (ToolStatus.ERROR, ToolStatus.DENIED)
_HEAD = re.compile(r"@@ -(\d{1,9})(?:,\d{1,9})? \+(\d{1,9})(?:,\d{1,9})? @@")
#: A step after all others.
_NO_STEP = 2**31 - 1
#: Calls read at once by their IDs.
_PORTION = 20


#: The path, the change and its event.
_Report: TypeAlias = tuple[str, Opaque, Touch]
#: A call or a reported change, after its step and its order in the step.
_Placed: TypeAlias = tuple[tuple[int, int], FileCall | _Report]


@dataclass(frozen=True)
class ChangeScope:
    """The part of a run whose changes are listed. By default, the whole run."""

    #: Only this step.
    step: int | None = None
    #: Only what follows the last message of a person.
    since_last_message: bool = False


@dataclass(frozen=True)
class RunChanges:
    """The changed files of a run, with secrets masked, ordered by path."""

    files: Sequence[FileChange]
    #: The working directory; empty if it is not known.
    directory: str
    #: Whether the run has more calls or events than are read, so that files may be missing.
    is_cut: bool = False
    #: The number of calls of editing tools that failed or were denied, and so changed nothing.
    without_effect: int = 0


class _Budget:
    """How many characters of calls may still be read."""

    def __init__(self, left: int) -> None:
        self._left = left

    @property
    def is_exceeded(self) -> bool:
        """Return whether calls were left out."""
        return self._left < 0

    def within(self, calls: Iterable[FileCall]) -> Iterator[FileCall]:
        """Yield the calls until they exceed the budget."""
        for call in calls:
            self._left -= _characters(call.arguments) + _characters(call.output)
            if self._left < 0:
                return
            yield call


def _characters(value: Any) -> int:
    """Return the characters of all texts in a JSON value."""
    if isinstance(value, str):
        return len(value)
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return sum(map(_characters, items))


@dataclass
class _RunCalls:
    """The calls and events of a run, in order."""

    edits: list[FileCall] = field(default_factory=list)
    reads: list[FileCall] = field(default_factory=list)
    reports: list[_Report] = field(default_factory=list)
    is_cut: bool = False


def changes_of(run: AgentRun, scope: ChangeScope = ChangeScope()) -> RunChanges:
    """Return the files that a run changed.

    Four queries, three more since the last message, and one for each 20 reads. Ends at `MAX_CHARACTERS` of texts.
    """
    first, last = _bounds(run, scope)
    files = SessionFiles(CallReader(settings.AGENTOPS_EDIT_TOOLS), directory_of(run))
    calls = _calls(run.pk, last)
    history = _RunCalls()
    budget = _Budget(MAX_CHARACTERS)
    history.edits = list(budget.within(_file_calls(calls.filter(_edits()), MAX_EDITS + 1)))
    history.is_cut = len(history.edits) > MAX_EDITS
    del history.edits[MAX_EDITS:]
    paths = set[str]().union(*map(files.paths_of, history.edits))
    history.reads = list(budget.within(_reads(calls, files, paths)))
    history.reports = _reports(run.pk, last)
    is_full = len(history.reads) >= MAX_READS or len(history.reports) >= MAX_EVENTS
    history.is_cut = history.is_cut or is_full or budget.is_exceeded
    _fold(files, history, first)
    failed = AgentRunToolCall.objects.filter(run=run.pk, status__in=_WITHOUT_EFFECT)
    failed = _between(failed.alias(input_text=JsonText("input")), first, last).filter(_edits())
    return RunChanges(files.changes(mask), mask(files.directory), history.is_cut, failed.count())


def directory_of(run: AgentRun) -> str:
    """Return the working directory of a run; empty if it is not known."""
    config = run.agent_config
    places = (config.get("folder"), (config.get("settings") or {}).get("root"))
    return next((place for place in places if isinstance(place, str) and place), "")


def mask(text: str) -> str:
    """Return a text with its secrets masked, also those that escape sequences hide."""
    masked: str = REDACTOR.clean_text(text)[0]
    plain = ANSI.sub("", masked)
    return masked if plain == masked or REDACTOR.clean_text(plain)[0] == plain else clean(text)


def _bounds(run: AgentRun, scope: ChangeScope) -> tuple[int, int | None]:
    """Return the first step of a scope, and the last one; None for all later ones."""
    if scope.step is not None:
        return scope.step, scope.step
    if not scope.since_last_message:
        return 0, None
    last = _last_of_person(run)
    if last is None:
        return 0, None
    answers = AgentRunMessage.objects.filter(run=run, role=AgentRunMessage.Role.ASSISTANT, position__gt=last)
    first = answers.order_by("position").values_list("step_number", flat=True).first()
    return (_NO_STEP if first is None else first), None


def _last_of_person(run: AgentRun) -> int | None:
    """Return the position of the last message of a person, or of the program that started the run; None without one.

    Messages of policies and hooks do not count.
    """
    by_rule = Q(created_by__startswith="policy:") | Q(created_by__startswith="hook:")
    sent = RunCommand.objects.filter(by_rule, run=run, type=RunCommand.Type.SEND).values_list("payload", flat=True)
    texts = {payload.get("message") for payload in sent}
    messages = AgentRunMessage.objects.filter(run=run, role=AgentRunMessage.Role.USER, rolled_back_at=None)
    for row in messages.order_by("-position")[: len(texts) + MAX_NUDGES]:
        if text_of(row.content) not in texts:
            return row.position
    return None


def _calls(run_id: UUID, last: int | None) -> QuerySet[AgentRunToolCall]:
    calls = AgentRunToolCall.objects.filter(run=run_id, status__in=_TOOK_EFFECT)
    return _between(calls.alias(input_text=JsonText("input")), 0, last)


def _between(calls: QuerySet[AgentRunToolCall], first: int, last: int | None) -> QuerySet[AgentRunToolCall]:
    calls = calls.filter(step_number__gte=first) if first else calls
    return calls if last is None else calls.filter(step_number__lte=last)


def _edits() -> Q:
    """Return the condition for calls that edit files: by tools that do, or by commands with a patch."""
    declared = settings.AGENTOPS_EDIT_TOOLS
    shells = [name for name in SHELLS if name not in declared]
    return Q(tool_name__in=names_of(_EDIT_USES, declared)) | Q(tool_name__in=shells, input_text__contains=BEGIN)


def _file_calls(calls: QuerySet[AgentRunToolCall], limit: int, *, has_output: bool = True) -> Iterator[FileCall]:
    columns = ("pk", "step_number", "tool_name", "status", "input", "changed_arguments")
    rows: Iterable[Any] = calls.order_by("step_number", "pk").values(*columns, *(("output",) if has_output else ()))
    for row in rows[:limit].iterator(_PORTION):  # type: ignore[index]
        changed = row["changed_arguments"]
        arguments = row["input"] if changed is None else REDACTOR.clean(changed)[0]
        yield FileCall(
            str(row["pk"]),
            row["step_number"],
            row["tool_name"],
            arguments,
            row.get("output"),
            is_unknown=row["status"] == ToolStatus.UNKNOWN,
        )


def _reads(calls: QuerySet[AgentRunToolCall], files: SessionFiles, paths: set[str]) -> Iterator[FileCall]:
    """Yield the calls that read one of these paths, with their outputs, in order."""
    if not paths:
        return
    reading = calls.filter(tool_name__in=names_of(("read",), settings.AGENTOPS_EDIT_TOOLS))
    reading = reading.filter(status=ToolStatus.COMPLETED).exclude(output_bytes__gt=MAX_OUTPUT)
    wanted = [
        call.id for call in _file_calls(reading, MAX_READS, has_output=False) if files.path_read_by(call) in paths
    ]
    for start in range(0, len(wanted), _PORTION):
        portion = calls.filter(pk__in=wanted[start : start + _PORTION])
        yield from _file_calls(portion, _PORTION)


def _reports(run_id: UUID, last: int | None) -> list[_Report]:
    """Return the changes that the runner reported. An event outside a step belongs to the step before it."""
    before = Event.objects.filter(log_id=OuterRef("log_id"), seq__lt=OuterRef("seq"), step__isnull=False)
    step = Coalesce("step", Subquery(before.order_by("-seq").values("step")[:1]), 0)
    events = log.events_of(run_id).filter(type=EventType.FILE_CHANGED).annotate(place=step)
    if last is not None:
        events = events.filter(place__lte=last)
    reports: list[_Report] = []
    for event in events[:MAX_EVENTS]:
        reports += _report(event, event.place)
    return reports


def _report(event: Event, step: int) -> Iterator[_Report]:
    payload = payload_of(event)
    path, change, old = payload.get("path"), _word(payload.get("change")), payload.get("old_path")
    if not isinstance(path, str) or not path:
        return
    touch = Touch(step, "", str(event.ref_id) if event.ref_id else "")
    reason = "The runner reported this change."
    if isinstance(old, str) and old and old != path:
        yield old, Opaque(old, reason, change="deleted"), touch
        change = "added"
    hunks = tuple(_hunks(payload.get("diff")))
    counts = _count(payload.get("additions")), _count(payload.get("deletions"))
    yield path, Opaque(path, reason, hunks, change, *counts), touch


def _word(change: Any) -> str:
    words = {"created": "added", "add": "added", "new": "added", "removed": "deleted", "delete": "deleted"}
    text = change if isinstance(change, str) else ""
    return words.get(text, text if text in ("added", "deleted") else "modified")


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _hunks(diff: Any) -> Iterator[NumberedHunk]:
    """Yield the hunks of a unified diff. A diff that the runner has cut may lack its last lines."""
    start: tuple[int, int] | None = None
    lines: list[str] = []
    for line in diff.split("\n") if isinstance(diff, str) else ():
        if match := _HEAD.match(line):
            if start is not None:
                yield NumberedHunk(*start, lines)
            start, lines = (int(match[1]), int(match[2])), []
        elif start is not None and line[:1] in ("+", "-", " "):
            lines.append(line)
    if start is not None:
        yield NumberedHunk(*start, lines)


def _fold(files: SessionFiles, history: _RunCalls, first: int) -> None:
    """Read all calls and events in order. What comes before step `first` only tells the state at the beginning."""
    calls = sorted([*history.edits, *history.reads], key=lambda call: (call.step, call.id))
    is_inside = first == 0
    placed: list[_Placed] = [((call.step, 0), call) for call in calls]
    placed += [((report[2].step or 0, 1), report) for report in history.reports]
    for (step, _), item in sorted(placed, key=itemgetter(0)):
        if not is_inside and step >= first:
            files.begin_scope()
            is_inside = True
        if isinstance(item, FileCall):
            files.add(item)
        else:
            files.report(*item)
    if not is_inside:
        files.begin_scope()


def change_json(change: FileChange) -> Mapping[str, Any]:
    """Return a changed file as in the API."""
    return {
        "path": change.path,
        "old_path": change.old_path or None,
        "status": change.status.value,
        "is_whole": change.is_whole,
        "additions": change.additions,
        "deletions": change.deletions,
        "steps": change.steps,
        "calls": [touch.call_id for touch in change.touches if touch.call_id],
        "notes": list(change.notes),
        "not_in_patch": change.why_no_patch,
        "hunks": [
            {
                "old_start": hunk.old_start,
                "new_start": hunk.new_start,
                "step": hunk.step,
                "is_uncertain": hunk.is_uncertain,
                "lines": [f"{line.sign}{line.text}" for line in hunk.lines],
            }
            for hunk in change.hunks
        ],
    }
