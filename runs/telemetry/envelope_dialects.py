"""The dialects of envelopes, named like the events of the log or the hooks of agents, and the option to select one.

An envelope of the dialect `hooks` has the input of an agent's hook, but is sent afterwards. An event of the log without
a corresponding hook is left out, unless a sink selects its type.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, ClassVar
from uuid import UUID

from pydantic import Field

from agentops.base.redaction import project_scope
from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall
from runs.models.telemetry import TEST
from runs.statuses import ToolStatus
from runs.telemetry.observation import masked
from runs.telemetry.sink_kind import Envelope, OutgoingEvent, SinkKind, SinkOptions, SinkTarget
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
#: The log types from which hook events are made. A pause ends the turn.
LOG_TYPES = frozenset(
    {*_ENDS, EventType.RUN_STARTED, EventType.RUN_PAUSED, EventType.LLM_TURN_START}
    | {EventType.TOOL_START, EventType.TOOL_END}
)
#: Types that are sent in addition to their hook event, if a sink selects them.
_SENT_TOO = frozenset({EventType.RUN_PAUSED})
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
    return [*named, event.envelope] if is_selected and row.type in _SENT_TOO else named


def _envelope(event: OutgoingEvent, name: HookName, fields: Mapping[str, Any]) -> Envelope:
    position = {"id": f"{event.id}.{name}", "run_id": str(event.row.log_id), "seq": event.row.seq}
    return {**event.envelope, "event_type": name.value, "payload": {**position, **fields}}


@dataclass(frozen=True)
class _Rows:
    """The rows from which the payloads of hook events are made."""

    runs: Mapping[UUID, AgentRun]
    calls: Mapping[UUID, AgentRunToolCall]
    #: The runs and numbers of steps that have an answer of the model.
    answered: frozenset[tuple[UUID, int]]
    #: Ended runs with a pause before their end. The pause has already ended their last turn.
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
        )


def _fields_of(row: Event, rows: _Rows) -> Iterator[HookEventFields]:
    """Yield the hook events of an event of the log."""
    run = rows.runs[row.log_id]
    match row.type:
        case EventType.RUN_STARTED:
            yield HookName.AGENT_START, {"task": masked(run.prompt)}
        case EventType.LLM_TURN_START:
            # A repeated attempt belongs to the same turn.
            if not row.payload.get("attempt"):
                yield from _turn_end(run, (row.step or 0) - 1, rows)
                yield HookName.TURN_START, {"turn": row.step}
        case EventType.TOOL_START | EventType.TOOL_END:
            call = rows.calls.get(row.ref_id) if row.ref_id is not None else None
            if call is not None:
                yield from _tool_events(row, call)
        case EventType.RUN_PAUSED:
            yield from _turn_end(run, run.step_count, rows)
        case _:
            if run.pk not in rows.paused:
                yield from _turn_end(run, run.step_count, rows)
            yield HookName.AGENT_STOP, _stop_of(row, run)


def _turn_end(run: AgentRun, step: int, rows: _Rows) -> Iterator[HookEventFields]:
    """Yield the end of a step's turn, if the step belongs to this run and was answered.

    A turn ends when the next one begins, or when the run pauses or ends.
    """
    if step > run.step_base and (run.pk, step) in rows.answered:
        yield HookName.TURN_END, {"turn": step}


def _tool_events(row: Event, call: AgentRunToolCall) -> Iterator[HookEventFields]:
    arguments = call.input if call.changed_arguments is None else call.changed_arguments
    use = {"tool_name": masked(call.tool_name), "args": masked(arguments), "tool_use_id": call.call_id}
    if row.type == EventType.TOOL_START:
        if not row.payload.get("attempt"):
            yield HookName.PRE_TOOL_USE, use
        return
    if not call.starts:  # the call was denied, its tool does not exist, or the runner reports only ends
        yield HookName.PRE_TOOL_USE, use
    output = masked(call.output)
    if call.status == ToolStatus.COMPLETED:
        yield HookName.POST_TOOL_USE, {**use, "result": output}
    else:
        yield HookName.POST_TOOL_USE_FAILURE, {**use, "error": output or row.payload.get("error") or call.status}


def _stop_of(row: Event, run: AgentRun) -> dict[str, Any]:
    fields: dict[str, Any] = {"result": masked(run.result) or None}
    if row.type != EventType.RUN_COMPLETED:
        fields["error"] = masked(run.error_message or run.status_reason or run.status)
    return fields


class EnvelopeDialect(StrEnum):
    """The names of events in envelopes."""

    HOOKS = "hooks"  # agent_start, turn_start, pre_tool_use and so on
    LOG = "log"  # run.started, llm.turn.start, tool.start and so on, with all other events


class EnvelopeOptions(SinkOptions):
    """The option of all kinds that send envelopes."""

    dialect: Annotated[EnvelopeDialect, Field(strict=False)] = EnvelopeDialect.HOOKS


class EnvelopeKind(SinkKind):
    """A kind that sends envelopes in the dialect of its options."""

    options_class: ClassVar[type[SinkOptions]] = EnvelopeOptions

    def types_of(self, options: Mapping[str, Any], selected: Collection[str]) -> Collection[str]:
        """Return the event types to read: the selected ones, or all that have an envelope. Empty: all types."""
        if selected or options.get("dialect") == EnvelopeDialect.LOG:
            return selected
        return LOG_TYPES


def envelopes_of(target: SinkTarget, events: Sequence[OutgoingEvent]) -> list[list[Envelope]]:
    """Return the envelopes of each event in the dialect of the sink. A test event keeps its own envelope."""
    if target.options.dialect == EnvelopeDialect.LOG or any(event.row.type == TEST for event in events):
        return [[event.envelope] for event in events]
    return hook_envelopes(events, is_selected=bool(target.event_types))
