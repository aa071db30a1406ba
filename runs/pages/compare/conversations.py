"""Two conversations side by side: their steps by what was called, and the texts of some of them.

Of whole conversations no text is read but the arguments of calls, one row after the other; texts are read for as many
steps as are looked at, and cut.
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
from timeline.shown import clip, pretty

Role = AgentRunMessage.Role
#: Bytes of one text that are compared.
CAP = 8192
#: Characters of a text that the database gives.
HEAD = 2 * CAP


class StepPlace(NamedTuple):
    """A step, and the run whose rows it is."""

    run_id: UUID
    step: int


@dataclass(frozen=True)
class ConversationSide:
    places: list[StepPlace]
    #: Of each step: who spoke, and which tools were called with what.
    keys: list[tuple[Any, ...]]


@dataclass
class StepTexts:
    """What a step says, as far as it is compared; not cleaned yet."""

    said: dict[str, str] = field(default_factory=dict)
    #: Name, arguments (as canonical JSON), output and status of each call, in its order.
    calls: list[tuple[str, str, str, str]] = field(default_factory=list)


def read(run: AgentRun) -> ConversationSide:
    segments = ancestry.segments_of(run)
    order = {segment.run_id: number for number, segment in enumerate(segments)}
    called: dict[StepPlace, list[tuple[str, bytes]]] = defaultdict(list)
    calls = AgentRunToolCall.objects.filter(ancestry.within(segments, of="message__"), message__rolled_back_at=None)
    columns = ("run", "step_number", "tool_name", "input")
    for run_id, step, name, given in calls.order_by("step_number", "pk").values_list(*columns).iterator(500):
        called[StepPlace(run_id, step)].append((name, hashlib.sha256(canonical(given).encode()).digest()[:16]))
    roles: dict[StepPlace, list[str]] = defaultdict(list)
    rows = AgentRunMessage.objects.filter(ancestry.within(segments), rolled_back_at=None)
    rows = rows.exclude(role=Role.TOOL_RESULT)
    for run_id, step, _, role in sorted(
        rows.values_list("run", "step_number", "position", "role").iterator(2000),
        key=lambda row: (order[row[0]], row[1], row[2]),
    ):
        roles[StepPlace(run_id, step)].append(role)
    places = list(roles)
    return ConversationSide(places, [(tuple(roles[place]), tuple(called[place])) for place in places])


def texts_of(places: Iterable[StepPlace]) -> Mapping[StepPlace, StepTexts]:
    """What these steps say; two queries for each run that they are of."""
    found: dict[StepPlace, StepTexts] = defaultdict(StepTexts)
    steps: dict[UUID, set[int]] = defaultdict(set)
    for place in places:
        steps[place.run_id].add(place.step)
    for run_id, numbers in steps.items():
        outputs = {}
        for row in _messages(run_id, numbers):
            if row["role"] == Role.TOOL_RESULT:
                outputs[row["pk"]] = row["head"] or ""
            else:
                said = found[StepPlace(run_id, row["step_number"])].said
                text = _answer(row["answer"]) if row["role"] == Role.ASSISTANT else row["head"] or ""
                said[row["role"]] = "\n\n".join(filter(None, [said.get(row["role"]), text]))[:HEAD]
        for call in _calls(run_id, numbers):
            output = outputs.get(call["result_message"], "")
            told = (call["tool_name"], canonical(call["input"])[:HEAD], output, call["status"])
            found[StepPlace(run_id, call["step_number"])].calls.append(told)
    return found


def shown(text: str) -> str:
    """As a page shows it: JSON indented, legible, without secrets, cut."""
    return clip(pretty(text), CAP).text


def _messages(run_id: UUID, steps: Iterable[int]) -> Iterable[Mapping[str, Any]]:
    """Answers whole, because their parts are many; of the rest the beginning, which the database cuts."""
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
    parts = (content or {}).get("parts", ())
    return "\n\n".join(part["content"] for part in parts if part.get("part_kind") == "text" and part.get("content"))
