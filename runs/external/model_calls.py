"""Counts each model call in one run of its project, even if several runs report it.

Programs copy the history of a session into the file of another session, such as a fork. A call is identified by its
names (`IncomingEvent.call_names`). The first run that reports a name counts the call; a unique constraint of the
database decides between concurrent imports. If the original run is imported later, the usage moves to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import UUID

from django.db.models import Count, QuerySet, Sum
from uuid_utils.compat import uuid7

from runs.conversation.writes import TOKENS
from runs.external.event_input import IncomingEvent
from runs.models import AgentRun, ReportedCall, TurnUsage
from runs.models.run import CostSource
from timeline import log
from timeline.events.llm import LlmUsageMoved
from timeline.log import Entry
from timeline.models import RunKind, Source

V = TypeVar("V")
#: Maximum values in one query.
CHUNK = 500


@dataclass(frozen=True, slots=True)
class CallReport:
    """A model call that a run reports."""

    call: UUID
    #: The run that counts the call.
    counted_in: UUID
    #: Whether that run is known to have copied the call.
    is_copy: bool = False
    #: Whether the complete usage of the call is known.
    is_whole: bool = False


class CallsChanged(Exception):
    """A run no longer counts the calls that it counted when the import read them. The import must be repeated."""


@dataclass
class CallReports:
    """The calls that a run reports in one import."""

    run: AgentRun
    #: The calls that another run counts, each with its step in this run.
    own: dict[UUID, int] = field(default_factory=dict)
    #: The same, for calls that this run is known to have copied.
    copied: dict[UUID, int] = field(default_factory=dict)
    #: Pairs of calls that one event names, so that they may be the same call; in the order of the events.
    pairs: dict[tuple[UUID, UUID], None] = field(default_factory=dict)
    #: The reports of the current events, by event ID.
    _reports: dict[str, CallReport] = field(default_factory=dict)

    def begin(self, events: Sequence[IncomingEvent]) -> None:
        """Look up the calls that the next events name, and store the new ones.

        Raises `IntegrityError` if a concurrent import stored the same call.
        """
        named = [] if self.run.is_final else [event for event in events if event.call_names]
        rows = _known(self.run, [name for event in named for name in event.call_names])
        new: list[ReportedCall] = []
        self._reports = {}
        for event in named:
            known = [rows[name] for name in event.call_names if name in rows]
            row = known[0] if known else ReportedCall(call=uuid7(), run_id=self.run.pk, is_copy=event.is_copied)
            self.pairs |= {(row.call, other.call): None for other in known if other.call != row.call}
            for name in event.call_names:
                if name not in rows:
                    rows[name] = ReportedCall(
                        project_id=self.run.project_id,
                        name=name,
                        call=row.call,
                        run_id=row.run_id,
                        is_copy=row.is_copy,
                        is_whole=row.is_whole,
                    )
                    new.append(rows[name])
            self._reports[event.event_id or ""] = CallReport(row.call, row.run_id, row.is_copy, row.is_whole)
        # In the order of the file: copies have the same order, so concurrent imports do not wait for each other.
        ReportedCall.objects.bulk_create(new)

    def report_of(self, event: IncomingEvent) -> CallReport | None:
        """Return the call that an event reports; None for an event without names."""
        return self._reports.get(event.event_id or "")

    def is_counted_elsewhere(self, event: IncomingEvent, step: int) -> bool:
        """Return whether the call of an event is counted already. If another run counts it, note the call's step."""
        report = self.report_of(event)
        if report is None:
            return event.is_copied
        if report.counted_in == self.run.pk:
            return report.is_whole
        (self.copied if event.is_copied else self.own).setdefault(report.call, step)
        return True

    def rename(self, joined: Mapping[UUID, UUID]) -> None:
        """Replace removed calls by the calls to which they were joined. `joined`: removed call → remaining call."""
        for steps in (self.own, self.copied):
            renamed: dict[UUID, int] = {}
            for call, step in steps.items():
                renamed.setdefault(_last(joined, call), step)
            steps.clear()
            steps.update(renamed)


def join_same(reports: Sequence[CallReports]) -> None:
    """Join the calls that were stored twice, because they were reported under different names.

    Must be called for all runs of an import before a call is moved. Calls with different usage stay separate, although
    one event names both.
    """
    joined: dict[UUID, UUID] = {}
    for one in reports:
        for pair in one.pairs:
            first, second = (_last(joined, call) for call in pair)
            if first != second:
                joined |= _join(one.run.project_id, first, second)
    for one in reports:
        one.rename(joined)


def _last(joined: Mapping[UUID, UUID], call: UUID) -> UUID:
    """Return the call that remains of a call after all joins."""
    while call in joined:
        call = joined[call]
    return call


def _join(project_id: UUID, *calls: UUID) -> dict[UUID, UUID]:
    """Join two calls of different runs. Return {removed call: remaining call}; empty if both remain."""
    named = ReportedCall.objects.filter(project=project_id, call__in=calls)
    locked = _locked(named.values_list("run", flat=True))
    rows = {row.call: row for row in named}
    if any(row.run_id not in locked for row in rows.values()):
        raise CallsChanged
    if len({row.run_id for row in rows.values()}) < 2:
        return {}  # two answers in one run are two requests
    usages = {row.call: list(TurnUsage.objects.filter(run=row.run_id, call=row.call)) for row in rows.values()}
    # The order of precedence: a call with usage, an original, the call of the older run.
    kept, removed = sorted(rows.values(), key=lambda row: (not usages[row.call], row.is_copy, row.run_id))
    if usages[removed.call] and not _is_equal(usages[kept.call], usages[removed.call]):
        return {}
    named.filter(call=removed.call).update(
        call=kept.call, run=kept.run_id, is_copy=kept.is_copy, is_whole=kept.is_whole
    )
    deleted, _ = TurnUsage.objects.filter(run=removed.run_id, call=removed.call).delete()
    if deleted:
        _update_sums(locked[removed.run_id], kept.run_id, deleted, is_here=False)
    return {removed.call: kept.call}


