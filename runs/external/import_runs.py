"""Imports the runs and events of a file, all or nothing. A repeated import adds only new events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import groupby, islice
from typing import TypeVar
from uuid import UUID

from django.db import IntegrityError, OperationalError, transaction
from django.db.models import F
from django.db.models.functions import Coalesce

from agentops.accounts.models import Project
from agentops.base import database_clock
from runs.external import child_runs, given_titles, handlers, origins
from runs.external.child_runs import FamilyNews
from runs.external.event_input import IncomingEvent, RejectedEvent
from runs.external.importers.base import GrowingEvent, ImportedRun, Importer, ImportFile, Item
from runs.external.importers.import_budget import budget_of, read_counted
from runs.external.importers.reading.left_out import LeftOut
from runs.external.model_calls import CallReports, CallsChanged
from runs.external.projection import Projection
from runs.external.reported_usage import read_cost
from runs.lifecycle import approval_rows, reported_runs
from runs.lifecycle.reported_runs import ReportedRun
from runs.models import AgentRun, AgentRunToolCall, ExternalRun
from runs.statuses import RunStatus, ToolStatus, WaitReason
from timeline import log
from timeline.events import EventType, Payload
from timeline.events.run import RunCompleted, RunFailed, RunPhase, RunStarted, RunStopped, RunWaiting
from timeline.models import Source

T = TypeVar("T")
#: Events written per batch, so that memory does not grow with the file.
CHUNK = 200
#: Attempts per file if other imports conflict with it.
ATTEMPTS = 4
DEADLOCK = "40P01"  # PostgreSQL's error code for deadlock_detected


@dataclass
class ImportReport:
    """The result of an import."""

    #: The runs of the file, new and existing, in the order of the file.
    runs: list[AgentRun] = field(default_factory=list)
    #: IDs of the runs that the import created.
    opened: set[UUID] = field(default_factory=set)
    #: New events by run.
    events_of: Counter[UUID] = field(default_factory=Counter)
    new_runs: int = 0
    events: int = 0
    #: Number of events that were imported before.
    known_events: int = 0
    #: News that may link children to their parents, once the runs are in the site's database.
    family: FamilyNews = field(default_factory=FamilyNews)
    #: The parts of the file that were not imported.
    left_out: LeftOut = field(default_factory=LeftOut)


Progress = Callable[[ImportReport], None]


class NotImported(ValueError):
    """The project has a run with this ID that was not imported, or that is being deleted."""


class ImportHindered(NotImported):
    """All attempts conflicted with other imports. A later attempt may succeed."""


def again_if_opened(attempt: Callable[[], T], refuse: Callable[[str], Exception] = ImportHindered) -> T:
    """Call `attempt`, which imports in one transaction, and retry it after a conflict with a concurrent import.

    Conflicts: the other import opened the same run or reported the same model calls, the row that counted the calls was
    removed, or a deadlock. After the last attempt, raises `refuse(reason)`.
    """
    for _ in range(ATTEMPTS):
        try:
            return attempt()
        except (IntegrityError, OperationalError, CallsChanged) as error:
            # The other import has committed, or will commit. The next attempt continues its runs.
            if isinstance(error, OperationalError) and getattr(error.__cause__, "sqlstate", None) != DEADLOCK:
                raise
            last = error
    raise refuse("other imports report the same calls at the same time: import the file again") from last


def import_file(
    project: Project,
    file: ImportFile,
    importer: Importer,
    *,
    by: str,
    progress: Progress = lambda report: None,
    watch: Callable[[], None] | None = None,
) -> ImportReport:
    """Import a file into a project. Raises `ImportRefused`, and then nothing is imported.

    `progress` is called inside the transaction, after each chunk and at the end of each run. `watch` is called there
    too, and also while the file is read. Both may raise.
    """

    def after_chunk(report: ImportReport) -> None:
        budget.check()
        progress(report)

    try:
        with budget_of(file, watch) as budget:
            report = import_items(project, read_counted(importer, file), by=by, progress=after_chunk)
    except RejectedEvent as error:
        raise file.refuse(error.detail, pointer=error.pointer) from error
    except NotImported as error:
        raise file.refuse(str(error)) from error
    report.left_out = file.left_out
    return report


@transaction.atomic
def import_items(
    project: Project,
    items: Iterable[Item],
    *,
    by: str,
    is_live: bool = False,
    progress: Progress = lambda report: None,
    parents: Mapping[str, AgentRun] | None = None,
) -> ImportReport:
    """Import runs and their events, all or nothing. Raises `RejectedEvent` or `NotImported`.

    `is_live`: sessions that have not ended are running, not waiting. `parents`: parent runs that were not imported, by
    the reference that imported runs use for them.
    """
    report = ImportReport()
    imports: dict[str, _RunImport] = {}
    for is_head, group in groupby(items, key=lambda item: isinstance(item, ImportedRun)):
        if is_head:
            _open(project, imports, group, by=by, report=report, parents=parents or {})
        else:
            for reference, events in groupby(group, key=lambda item: item.run_ref):
                for chunk in _chunks(events):
                    imports[reference].take(chunk, report)
                    progress(report)
    if not is_live:
        _note_import([each.run.pk for each in imports.values() if each.run.pk not in report.opened])
    given_titles.give([(each.run, each.head.title) for each in imports.values()])
    origins.settle([run_import.reported(run_import.run.pk in report.opened) for run_import in imports.values()])
    _note_children(imports, report)
    end_joined(report)
    for run_import in reversed(imports.values()):  # children before parents
        if run_import.head.ended or not is_live:
            run_import.end()
            progress(report)
    report.runs = [run_import.run for run_import in imports.values()]
    return report


def _note_import(run_ids: Sequence[UUID]) -> None:
    """Record the new import of existing runs. Their retention starts again now, even if no event was new."""
    for start in range(0, len(run_ids), CHUNK):
        runs = ExternalRun.objects.filter(run__in=run_ids[start : start + CHUNK])
        runs.update(imported_at=database_clock.now())


def _note_children(imports: Mapping[str, _RunImport], report: ImportReport) -> None:
    """Note the runs whose parents are in other files."""
    for one in imports.values():
        if one.head.parent_ref and one.head.parent_ref not in imports and (one.has_news or one.head.parent_call_id):
            report.family.children.append((one.run, one.head))


def end_joined(report: ImportReport) -> None:
    """Link imported children to their parents, and end the children that have ended.

    A child has ended if both its own file and its parent's report it. Children of this import are ended by the import.
    """
    own = {child.pk for child, _ in report.family.children}
    for child in child_runs.join(report.family):
        status = child_runs.end_of(child) if child.pk not in own and not child.state.terminal else None
        # Only an answer without calls can be the last message. Otherwise more may follow, and the child's file ends it.
        if status is not None and child_runs.has_answered(child):
            _RunImport(ImportedRun(run_ref=str(child.external_id), agent="", ended=status), child).end()


def _open(
    project: Project,
    imports: dict[str, _RunImport],
    heads: Iterable[Item],
    *,
    by: str,
    report: ImportReport,
    parents: Mapping[str, AgentRun],
) -> None:
    for head in heads:
        assert isinstance(head, ImportedRun)
        if head.run_ref in imports:
            # A file may contain a run twice. The last entry has the title.
            imports[head.run_ref].head = replace(imports[head.run_ref].head, title=head.title)
            continue
        rows = AgentRun.with_removed.select_for_update(no_key=True, of=("self",))
        run = rows.filter(project=project, external_id=head.run_ref).first()
        if run is not None and run.removed_at is not None:
            raise NotImported(f"the run {head.run_ref!r} is being deleted by retention: import it again later")
        if run is not None and run.source != AgentRun.Source.IMPORT:
            raise NotImported(f"the project has a run {head.run_ref!r} that was not imported")
        parent = imports[head.parent_ref].run if head.parent_ref in imports else parents.get(head.parent_ref)
        if parent is None and head.parent_ref:
            # The parent was imported with another file.
            known = AgentRun.objects.filter(project=project, source=AgentRun.Source.IMPORT)
            parent = known.filter(external_id=head.parent_ref).first()
        if run is None:
            run = reported_runs.open_run(project, _reported(head, parent, by))
            report.new_runs += 1
            report.opened.add(run.pk)
            report.family.adopted += adopt_early_children(run)
        elif parent is not None and run.parent_run_id is None and _can_be_below(run, parent):
            _adopt([run], parent)
        if parent is not None and head.parent_call_id:
            calls = AgentRunToolCall.objects.filter(run=parent, call_id=head.parent_call_id, child_run=None)
            calls.update(child_run=run)
        imports[head.run_ref] = _RunImport(head, run)


def adopt_early_children(run: AgentRun) -> list[AgentRun]:
    """Make a new run the parent of runs of its session whose files were imported earlier. Return these runs."""
    if not run.session_id or run.parent_run_id is not None:
        return []
    runs = AgentRun.objects.select_for_update(no_key=True, of=("self",)).order_by("pk")
    runs = runs.filter(project=run.project_id, source=AgentRun.Source.IMPORT, session_id=run.session_id)
    children = list(runs.filter(parent_run=None, external_id__startswith=f"{run.external_id}:"))
    _adopt(children, run)
    return children


def _can_be_below(run: AgentRun, parent: AgentRun) -> bool:
    """Return whether a parentless run can become a child of `parent`, which is locked here and must not be below it."""
    rows = AgentRun.objects.select_for_update(no_key=True, of=("self",))
    return rows.filter(pk=parent.pk).exists() and not child_runs.is_below(parent.pk, run.pk)


def _adopt(children: Iterable[AgentRun], parent: AgentRun) -> None:
    for child in children:
        child.parent_run = parent
        child.save(update_fields=["parent_run"])
        log.announce_run(child.project_id, child.pk)


def _reported(head: ImportedRun, parent: AgentRun | None, by: str) -> ReportedRun:
    return ReportedRun(
        source=AgentRun.Source.IMPORT,
        external_id=head.run_ref,
        agent=head.agent,
        model=head.model,
        title=head.title,
        session_id=head.session_id,
        parent=parent,
        labels=head.labels,
        by=by,
        created_at=head.created_at,
    )


def _chunks(events: Iterable[Item]) -> Iterator[list[IncomingEvent]]:
    iterator = (event for event in events if isinstance(event, IncomingEvent))
    while chunk := list(islice(iterator, CHUNK)):
        yield chunk


def open_answer(run_id: UUID, stored: Mapping[str, tuple[int, object]]) -> str | None:
    """Return the ID of the event before the answer in progress; None without such an answer."""
    begin = ExternalRun.objects.filter(pk=run_id).values_list("answer_from_seq", flat=True).first()
    return next((event_id for event_id, (seq, _) in stored.items() if seq == begin), None)


@dataclass
class _RunImport:
    """A run that is being imported."""

    head: ImportedRun
    run: AgentRun
    has_news: bool = False
    #: The IDs of the events that this import added, in order.
    added: dict[str, None] = field(default_factory=dict)
    last_at: datetime | None = None
    copied_until: int = 0

    def __post_init__(self) -> None:
        self.calls = CallReports(self.run)

    def reported(self, is_new: bool) -> origins.Reported:
        """Return the origin facts of the run that this import reported."""
        return origins.Reported(self.run, self.head, self.calls, list(self.added), is_new, self.copied_until)

    def take(self, events: list[IncomingEvent], report: ImportReport) -> None:
        """Add the events that the run does not have yet."""
        new_events = list(self._news(events))
        report.known_events += len(events) - len(new_events)
        if not new_events:
            return
        self.calls.begin(new_events)
        projection = Projection.load(self.run, Source.IMPORT)
        projection.calls = self.calls
        if self.run.state is RunStatus.QUEUED:
            begin = RunStarted(session_id=self.head.session_id or None, model=self.head.model or None)
            first_at = next((event.ts for event in new_events if event.ts is not None), None)
            self._apply(projection, begin, self.head.created_at or first_at)
        elif self.run.state is RunStatus.WAITING and self._goes_on(new_events):
            self._apply(projection, RunPhase(status="running", reason="continued"), new_events[0].ts)
        for event in new_events:
            handlers.apply(projection, event)
            if event.is_copied:
                self.copied_until = projection.position
            self.last_at = event.ts or self.last_at
        projection.flush()
        projection.save_state()
        self.has_news = True
        report.family.note(self.run, new_events)
        report.events += len(new_events)
        report.events_of[self.run.pk] += len(new_events)

    def _goes_on(self, new_events: list[IncomingEvent]) -> bool:
        """Return whether the session continued after it began to wait, although the file does not state it.

        A hook reports the wait before the last lines of the file are read. A sub-agent that waits for an approval of
        this site can run other calls in the same period.
        """
        if all(event.type == EventType.IMPORT_LEFT_OUT for event in new_events):
            return False
        if self.run.status_reason == WaitReason.APPROVAL and approval_rows.is_pending(self.run):
            return False
        if new_events[0].type == EventType.RUN_PHASE:
            return False
        waits = log.events_of(self.run.pk).filter(type=EventType.RUN_WAITING).order_by("-seq").first()
        return waits is None or any(event.ts is None or event.ts >= waits.ts for event in new_events)

    def _news(self, events: list[IncomingEvent]) -> Iterator[IncomingEvent]:
        event_ids = [event.event_id for event in events if event.event_id]
        for event in events:
            event_ids += [event.begin_id, *event.shorter_ids] if isinstance(event, GrowingEvent) else []
        stored = log.stored_event_ids(self.run.pk, event_ids)
        open_id = open_answer(self.run.pk, stored)
        # Events added by this import do not belong to an earlier version of the file.
        known = stored.keys() - self.added.keys()
        for event in events:
            news = event.news(known, open_id) if isinstance(event, GrowingEvent) else event
            if news is None or event.event_id in known or event.event_id in self.added:
                continue
            if event.event_id:
                self.added[event.event_id] = None
            yield news

    def end(self) -> None:
        """Append the status at the end of the file: the final status, or waiting.

        The outcome of a call without a result is unknown.
        """
        if self.run.is_final or not (self.has_news or self.head.ended):
            return
        if self.last_at is None:
            # Its events came with earlier requests.
            last = log.events_of(self.run.pk).order_by("-seq").first()
            self.last_at = last.ts if last is not None else None
        projection = Projection.load(self.run, Source.IMPORT)
        status = self._last_status(projection)
        is_waiting = isinstance(status, RunWaiting) and status.reason == self.run.status_reason
        if not (is_waiting and self.run.state is RunStatus.WAITING):
            self._apply(projection, status, self.last_at)
        projection.flush()
        projection.save_state()
        # The duration of a session ends with its last event, not with the import.
        log.note_last_event(self.run.pk, self.last_at)

    def _last_status(self, projection: Projection) -> Payload:
        cost = read_cost(self.head.cost_usd)
        usage, cost_usd = dict(self.head.usage) or None, None if cost is None else f"{cost:f}"
        match self.head.ended or child_runs.end_of(self.run):
            case RunStatus.COMPLETED:
                return RunCompleted(usage=usage, cost_usd=cost_usd)
            case RunStatus.FAILED:
                error = self.head.error or None
                return RunFailed(error_type="failed", error=error, usage=usage, cost_usd=cost_usd)
            case RunStatus.STOPPED:
                return RunStopped(usage=usage, cost_usd=cost_usd)
        projection.close_answer(self.last_at)
        projection.flush()
        open_calls = AgentRunToolCall.objects.filter(run=self.run, result_message=None)
        changed = open_calls.update(
            status=ToolStatus.UNKNOWN, starts=1, started_at=Coalesce("started_at", F("created_at"))
        )
        return RunWaiting(reason=WaitReason.UNKNOWN_TOOL if changed else WaitReason.INPUT)

    def _apply(self, projection: Projection, payload: Payload, at: datetime | None) -> None:
        handlers.apply(projection, IncomingEvent(self.head.run_ref, payload.event_type, payload, ts=at))
