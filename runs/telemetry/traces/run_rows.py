"""The rows of a run from which its observations are made: a fixed number of queries for any number of events."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, cast
from uuid import UUID

from agentops.base.redaction.redact import DEFAULT as REDACTOR
from agentops.base.redaction.redact import JSON
from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall, TurnUsage
from runs.statuses import ToolStatus

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
        """Load a run, the rows of these steps, and the messages sent before them. `has_ended` adds the open calls."""
        run = AgentRun.objects.select_related("parent_run").get(pk=run_id)
        # The messages sent at a step are the results of the step before it.
        read = {*steps, *(step - 1 for step in steps)}
        messages = AgentRunMessage.objects.filter(run=run_id, step_number__in=read, rolled_back_at=None)
        calls = AgentRunToolCall.objects.filter(run=run_id, step_number__in=steps)
        rows = {call.pk: call for call in calls}
        if missing := set(call_ids) - set(rows):
            rows |= {call.pk: call for call in AgentRunToolCall.objects.filter(run=run_id, pk__in=missing)}
        if has_ended:
            rows |= {call.pk: call for call in AgentRunToolCall.objects.filter(run=run_id, status__in=_OPEN)}
        usage = TurnUsage.objects.filter(run=run_id, step_number__in=steps, outcome=TurnUsage.Outcome.ANSWERED)
        return cls(run, list(messages.order_by("position")), list(rows.values()), list(usage))

    def answer(self, message_id: UUID) -> AgentRunMessage | None:
        """Return an assistant message. Rolled-back messages are excluded."""
        return next((row for row in self.messages if row.pk == message_id and row.role == ROLES.ASSISTANT), None)

    def answer_of_step(self, step: int) -> AgentRunMessage | None:
        """Return the answer of a step."""
        return next((row for row in self.messages if row.step_number == step and row.role == ROLES.ASSISTANT), None)

    def sent_before(self, answer: AgentRunMessage) -> list[AgentRunMessage]:
        """Return the messages that were sent to the model for the first time before this answer."""
        before = [row for row in self.messages if row.position < answer.position]
        last = max((row.position for row in before if row.role == ROLES.ASSISTANT), default=0)
        return [row for row in before if row.position > last]

    def calls_of_step(self, step: int) -> list[AgentRunToolCall]:
        """Return the calls of a step."""
        return [call for call in self.calls if call.step_number == step]

    def call(self, call_id: UUID | None) -> AgentRunToolCall | None:
        """Return a call."""
        return next((call for call in self.calls if call.pk == call_id), None)

    def open_calls(self) -> list[AgentRunToolCall]:
        """Return the calls that have not ended, or whose outcome is unknown."""
        return [call for call in self.calls if call.status in _OPEN]

    def usage_of_step(self, step: int) -> TurnUsage | None:
        """Return the usage of a step's answer."""
        return next((row for row in self.usage if row.step_number == step), None)


def masked(value: Any) -> Any:
    """Return a JSON value with its secrets masked by the rules of the project in scope."""
    return REDACTOR.clean(cast("JSON", value))[0]