def _is_equal(one: Sequence[TurnUsage], other: Sequence[TurnUsage]) -> bool:
    """Return whether two calls have the same usage: the same tokens, and the same model if both models are known."""
    models = [{row.model for row in rows if row.model} for rows in (one, other)]
    sums = [[sum(getattr(row, name) for row in rows) for name in TOKENS] for rows in (one, other)]
    return sums[0] == sums[1] and (models[0] == models[1] or not all(models))


def holders_of(run: AgentRun, calls: Iterable[UUID]) -> dict[UUID, CallReport]:
    """Return which run counts each of these calls. Raises `CallsChanged` if no existing run counts a call."""
    reports: dict[UUID, CallReport] = {}
    for some in chunks(list(calls)):
        rows = ReportedCall.objects.filter(project=run.project_id, call__in=some, run__removed_at=None)
        reports |= {row.call: CallReport(row.call, row.run_id, row.is_copy) for row in rows}
        if not reports.keys() >= set(some):
            raise CallsChanged
    return reports


def move(run: AgentRun, steps: Mapping[UUID, int], holder_id: UUID) -> None:
    """Count calls in `run`, at the given steps, instead of in the run `holder_id`.

    Locks both runs in the caller's transaction. Raises `CallsChanged` if the other run no longer counts all the calls.
    """
    other = _locked([run.pk, holder_id])[holder_id]
    moved = 0
    for some in chunks(list(steps)):
        names = ReportedCall.objects.filter(project=run.project_id, call__in=some, run=holder_id)
        if other.removed_at is not None or {*names.values_list("call", flat=True)} != {*some}:
            raise CallsChanged
        usages = list(TurnUsage.objects.filter(run=holder_id, call__in=some))
        for usage in usages:
            assert usage.call is not None
            usage.run_id, usage.step_number = run.pk, steps[usage.call]
        TurnUsage.objects.bulk_update(usages, ["run_id", "step_number"])
        names.update(run=run, is_copy=False, is_whole=True)
        moved += len(usages)
    _update_sums(other, run.pk, moved, is_here=False)
    _update_sums(run, holder_id, moved, is_here=True)


def _update_sums(run: AgentRun, other: UUID, calls: int, *, is_here: bool) -> None:
    """Compute the tokens and the cost of a run again, and append the event that calls were moved.

    `other`: the other run. `is_here`: whether `run` counts the calls now; otherwise, the other run does.
    """
    sums = TurnUsage.objects.filter(run=run.pk).aggregate(
        **{f"sum_{name}": Sum(name, default=0) for name in TOKENS},
        priced=Count("cost_usd"),
        calls=Count("pk"),
        cost=Sum("cost_usd"),
    )
    for name in TOKENS:
        setattr(run, name, sums[f"sum_{name}"])
    if run.cost_source != CostSource.REPORTED or not run.state.terminal:
        run.cost_usd, run.unpriced_calls = sums["cost"], sums["calls"] - sums["priced"]
        last = TurnUsage.objects.filter(run=run.pk, cost_usd__isnull=False).order_by("-step_number", "-pk").first()
        run.cost_source = last.cost_source if last is not None else CostSource.UNKNOWN.value
    run.save(update_fields=[*TOKENS, "cost_usd", "unpriced_calls", "cost_source"])
    tokens: dict[str, Any] = {name: getattr(run, name) or None for name in TOKENS}
    payload = LlmUsageMoved(
        run_id=str(other),
        calls=calls,
        counted="here" if is_here else "there",
        cost_usd=None if run.cost_usd is None else str(run.cost_usd),
        **tokens,
    )
    # This event does not change when the run had its last event.
    at = log.last_event_at(run.pk)
    log.append(
        run.pk,
        [Entry(payload, ts=at, late=run.state.terminal, clean=True)],
        source=Source.IMPORT,
        run_kind=RunKind(run.run_kind),
    )
    log.note_last_event(run.pk, at)
    log.announce_run(run.project_id, run.pk)


def _locked(run_ids: Iterable[UUID]) -> dict[UUID, AgentRun]:
    rows: QuerySet[AgentRun] = AgentRun.with_removed.select_for_update(no_key=True, of=("self",))
    return {run.pk: run for run in rows.filter(pk__in=list(run_ids)).order_by("pk")}


def _known(run: AgentRun, names: Sequence[str]) -> dict[str, ReportedCall]:
    """Return the stored calls with these names, by name."""
    rows: dict[str, ReportedCall] = {}
    for some in chunks(list(dict.fromkeys(names))):
        rows |= {row.name: row for row in ReportedCall.objects.filter(project=run.project_id, name__in=some)}
    return rows


def chunks(values: Sequence[V]) -> Iterator[Sequence[V]]:
    """Yield the values in parts of at most `CHUNK`, for queries."""
    return (values[at : at + CHUNK] for at in range(0, len(values), CHUNK))
