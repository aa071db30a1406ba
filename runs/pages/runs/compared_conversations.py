"""The steps of a conversation as keys for their alignment, and the texts of some steps.

Of a whole conversation, only the arguments of tool calls are read. The texts of steps are truncated.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import Case, F, JSONField, Q, When
from django.db.models.fields.json import KeyTextTransform, KeyTransform
from django.db.models.functions import Substr

from runs.conversation import ancestry
from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall
from runs.providers.messages import canonical
from timeline.display import clip, format_json

Role = AgentRunMessage.Role
#: Number of bytes of a text that are displayed.
CAP = 8192
#: Number of characters of a text that are read from the database and compared.
HEAD = 2 * CAP


class StepPosition(NamedTuple):
    """A step and the run that its rows belong to."""

    run_id: UUID
    step: int


@dataclass(frozen=True)
class ConversationSide:
    """The steps of a conversation and a comparison key for each of them."""

    positions: list[StepPosition]
    #: For each step: the roles of its messages, and the names and argument hashes of its tool calls.
    keys: list[tuple[Any, ...]]


@dataclass
class StepTexts:
    """The compared texts of a step, not redacted."""

    #: Message texts by role.
    messages: dict[str, str] = field(default_factory=dict)
    #: Name, arguments (as canonical JSON), output and status of each tool call, in order.
    calls: list[tuple[str, str, str, str]] = field(default_factory=list)


def read(run: AgentRun) -> ConversationSide:
    """Return the steps of the conversation of `run`, including steps of the runs that it continues or forks."""
    segments = ancestry.segments_of(run)
    order = {segment.run_id: number for number, segment in enumerate(segments)}
    called: dict[StepPosition, list[tuple[str, bytes]]] = defaultdict(list)
    calls = AgentRunToolCall.objects.filter(ancestry.within(segments, of="message__"), message__rolled_back_at=None)
    columns = ("run", "step_number", "tool_name", "input")
    for run_id, step, name, arguments in calls.order_by("step_number", "pk").values_list(*columns).iterator(500):
        called[StepPosition(run_id, step)].append((name, hashlib.sha256(canonical(arguments).encode()).digest()[:16]))
    roles: dict[StepPosition, list[str]] = defaultdict(list)
    rows = AgentRunMessage.objects.filter(ancestry.within(segments), rolled_back_at=None)
    rows = rows.exclude(role=Role.TOOL_RESULT)
    for run_id, step, _, role in sorted(
        rows.values_list("run", "step_number", "position", "role").iterator(2000),
        key=lambda row: (order[row[0]], row[1], row[2]),
    ):
        roles[StepPosition(run_id, step)].append(role)
    positions = list(roles)
    return ConversationSide(positions, [(tuple(roles[position]), tuple(called[position])) for position in positions])


def texts_of(positions: Iterable[StepPosition]) -> Mapping[StepPosition, StepTexts]:
    """Return the texts of the steps. Two queries per run."""
    texts: dict[StepPosition, StepTexts] = defaultdict(StepTexts)
    steps: dict[UUID, set[int]] = defaultdict(set)
    for position in positions:
        steps[position.run_id].add(position.step)
    for run_id, numbers in steps.items():
        outputs = {}
        for row in _messages(run_id, numbers):
            if row["role"] == Role.TOOL_RESULT:
                outputs[row["pk"]] = row["head"] or ""
            else:
                messages = texts[StepPosition(run_id, row["step_number"])].messages
                text = _answer(row["answer"]) if row["role"] == Role.ASSISTANT else row["head"] or ""
                messages[row["role"]] = "\n\n".join(filter(None, [messages.get(row["role"]), text]))[:HEAD]
        for call in _calls(run_id, numbers):
            output = outputs.get(call["result_message"], "")
            entry = (call["tool_name"], canonical(call["input"])[:HEAD], output, call["status"])
            texts[StepPosition(run_id, call["step_number"])].calls.append(entry)
    return texts


def display_text(text: str) -> str:
    """Return `text` for display: JSON is indented, secrets are redacted, and it is truncated to CAP bytes."""
    return clip(format_json(text), CAP).text


def _messages(run_id: UUID, steps: Iterable[int]) -> Iterable[Mapping[str, Any]]:
    """Return assistant messages in full, because they have many parts, and the beginning of all others."""
    part = KeyTransform("0", KeyTransform("parts", "content"))
    answer = Q(role=Role.ASSISTANT)
    rows = AgentRunMessage.objects.filter(run=run_id, step_number__in=list(steps), rolled_back_at=None).annotate(
        answer=Case(When(answer, then=F("content")), output_field=JSONField()),
        head=Case(When(~answer, then=Substr(KeyTextTransform("content", part), 1, HEAD))),
    )
    return rows.order_by("position").values("pk", "role", "step_number", "answer", "head")


def _calls(run_id: UUID, steps: Iterable[int]) -> Iterable[Mapping[str, Any]]:
    rows = AgentRunToolCall.objects.filter(run=run_id, step_number__in=list(steps), message__rolled_back_at=None)
    return rows.order_by("step_number", "pk").values("step_number", "tool_name", "input", "status", "result_message")


def _answer(content: Mapping[str, Any] | None) -> str:
    """Return the texts of an assistant message."""
    parts = (content or {}).get("parts", ())
    return "\n\n".join(part["content"] for part in parts if part.get("part_kind") == "text" and part.get("content"))
