"""The invariants of message contents, which SQL cannot check. Reads all messages once, as a stream. Read-only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import islice
from uuid import UUID

from runs.models import AgentRunMessage, AgentRunToolCall
from runs.providers import messages
from runs.upkeep.invariants.invariant_sql import LISTED, Clock

BATCH = 500


def check_message_contents(run_id: UUID | None, clock: Clock) -> dict[str, list[str]]:
    """Return the IDs of the messages that violate an invariant, by the name of the invariant."""
    violations: dict[str, list[str]] = {"M8": [], "W6": []}
    rows = AgentRunMessage.objects.filter(run__removed_at=None).order_by("run", "position")
    if run_id is not None:
        rows = rows.filter(run=run_id)
    stream = rows.only("run", "role", "content", "sha256", "rolled_back_at").iterator(chunk_size=BATCH)
    while batch := list(islice(stream, BATCH)):
        clock.left_s()
        _add(violations["W6"], (_id(row) for row in batch if bytes(row.sha256) != messages.sha256(row.content)))
        answers = [row for row in batch if row.role == AgentRunMessage.Role.ASSISTANT and row.rolled_back_at is None]
        stored = _stored_calls(answers)
        _add(violations["M8"], (_id(row) for row in answers if _requested_calls(row) != stored.get(row.pk, Counter())))
    return violations


def _add(ids: list[str], more: Iterable[str]) -> None:
    """Add IDs up to a length of LISTED + 1."""
    ids += islice(more, LISTED + 1 - len(ids))


def _id(row: AgentRunMessage) -> str:
    return f"{row.run_id}/{row.pk}"


def _requested_calls(row: AgentRunMessage) -> Counter[tuple[str, str]]:
    """Return ID and tool of each call in a response, truncated to the length of their columns."""
    parts = [part for part in row.content.get("parts", ()) if part.get("part_kind") == "tool-call"]
    return Counter((part["tool_call_id"][:256], part["tool_name"][:256]) for part in parts)


def _stored_calls(answers: list[AgentRunMessage]) -> dict[UUID, Counter[tuple[str, str]]]:
    stored: dict[UUID, Counter[tuple[str, str]]] = {}
    calls = AgentRunToolCall.objects.filter(message__in=answers).values_list("message_id", "call_id", "tool_name")
    for message_id, call_id, tool_name in calls:
        stored.setdefault(message_id, Counter())[call_id, tool_name] += 1
    return stored
