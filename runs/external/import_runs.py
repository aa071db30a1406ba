"""Imports runs and their events, all or nothing. A repeated import adds only the new events."""

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
from agentops.base.redaction.redact import DEFAULT as REDACTOR
from runs.external import child_runs, handlers, origins
from runs.external.child_runs import LinkHints
from runs.external.event_input import IncomingEvent, RejectedEvent
from runs.external.foreign_payloads import read_cost
from runs.external.importers.base import ImportedRun, Importer, ImportFile, Item
from runs.external.importers.guarded_reading import budget_of, read_within_budget
from runs.external.importers.stored_lines import LeftOut
from runs.external.model_calls import CallReports, CallsChanged, chunks
from runs.external.projection import Projection
from runs.lifecycle import approval_rows, reported_runs
from runs.lifecycle.reported_runs import ReportedRun
from runs.models import AgentRun, AgentRunToolCall, ExternalRun
from runs.statuses import RunStatus, ToolStatus, WaitReason
from timeline import log
from timeline.events import EventType, Payload
from timeline.events.run import RunCompleted, RunFailed, RunPhase, RunStarted, RunStopped, RunWaiting
from timeline.models import Source

T = TypeVar("T")
#: Events written at once, so that memory does not grow with the file.
CHUNK = 200
#: Attempts to import a file if other imports conflict with it.
ATTEMPTS = 4
DEADLOCK = "40P01"  # PostgreSQL's error code for deadlock_detected


@dataclass
class ImportReport:
    """The result of an import."""

    #: The imported runs, new and existing, in the order of the file.
    runs: list[AgentRun] = field(default_factory=list)
    #: IDs of the runs that the import created.
    opened: set[UUID] = field(default_factory=set)
    #: New events by run.
    events_of: Counter[UUID] = field(default_factory=Counter)
    new_runs: int = 0
    events: int = 0
    #: Number of events that were imported before.
    known_events: int = 0
    #: The facts that may link children to their parents.
    links: LinkHints = field(default_factory=LinkHints)
    #: The lines of the file that were left out.
    left_out: LeftOut = field(default_factory=LeftOut)


Progress = Callable[[ImportReport], None]


class NotImported(ValueError):
    """The project has a run with this reference that was not imported, or that is being deleted."""


class ImportHindered(NotImported):
    """All attempts conflicted with other imports. A later attempt may succeed."""


