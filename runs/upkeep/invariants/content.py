"""What no SQL can judge: every message is read once, as a stream, and looked into.

Reads only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import islice
from uuid import UUID

from runs.models import AgentRunMessage, AgentRunToolCall
from runs.providers import messages
from runs.upkeep.invariants.asking import LISTED, Clock

BATCH = 500


def look_into_messages(run_id: UUID | None, clock: Clock) -> dict[str, list[str]]:
    """The ids of the messages that contradict a statement, by its name."""
    found: dict[str, list[str]] = {"M8": [], "W6": []}
    rows = AgentRunMessage.objects.filter(run__removed_at=None).order_by("run", "position")
    if run_id is not None:
        rows = rows.filter(run=run_id)
    stream = rows.only("run", "role", "content", "sha256", "rolled_back_at").iterator(chunk_size=BATCH)
    while batch := list(islice(stream, BATCH)):
        clock.left_s()
        _add(found["W6"], (_id(row) for row in batch if bytes(row.sha256) != messages.sha256(row.content)))
        answers = [row for row in batch if row.role == AgentRunMessage.Role.ASSISTANT and row.rolled_back_at is None]
        stored = _stored_calls(answers)
        _add(found["M8"], (_id(row) for row in answers if _asked(row) != stored.get(row.pk, Counter())))
    return found


def _add(ids: list[str], more: Iterable[str]) -> None:
    """As many as are listed, and one more where there are more."""
    ids += islice(more, LISTED + 1 - len(ids))


def _id(row: AgentRunMessage) -> str:
    return f"{row.run_id}/{row.pk}"


def _asked(row: AgentRunMessage) -> Counter[tuple[str, str]]:
    """Id and tool of each call that an answer asks for, cut as their columns are."""
    parts = [part for part in row.content.get("parts", ()) if part.get("part_kind") == "tool-call"]
    return Counter((part["tool_call_id"][:256], part["tool_name"][:256]) for part in parts)


def _stored_calls(answers: list[AgentRunMessage]) -> dict[UUID, Counter[tuple[str, str]]]:
    stored: dict[UUID, Counter[tuple[str, str]]] = {}
    calls = AgentRunToolCall.objects.filter(message__in=answers).values_list("message_id", "call_id", "tool_name")
    for message_id, call_id, tool_name in calls:
        stored.setdefault(message_id, Counter())[call_id, tool_name] += 1
    return stored
