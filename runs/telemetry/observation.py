"""An observation: a run, turn, model call or tool call as tracing systems represent it, and the rows it is made from.

Messages follow the GenAI semantic conventions of OpenTelemetry: roles with typed parts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any, cast
from uuid import UUID

from agentops.base.redaction.redact import DEFAULT as REDACTOR
from agentops.base.redaction.redact import JSON
from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall, TurnUsage
from runs.statuses import ToolStatus
from runs.telemetry.sink_kind import OutgoingEvent

#: The name of the trace, and of its outermost observation.
RUN_NAME = "agent-run"


class ObservationKind(Enum):
    """The kind of an observation."""

    RUN = "run"
    TURN = "turn"
    GENERATION = "generation"
    TOOL = "tool"


@dataclass(frozen=True)
class TraceFacts:
    """The facts that all observations of a run share."""

    run_id: UUID
    #: The ID of the first run of the lineage, or of the flow run. It groups the traces of a conversation or a flow.
    session_id: str
    agent_id: str
    provider: str
    model: str
    title: str
    labels: Sequence[str] = ()
    #: Values displayed with the trace.
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def trace_id(self) -> str:
        """32 hexadecimal digits: the ID of the run."""
        return self.run_id.hex


@dataclass(frozen=True)
class ObservedFailure:
    """Why an observation failed."""

    type: str
    text: str


@dataclass(frozen=True)
class Observation:
    """An observation at the time of an event. Its ID is the same for each repeat."""

    kind: ObservationKind
    id: str
    parent_id: str | None
    name: str
    trace: TraceFacts
    event: OutgoingEvent
    started_at: datetime
    #: None while the run, turn or call has not ended.
    ended_at: datetime | None = None
    #: Input and output, with masked secrets: messages of the GenAI conventions for a model call, otherwise any JSON.
    input: Any = None
    output: Any = None
    failure: ObservedFailure | None = None
    #: The status of a run; empty for other observations.
    status: str = ""
    #: Only for model calls, up to the cost.
    model: str = ""
    response_id: str = ""
    finish_reason: str = ""
    #: Tokens, by their columns in `TurnUsage`, without zeros.
    usage: Mapping[str, int] = field(default_factory=dict)
    cost_usd: float | None = None
    #: Only for tool calls: the ID that the model gave the call.
    call_id: str = ""


def run_span(run_id: UUID) -> str:
    """Return the ID of a run's observation: 16 hexadecimal digits."""
    return span_id("run", run_id)


def turn_span(run_id: UUID, step: int) -> str:
    """Return the ID of a turn's observation: 16 hexadecimal digits."""
    return span_id("turn", run_id, step)


def span_id(*parts: object) -> str:
    """Return 16 hexadecimal digits that depend only on the parts."""
    return hashlib.sha256(":".join(map(str, parts)).encode()).hexdigest()[:16]


ROLES = AgentRunMessage.Role
#: Statuses of calls that have not ended, or whose outcome is unknown.
_OPEN = (ToolStatus.PLANNED.value, ToolStatus.RUNNING.value, ToolStatus.UNKNOWN.value)


