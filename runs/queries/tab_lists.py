"""Queries for the tabs of a run's page: its conversation (including messages that were rolled back), calls, events,
commits and deployments, and failures.

Each list takes one or two bounded queries. Failures require a scan of the log, so they are read only on request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models import Count, F, Q, Sum
from django.db.models.functions import Left

from runs.conversation import ancestry
from runs.conversation.ancestry import Segment
from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall
from runs.queries.long_texts import JsonText
from timeline import log
from timeline.events import CHUNK_TYPES, REGISTRY, EventType, types_that
from timeline.models import Event
from timeline.shown_events import FAILURES


@dataclass(frozen=True)
class MessagePage:
    """A page of the messages of one segment of a conversation."""

    segment: Segment
    #: The segments of the conversation with the numbers of their messages, oldest first.
    segments: list[tuple[Segment, int]]
    messages: list[AgentRunMessage]


def conversation_page(run: AgentRun, segment_of: UUID | None, after: int, limit: int) -> MessagePage | None:
    """Return the messages after position `after` of one segment of a conversation: of the run, or of `segment_of`.

    None if the conversation has no segment of that run. Three queries, and two more for each fork on the way.
    """
    segments = ancestry.segments_of(run)
    counted = AgentRunMessage.objects.filter(ancestry.within(segments)).order_by().values_list("run")
    counts = dict(counted.annotate(n=Count("pk")))
    chosen = next((segment for segment in segments if segment.run_id == (segment_of or run.pk)), None)
    if chosen is None:
        return None
    upto = Q() if chosen.upto is None else Q(position__lte=chosen.upto)
    rows = AgentRunMessage.objects.filter(upto, run=chosen.run_id, position__gt=after).order_by("position")
    return MessagePage(chosen, [(each, counts.get(each.run_id, 0)) for each in segments], list(rows[:limit]))


#: Characters of a call's arguments in the list.
ARGUMENT_CHARACTERS = 400
#: Maximum number of tool names in the filter.
MAX_NAMES = 200


@dataclass(frozen=True)
class UsedTool:
    """The use of one tool in a run."""

    name: str
    calls: int
    failed: int
    duration_ms: int | None


def calls_after(
    run_id: UUID, after: tuple[int, UUID] | None, limit: int, *, name: str = "", statuses: Sequence[str] = ()
) -> list[Any]:
    """Return the next calls after a step and call ID, filtered by tool and statuses.

    `input_start` is the beginning of the arguments; arguments and outputs are not loaded.
    """
    rows = AgentRunToolCall.objects.filter(run=run_id).order_by("step_number", "pk")
    if name:
        rows = rows.filter(tool_name=name)
    if statuses:
        rows = rows.filter(status__in=statuses)
    if after is not None:
        rows = rows.filter(Q(step_number__gt=after[0]) | Q(step_number=after[0], pk__gt=after[1]))
    start = Left(JsonText("input"), ARGUMENT_CHARACTERS)
    return list(rows.defer("input", "output", "changed_arguments").annotate(input_start=start)[:limit])


def used_tools(run_id: UUID, failed_statuses: Sequence[str]) -> list[UsedTool]:
    """Return the tools of a run with their calls, ordered by total time, longest first. One query."""
    rows: Any = AgentRunToolCall.objects.filter(run=run_id).values_list("tool_name")
    counted = rows.annotate(
        calls=Count("pk"), failed=Count("pk", filter=Q(status__in=failed_statuses)), ms=Sum("duration_ms")
    )
    return [UsedTool(*row) for row in counted.order_by(F("ms").desc(nulls_last=True), "tool_name")[:MAX_NAMES]]


#: Name of an event family → its label in the filter.
FAMILIES = {cls.event_kind.family.name: cls.event_kind.family.label for cls in REGISTRY.values()}


def stored_events(run_id: UUID, after: int, limit: int, *, family: str = "", chunks: bool = True) -> list[Event]:
    """Return the next events after event `after`, in order.

    `family`: only events of this family. Without `chunks`, pieces of streamed texts are left out.
    """
    events = log.events_of(run_id).filter(seq__gt=after)
    if family:
        events = events.filter(type__in=sorted(types_that(lambda kind: kind.family.name == family)))
    return list((events if chunks else events.exclude(type__in=CHUNK_TYPES))[:limit])


def event_of_call(run_id: UUID, call_id: UUID) -> int | None:
    """Return the seq of the first event of a tool call: its start, or else its end. Scans the log."""
    events = log.events_of(run_id).filter(type__in=[EventType.TOOL_START, EventType.TOOL_END], ref_id=call_id)
    return events.values_list("seq", flat=True).first()


#: Types of the commits and deployments of the tab of changes.
_DELIVERIES = (EventType.GIT_COMMIT, EventType.DEPLOY_TRIGGERED, EventType.DEPLOY_STATUS)


def deliveries(run_id: UUID, limit: int) -> list[Event]:
    """Return at most `limit` commits and deployments of a run, the newest, in order."""
    return list(log.events_of(run_id).filter(type__in=_DELIVERIES).order_by("-seq")[:limit])[::-1]


def failures(run_id: UUID, after: int, limit: int) -> list[Event]:
    """Return at most `limit` failures after event `after`, in order."""
    return list(log.events_of(run_id).filter(FAILURES, seq__gt=after)[:limit])


def last_failures(run_id: UUID, limit: int) -> list[Event]:
    """Return at most `limit` failures, the newest, in order."""
    return list(log.events_of(run_id).filter(FAILURES).order_by("-seq")[:limit])[::-1]


def message_of(payload: Mapping[str, Any]) -> str:
    """Return the message of a failure; empty if it has none."""
    return next((payload[name] for name in ("error", "reason", "preview") if isinstance(payload.get(name), str)), "")


def context_of(payload: Mapping[str, Any]) -> str:
    """Return the subject of a failure: a tool name, or the context of an error; empty without either."""
    values = (payload.get(name) for name in ("tool_name", "context"))
    return next((value for value in values if isinstance(value, str)), "")


def kind_of(payload: Mapping[str, Any]) -> str:
    """Return the code of a failure: its error type, or else the reported status; empty without either."""
    status = payload.get("status")
    return str(payload.get("error_type") or (status if isinstance(status, str) else ""))


def next_failure(run_id: UUID, after: int) -> int | None:
    """Return the seq of the next failure after event `after`, or else of the first failure; None without failures."""
    seqs = log.events_of(run_id).filter(FAILURES).values_list("seq", flat=True)
    return (seqs.filter(seq__gt=after).first() if after else None) or seqs.first()
