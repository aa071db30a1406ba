"""Envelopes that name events like hooks: the input of an agent's hook, sent after the fact.

An event of the log without such a name is left out, unless a sink selects its type.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from uuid import UUID

from agentops.base.redaction import project_scope
from agentops.base.redaction.redact import DEFAULT as REDACTOR
from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall
from runs.statuses import ToolStatus
from runs.telemetry.sink_kind import Envelope, OutgoingEvent
from timeline.events import EventType
from timeline.models import Event


class HookName(StrEnum):
    """The names of hook events in envelopes."""

    AGENT_START = "agent_start"
    TURN_START = "turn_start"
    TURN_END = "turn_end"
    PRE_TOOL_USE = "pre_tool_use"
    POST_TOOL_USE = "post_tool_use"
    POST_TOOL_USE_FAILURE = "post_tool_use_failure"
    AGENT_STOP = "agent_stop"


_ENDS = frozenset({EventType.RUN_COMPLETED, EventType.RUN_FAILED, EventType.RUN_STOPPED})
#: The log types from which hook events are made. A paused run ends its turn.
LOG_TYPES = frozenset(
    {*_ENDS, EventType.RUN_STARTED, EventType.RUN_PAUSED, EventType.LLM_TURN_START}
    | {EventType.TOOL_START, EventType.TOOL_END}
)
#: Types that are sent unchanged in addition to the hook event, if a sink selects them.
_KEPT = frozenset({EventType.RUN_PAUSED})
HookEventFields = tuple[HookName, dict[str, Any]]


def hook_envelopes(events: Sequence[OutgoingEvent], *, is_selected: bool) -> list[list[Envelope]]:
    """Return the envelopes of each event, in the order of the log. At most four queries.

    `is_selected`: the receiver has selected these types, so events without a hook event keep their own names.
    """
    rows = _Rows.load([event.row for event in events if event.row.type in LOG_TYPES])
    return [_envelopes(event, rows, is_selected=is_selected) for event in events]


def _envelopes(event: OutgoingEvent, rows: _Rows, *, is_selected: bool) -> list[Envelope]:
    row = event.row
    if row.log_id is None or row.type not in LOG_TYPES or row.log_id not in rows.runs:
        return [event.envelope] if is_selected else []
    with project_scope.limited_to(row.log.project_id):
        named = [_envelope(event, name, fields) for name, fields in _fields_of(row, rows)]
    return [*named, event.envelope] if is_selected and row.type in _KEPT else named


def _envelope(event: OutgoingEvent, name: HookName, fields: Mapping[str, Any]) -> Envelope:
    place = {"id": f"{event.id}.{name}", "run_id": str(event.row.log_id), "seq": event.row.seq}
    return {**event.envelope, "event_type": name.value, "payload": {**place, **fields}}


@dataclass(frozen=True)
class _Rows:
    """The rows for the payloads: the runs, the calls by ID, and the steps with an answer."""

    runs: Mapping[UUID, AgentRun]
    calls: Mapping[UUID, AgentRunToolCall]
    answered: frozenset[tuple[UUID, int]]
    #: Ended runs that were paused before. The pause has ended their last turn.
    paused: frozenset[UUID]

    @classmethod
    def load(cls, events: Sequence[Event]) -> _Rows:
        columns = ("prompt", "result", "error_message", "status", "status_reason", "step_base", "step_count")
        runs = AgentRun.objects.only(*columns).in_bulk({event.log_id for event in events})
        calls = AgentRunToolCall.objects.in_bulk(
            {event.ref_id for event in events if event.ref_id and event.type.startswith("tool.")}
        )
        steps = {event.step - 1 for event in events if event.type == EventType.LLM_TURN_START and event.step}
        ended = {event.log_id for event in events if event.type in _ENDS}
        steps |= {runs[run_id].step_count for run_id in runs}
        answers = AgentRunMessage.objects.filter(
            run__in=runs, step_number__in=steps, role=AgentRunMessage.Role.ASSISTANT, rolled_back_at=None
        )
        paused = Event.objects.filter(log__in=ended, type=EventType.RUN_PAUSED).values_list("log", flat=True)
        return cls(
            runs, calls, frozenset(answers.values_list("run_id", "step_number")), frozenset(paused if ended else ())
        )  # fmt: skip


def _fields_of(row: Event, rows: _Rows) -> Iterator[HookEventFields]:
    run = rows.runs[row.log_id]
    match row.type:
        case EventType.RUN_STARTED:
            yield HookName.AGENT_START, {"task": _masked(run.prompt)}
        case EventType.LLM_TURN_START:
            # A repeated attempt belongs to the same turn.
            if not row.payload.get("attempt"):
                yield from _turn_end(run, (row.step or 0) - 1, rows)
                yield HookName.TURN_START, {"turn": row.step}
        case EventType.TOOL_START | EventType.TOOL_END:
            yield from _of_tool(row, rows.calls.get(row.ref_id) if row.ref_id else None)
        case EventType.RUN_PAUSED:
            yield from _turn_end(run, run.step_count, rows)
        case _:
            if run.pk not in rows.paused:
                yield from _turn_end(run, run.step_count, rows)
            yield HookName.AGENT_STOP, _stop_of(row, run)


def _turn_end(run: AgentRun, step: int, rows: _Rows) -> Iterator[HookEventFields]:
    """Yield the end of a turn: after its last tool call, when the next turn begins or the run ends."""
    if step > run.step_base and (run.pk, step) in rows.answered:
        yield HookName.TURN_END, {"turn": step}


def _of_tool(row: Event, call: AgentRunToolCall | None) -> Iterator[HookEventFields]:
    if call is None:
        return
    arguments = call.input if call.changed_arguments is None else call.changed_arguments
    use = {"tool_name": _masked(call.tool_name), "args": _masked(arguments), "tool_use_id": call.call_id}
    if row.type == EventType.TOOL_START:
        if not row.payload.get("attempt"):
            yield HookName.PRE_TOOL_USE, use
        return
    if not call.starts:  # it was denied, or its tool does not exist, or a runner reports only ends
        yield HookName.PRE_TOOL_USE, use
    output = _masked(call.output)
    if call.status == ToolStatus.COMPLETED:
        yield HookName.POST_TOOL_USE, {**use, "result": output}
    else:
        yield HookName.POST_TOOL_USE_FAILURE, {**use, "error": output or row.payload.get("error") or call.status}


def _stop_of(row: Event, run: AgentRun) -> dict[str, Any]:
    stopped: dict[str, Any] = {"result": _masked(run.result) or None}
    if row.type != EventType.RUN_COMPLETED:
        stopped["error"] = _masked(run.error_message or run.status_reason or run.status)
    return stopped


def _masked(value: Any) -> Any:
    return REDACTOR.clean(value)[0]