@dataclass(frozen=True)
class RunRows:
    """A run, and the messages, calls and usage of the requested steps."""

    run: AgentRun
    messages: Sequence[AgentRunMessage]
    calls: Sequence[AgentRunToolCall]
    usage: Sequence[TurnUsage]

    @classmethod
    def load(cls, run_id: UUID, steps: Collection[int], call_ids: Collection[UUID], *, has_ended: bool) -> RunRows:
        """Load a run, the rows of `steps`, the calls in `call_ids`, and the messages sent to the model at these steps.

        `has_ended`: also load the open calls.
        """
        run = AgentRun.objects.select_related("parent_run").get(pk=run_id)
        # The messages sent at a step include the tool results of the previous step.
        read = {*steps, *(step - 1 for step in steps)}
        messages = AgentRunMessage.objects.filter(run=run_id, step_number__in=read, rolled_back_at=None)
        calls = AgentRunToolCall.objects.filter(run=run_id)
        rows = {call.pk: call for call in calls.filter(step_number__in=steps)}
        if missing := set(call_ids) - set(rows):
            rows |= {call.pk: call for call in calls.filter(pk__in=missing)}
        if has_ended:
            rows |= {call.pk: call for call in calls.filter(status__in=_OPEN)}
        usage = TurnUsage.objects.filter(run=run_id, step_number__in=steps, outcome=TurnUsage.Outcome.ANSWERED)
        return cls(run, list(messages.order_by("position")), list(rows.values()), list(usage))

    def answer(self, message_id: UUID) -> AgentRunMessage | None:
        """Return an answer of the model by its ID. None for other messages and rolled-back ones."""
        return next((row for row in self.messages if row.pk == message_id and row.role == ROLES.ASSISTANT), None)

    def answer_of_step(self, step: int) -> AgentRunMessage | None:
        """Return the answer of a step; None if the step has none, or was not loaded."""
        return next((row for row in self.messages if row.step_number == step and row.role == ROLES.ASSISTANT), None)

    def sent_before(self, answer: AgentRunMessage) -> list[AgentRunMessage]:
        """Return the new messages of the request for this answer: those after the previous answer."""
        before = [row for row in self.messages if row.position < answer.position]
        last = max((row.position for row in before if row.role == ROLES.ASSISTANT), default=0)
        return [row for row in before if row.position > last]

    def call(self, call_id: UUID | None) -> AgentRunToolCall | None:
        return next((call for call in self.calls if call.pk == call_id), None)

    def open_calls(self) -> list[AgentRunToolCall]:
        return [call for call in self.calls if call.status in _OPEN]

    def usage_of_step(self, step: int) -> TurnUsage | None:
        """Return the usage of the answered model call of a step."""
        return next((row for row in self.usage if row.step_number == step), None)


def masked(value: Any) -> Any:
    """Return a JSON value with its secrets masked by the rules of the project in scope."""
    return REDACTOR.clean(cast("JSON", value))[0]


Part = dict[str, Any]
GenAiMessage = dict[str, Any]
#: Maximum characters of a text in an observation, so that it stays below the size limits of receivers.
MAX_TEXT = 400_000
#: Our roles that have another name in the conventions.
_ROLES = {"tool_result": "tool"}


def message_of(role: str, content: Mapping[str, Any]) -> GenAiMessage:
    """Return a stored message in the form of the conventions. Media become placeholders."""
    parts = [part for stored in content["parts"] for part in _parts(stored)]
    message: GenAiMessage = {"role": _ROLES.get(role, role), "parts": parts}
    if role == "assistant":
        message["finish_reason"] = finish_reason_of(content)
    return message


def finish_reason_of(content: Mapping[str, Any]) -> str:
    """Return the finish reason of an answer. Without a stored one: `tool_call` if it has calls, otherwise `stop`."""
    has_calls = any(part.get("part_kind") == "tool-call" for part in content["parts"])
    return str(content.get("finish_reason") or ("tool_call" if has_calls else "stop"))


def text_parts(texts: Sequence[str]) -> list[Part]:
    """Return texts as parts of a message."""
    return [{"type": "text", "content": text} for text in texts]


def cut(text: str) -> str:
    """Return the first `MAX_TEXT` characters of a text. If it is longer, add a note of how many are missing."""
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}… [{len(text) - MAX_TEXT} more characters]"


def _parts(stored: Mapping[str, Any]) -> list[Part]:
    content = stored.get("content")
    match stored["part_kind"]:
        case "tool-call":
            call = {"id": stored.get("tool_call_id"), "name": stored["tool_name"], "arguments": stored.get("args")}
            return [{"type": "tool_call", **call}]
        case "tool-return" | "retry-prompt":
            response = "\n".join(_texts(content))
            return [{"type": "tool_call_response", "id": stored.get("tool_call_id"), "response": response}]
        case "thinking":
            return [{"type": "reasoning", "content": cut(str(content or ""))}]
    return text_parts(_texts(content))


def _texts(content: Any) -> list[str]:
    items = content if isinstance(content, list) else [] if content is None else [content]
    return [cut(_text(item)) for item in items]


def _text(item: Any) -> str:
    if isinstance(item, str):
        return item
    if isinstance(item, Mapping):
        return f"[{item.get('media_type') or item.get('kind', 'media')}]"
    return str(item)