def retry_conflicts(attempt: Callable[[], T], refuse: Callable[[str], Exception] = ImportHindered) -> T:
    """Call `attempt`, which imports in one transaction, and repeat it after a conflict with a concurrent import.

    In a conflict, both imports open the same run, both report the same model calls, the run that counted the calls was
    removed, or both wait for each other. After the last attempt, raises `refuse(reason)`.
    """
    for _ in range(ATTEMPTS):
        try:
            return attempt()
        except (IntegrityError, OperationalError, CallsChanged) as error:
            # The other import has committed, or will commit: the next attempt continues its runs.
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
    """Import a file into a project, all or nothing. Raises `ImportRefused`.

    `progress` is called inside the transaction, after each chunk and at the end of each run. `watch` is called at these
    times, and also while the file is read. If either raises, nothing is imported.
    """

    def after_chunk(report: ImportReport) -> None:
        budget.check()
        progress(report)

    try:
        with budget_of(file, watch) as budget:
            report = import_items(project, read_within_budget(importer, file), by=by, progress=after_chunk)
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

    `is_live`: sessions without an end are running; otherwise they wait for their user. `parents`: parent runs that were
    not imported, by the reference that the imported runs have for them.
    """
    report = ImportReport()
    imports: dict[str, _RunImport] = {}
    for is_head, group in groupby(items, key=lambda item: isinstance(item, ImportedRun)):
        if is_head:
            _open_runs(project, imports, group, by=by, report=report, parents=parents or {})
        else:
            for reference, events in groupby(group, key=lambda item: item.run_ref):
                for chunk in _event_chunks(events):
                    imports[reference].take(chunk, report)
                    progress(report)
    if not is_live:
        _note_import_times([each.run.pk for each in imports.values() if each.run.pk not in report.opened])
    origins.give_titles([(each.run, each.head.title) for each in imports.values()])
    origins.settle([run_import.reported(run_import.run.pk in report.opened) for run_import in imports.values()])
    for one in imports.values():
        has_parent_elsewhere = bool(one.head.parent_ref) and one.head.parent_ref not in imports
        if has_parent_elsewhere and (one.has_news or one.head.parent_call_id):
            report.links.children.append((one.run, one.head))
    report.runs = [run_import.run for run_import in imports.values()]
    end_linked(report)
    for run_import in reversed(imports.values()):  # children before parents
        if run_import.head.ended or not is_live:
            run_import.end()
            progress(report)
    return report


def _note_import_times(run_ids: Sequence[UUID]) -> None:
    """Note that existing runs were imported again. Their retention starts again now, even if no event was new."""
    for some in chunks(run_ids):
        ExternalRun.objects.filter(run__in=some).update(imported_at=database_clock.now())


def end_linked(report: ImportReport) -> None:
    """Link children to their parents. End those that an earlier import added, if they have ended.

    Such a child has ended if its call has ended and its own last message is an answer without calls. `import_items`
    ends the runs of this import, including its children.
    """
    own = {run.pk for run in report.runs}
    for child in child_runs.link_children(report.links):
        status = child_runs.end_of(child) if child.pk not in own and not child.state.terminal else None
        if status is not None and child_runs.has_answered(child):
            _RunImport(ImportedRun(run_ref=str(child.external_id), agent="", ended=status), child).end()


def _open_runs(
    project: Project,
    imports: dict[str, _RunImport],
    heads: Iterable[Item],
    *,
    by: str,
    report: ImportReport,
    parents: Mapping[str, AgentRun],
) -> None:
    """Open the runs of these heads, or lock the existing ones, and add them to `imports`. Raises `NotImported`."""
    for head in heads:
        assert isinstance(head, ImportedRun)
        if head.run_ref in imports:
            # An importer may yield a head again at the end, with the final title.
            imports[head.run_ref].head = replace(imports[head.run_ref].head, title=head.title)
            continue
        run, parent = _lock_run(project, head.run_ref), _parent_of(head, project, imports, parents)
        if run is None:
            run = reported_runs.open_run(project, _reported(head, parent, by))
            report.new_runs += 1
            report.opened.add(run.pk)
            report.links.adopted += child_runs.adopt_early_children(run)
        elif parent is not None and run.parent_run_id is None and child_runs.can_be_below(run, parent):
            child_runs.adopt([run], parent)
        if parent is not None and head.parent_call_id:
            calls = AgentRunToolCall.objects.filter(run=parent, call_id=head.parent_call_id, child_run=None)
            calls.update(child_run=run)
        imports[head.run_ref] = _RunImport(head, run)


def _lock_run(project: Project, reference: str) -> AgentRun | None:
    """Lock and return the run of an earlier import; None if there is none. Raises `NotImported`."""
    rows = AgentRun.with_removed.select_for_update(no_key=True, of=("self",))
    run = rows.filter(project=project, external_id=reference).first()
    if run is not None and run.removed_at is not None:
        raise NotImported(f"the run {reference!r} is being deleted by retention: import it again later")
    if run is not None and run.source != AgentRun.Source.IMPORT:
        raise NotImported(f"the project has a run {reference!r} that was not imported")
    return run


def _parent_of(
    head: ImportedRun, project: Project, imports: Mapping[str, _RunImport], parents: Mapping[str, AgentRun]
) -> AgentRun | None:
    """Return the parent of a run: of this import, of `parents`, or of an earlier import; None if it has none."""
    if head.parent_ref in imports:
        return imports[head.parent_ref].run
    if not head.parent_ref or head.parent_ref in parents:
        return parents.get(head.parent_ref)
    imported = AgentRun.objects.filter(project=project, source=AgentRun.Source.IMPORT)
    return imported.filter(external_id=head.parent_ref).first()


def _reported(head: ImportedRun, parent: AgentRun | None, by: str) -> ReportedRun:
    """Return the facts with which a run is opened."""
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
        config={"folder": REDACTOR.clean_text(head.folder)[0]} if head.folder else {},
    )


def _event_chunks(events: Iterable[Item]) -> Iterator[list[IncomingEvent]]:
    iterator = (event for event in events if isinstance(event, IncomingEvent))
    while chunk := list(islice(iterator, CHUNK)):
        yield chunk


def open_answer(run_id: UUID, stored: Mapping[str, tuple[int, object]]) -> str | None:
    """Return the ID of the event that begins the run's incomplete answer; None if it has none, or if it is not stored.

    `stored`: the sequence numbers of events, by ID.
    """
    begin = ExternalRun.objects.filter(pk=run_id).values_list("answer_from_seq", flat=True).first()
    return next((event_id for event_id, (seq, _) in stored.items() if seq == begin), None)


def wait_reason_after_silence(run: AgentRun) -> WaitReason:
    """Return why a session that has become silent waits. The outcome of its calls without a result becomes unknown."""
    open_calls = AgentRunToolCall.objects.filter(run=run, result_message=None)
    started_at = Coalesce("started_at", F("created_at"))
    has_open_calls = open_calls.update(status=ToolStatus.UNKNOWN, starts=1, started_at=started_at)
    return WaitReason.UNKNOWN_TOOL if has_open_calls else WaitReason.INPUT


@dataclass
class _RunImport:
    """A run that is being imported."""

    head: ImportedRun
    run: AgentRun
    has_news: bool = False
    #: The IDs of the events that this import added, in order.
    added: dict[str, None] = field(default_factory=dict)
    #: The time of the last event that this import added.
    last_at: datetime | None = None
    #: The position of the last message that its file marks as copied.
    copied_until: int = 0

    def __post_init__(self) -> None:
        self.calls = CallReports(self.run)

    def reported(self, is_new: bool) -> origins.Reported:
        """Return the facts about the origin of the run that this import reported."""
        return origins.Reported(self.run, self.head, self.calls, list(self.added), is_new, self.copied_until)

    def take(self, events: list[IncomingEvent], report: ImportReport) -> None:
        """Add the events that the run does not have yet, and count them in `report`."""
        new_events = list(self._new_events(events))
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
        elif self.run.state is RunStatus.WAITING and self._has_continued(new_events):
            self._apply(projection, RunPhase(status="running", reason="continued"), new_events[0].ts)
        for event in new_events:
            handlers.apply(projection, event)
            if event.is_copied:
                self.copied_until = projection.position
            self.last_at = event.ts or self.last_at
        projection.flush()
        projection.save_state()
        self.has_news = True
        report.links.note(self.run, new_events)
        report.events += len(new_events)
        report.events_of[self.run.pk] += len(new_events)

    def _has_continued(self, new_events: list[IncomingEvent]) -> bool:
        """Return whether these events show that a waiting session runs again, without an event that says so."""
        if all(event.type == EventType.IMPORT_LEFT_OUT for event in new_events):
            return False
        if self.run.status_reason == WaitReason.APPROVAL and approval_rows.is_pending(self.run):
            return False  # while a sub-agent waits for an approval of this site, it can run other calls
        if new_events[0].type == EventType.RUN_PHASE:
            return False
        # A hook reports the wait before the last lines of the file are read. So earlier events are no continuation.
        waits = log.events_of(self.run.pk).filter(type=EventType.RUN_WAITING).order_by("-seq").first()
        return waits is None or any(event.ts is None or event.ts >= waits.ts for event in new_events)

    def _new_events(self, events: list[IncomingEvent]) -> Iterator[IncomingEvent]:
        """Yield the events, or the parts of them, that the run does not have, and note their IDs in `added`."""
        stored = log.stored_event_ids(self.run.pk, [name for event in events for name in event.possible_ids()])
        open_id = open_answer(self.run.pk, stored)
        # Events added by this import do not belong to an earlier version of the file.
        known = stored.keys() - self.added.keys()
        for event in events:
            if event.event_id in known or event.event_id in self.added:
                continue
            if (new_part := event.new_part(known, open_id)) is not None:
                if event.event_id:
                    self.added[event.event_id] = None
                yield new_part

    def end(self) -> None:
        """Append the status that the run has at the end of the file: its final status, or waiting.

        Nothing is appended if the run has ended, or if neither an event nor its end is new.
        """
        if self.run.is_final or not (self.has_news or self.head.ended):
            return
        if self.last_at is None:
            # The watcher sent its events in earlier requests.
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
        """Return the event of the status at the end of the file. If the run waits, its last answer is added first."""
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
        return RunWaiting(reason=wait_reason_after_silence(self.run))

    def _apply(self, projection: Projection, payload: Payload, at: datetime | None) -> None:
        handlers.apply(projection, IncomingEvent.of(self.head.run_ref, payload, ts=at))
