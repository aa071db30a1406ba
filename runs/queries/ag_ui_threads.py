"""What was said in a thread before an AG-UI run begins, for clients that do not have it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from uuid import UUID

from runs.conversation import ancestry
from runs.conversation.ancestry import Segment
from runs.models import AgentRun
from timeline import log
from timeline.dialects.ag_ui_blocks import Message
from timeline.dialects.ag_ui_history import conversation_of
from timeline.events import EventType
from timeline.models import Event

#: Events that are read. A longer conversation is not sent: a part of it would replace what a client has.
MAX_EVENTS = 10_000
#: Returns the AG-UI messages of a log, from its first event on.
Translate = Callable[[UUID, Sequence[Event]], list[Message]]


def conversation_before(event: Event, translate: Translate) -> list[Message]:
    """Return the conversation of the runs that this one continues, and of this one; empty if it is too long."""
    run = AgentRun.objects.get(pk=event.log_id)
    streamed: list[Message] = []
    left = MAX_EVENTS
    for segment in ancestry.segments_of(run):
        before = event.seq if segment.run_id == event.log_id else _end_of(segment)
        passed = log.events_of(segment.run_id).order_by("seq")
        batch = list((passed if before is None else passed.filter(seq__lt=before))[: left + 1])
        left -= len(batch)
        if left < 0:
            return []
        if batch:
            streamed += translate(segment.run_id, batch)
    return conversation_of(streamed)


def _end_of(segment: Segment) -> int | None:
    """Return the number of the event with which the segment has ended; None if it is a whole run."""
    if segment.upto is None:
        return None
    later = log.events_of(segment.run_id).filter(type=EventType.MESSAGE_ADDED, payload__position__gt=segment.upto)
    return later.order_by("seq").values_list("seq", flat=True).first()
