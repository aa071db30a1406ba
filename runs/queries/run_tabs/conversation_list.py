"""The conversation of a run with the model, including messages that were rolled back."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from django.db.models import Count, Q

from runs.conversation import ancestry
from runs.conversation.ancestry import Segment
from runs.models import AgentRun, AgentRunMessage


@dataclass(frozen=True)
class MessagePage:
    """A page of the messages of one segment of a conversation."""

    segment: Segment
    #: The segments of the conversation with the numbers of their messages, oldest first.
    segments: list[tuple[Segment, int]]
    messages: list[AgentRunMessage]


def conversation_page(run: AgentRun, segment_of: UUID | None, after: int, limit: int) -> MessagePage | None:
    """Return the messages after position `after` of a segment: the run's own, or an earlier run's.

    None if the conversation has no messages of `segment_of`. Three queries, and two more for each fork on the way.
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
