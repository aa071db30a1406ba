"""Turn the events of runs into observations: opened at the start of an activity, closed at its end.

An observation may be closed twice, for example after a crash, with the same ID and the same contents.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any
from uuid import UUID

from django.db.models.fields.json import KT

from agentops.base.redaction import project_scope
from runs.conversation import call_ids
from runs.conversation.writes import TOKENS
from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall, FlowRun
from runs.models.telemetry import TEST
from runs.statuses import RunStatus, ToolStatus
from runs.telemetry.observation import (
    RUN_NAME,
    Observation,
    ObservationKind,
    ObservedFailure,
    RunRows,
    TraceFacts,
    cut,
    finish_reason_of,
    masked,
    message_of,
    run_span,
    span_id,
    turn_span,
)
from runs.telemetry.sink_kind import OutgoingEvent
from timeline.events import TERMINAL_TYPES, EventType
from timeline.reading import shift

#: Events after which a run does nothing until it is resumed.
ENDS = frozenset({EventType.RUN_PAUSED, *TERMINAL_TYPES})
#: The events from which observations are made.
NEEDED = (
    *(EventType.RUN_CREATED, EventType.LLM_TURN_START, EventType.MESSAGE_ADDED, EventType.LLM_TURN_END),
    *(EventType.TOOL_START, EventType.TOOL_END, EventType.TOOL_OUTCOME_RESOLVED, *sorted(ENDS)),
)
_FAILED = frozenset({RunStatus.FAILED, RunStatus.STOPPED})


def observe(events: Sequence[OutgoingEvent]) -> list[Observation]:
    """Return the observations of these events, in their order; of a test event, a test observation.

    Makes a fixed number of queries for each run.
    """
    if events and events[0].row.type == TEST:
        return [_test_observation(events[0])]
    by_run: dict[UUID, list[OutgoingEvent]] = {}
    for event in events:
        by_run.setdefault(event.row.log_id, []).append(event)
    # A log without a run has no trace.
    runs = set(AgentRun.objects.filter(pk__in=by_run).values_list("pk", flat=True))
    observers = {run_id: _observer(own) for run_id, own in by_run.items() if run_id in runs}
    observations: list[Observation] = []
    for event in events:
        if event.row.log_id not in observers:
            continue
        with project_scope.limited_to(event.row.log.project_id):
            observations += observers[event.row.log_id].observations(event)
    return observations


def _observer(events: Sequence[OutgoingEvent]) -> _Observer:
    rows = [event.row for event in events]
    steps = {row.step for row in rows if row.step is not None}
    has_ended = any(row.type in ENDS for row in rows)
    run_id = rows[0].log_id
    if has_ended:
        steps |= set(AgentRun.objects.filter(pk=run_id).values_list("step_count", flat=True))
    # The next answer closes the turn before it.
    steps |= {step - 1 for step in steps}
    calls = {row.ref_id for row in rows if row.ref_id and row.type.startswith("tool.")}
    loaded = RunRows.load(run_id, steps, calls, has_ended=has_ended)
    with project_scope.limited_to(loaded.run.project_id):
        return _Observer(loaded, trace_of(loaded.run))


def trace_of(run: AgentRun) -> TraceFacts:
    """Return the facts that the observations of a run share, masked by the rules of the project in scope."""
    config = run.agent_config
    top = run.parent_run or run
    metadata = {
        "run_id": str(run.pk),
        "source": run.source_name,
        "resumed_from": str(run.resumed_from_id) if run.resumed_from_id else None,
        "parent_run_id": str(run.parent_run_id) if run.parent_run_id else None,
        **_flow_metadata(top),
    }
    return TraceFacts(
        run_id=run.pk,
        # The runs of a flow's nodes form one session.
        session_id=str(top.flow_run_id or top.root_run_id),
        agent_id=str(config.get("agent_id") or ""),
        provider=str(config.get("provider") or run.source),
        model=str(config.get("model") or ""),
        title=masked(run.title),
        labels=masked(list(run.labels)),
        metadata={name: value for name, value in metadata.items() if value is not None},
    )


def _flow_metadata(run: AgentRun) -> dict[str, str]:
    """Return which flow run, flow and node a run belongs to; empty for a run outside of flows."""
    if run.flow_run_id is None:
        return {}
    slugs = FlowRun.with_removed.filter(pk=run.flow_run_id).annotate(of_flow=KT("definition__flow_id"))
    return {
        "flow_run_id": str(run.flow_run_id),
        "flow_id": slugs.values_list("of_flow", flat=True).first() or "",
        "node_id": str(run.agent_config.get("node_id") or ""),
    }


def _test_observation(event: OutgoingEvent) -> Observation:
    """Return the observation of a test event: a run of no duration, titled "Test", in a trace of its own."""
    trace_id = UUID(hex=sha256(event.id.encode()).hexdigest()[:32])
    facts = TraceFacts(trace_id, str(trace_id), "agentops", "agentops", "", "Test", ["test"])
    return Observation(
        ObservationKind.RUN,
        run_span(trace_id),
        None,
        "agentops-test",
        facts,
        event,
        event.row.ts,
        event.row.ts,
        output=event.row.payload["message"],
        status="completed",
    )


@dataclass(frozen=True)
class _Observer:
    """Makes the observations of one run."""

    rows: RunRows
    trace: TraceFacts

    def observations(self, event: OutgoingEvent) -> Iterator[Observation]:
        """Yield the observations that an event opens (outer before inner) or closes (inner before outer)."""
        row, rows = event.row, self.rows
        match row.type:
            case EventType.RUN_CREATED:
                yield self._run(event)
            case EventType.LLM_TURN_START if row.step is not None:
                yield self._turn(event, row.step, row.ts, None)
            case EventType.MESSAGE_ADDED | EventType.LLM_TURN_END:
                yield from self._answered(event)
            case EventType.TOOL_START | EventType.TOOL_END | EventType.TOOL_OUTCOME_RESOLVED:
                call = rows.call(row.ref_id)
                if call is not None:
                    yield self._tool(event, call, is_open=row.type == EventType.TOOL_START)
            case _:
                yield from self._ended(event)

    def _answered(self, event: OutgoingEvent) -> Iterator[Observation]:
        row, rows = event.row, self.rows
        answer = rows.answer(row.ref_id) if row.ref_id else None
        is_step = answer is not None and call_ids.is_step(answer.content)
        # The engine ends each turn with an event. Runners may not, and then the message ends it.
        if row.type == EventType.MESSAGE_ADDED and rows.run.source == AgentRun.Source.NATIVE and not is_step:
            return
        if answer is None:
            return
        yield from self._closed_turn(event, answer.step_number - 1)
        if is_step:
            return  # a step of a remote run without a model: its call is the observation
        began = self._begin_of(answer)
        yield self._turn(event, answer.step_number, began, None)
        yield self._generation(event, answer, began)

    def _ended(self, event: OutgoingEvent) -> Iterator[Observation]:
        run = self.rows.run
        is_final = event.row.type in TERMINAL_TYPES
        if is_final:
            for call in self.rows.open_calls():
                yield self._tool(event, call, is_open=False)
        yield from self._closed_turn(event, run.step_count)
        yield self._run(event, ended_at=event.row.ts if is_final else None)

    def _run(self, event: OutgoingEvent, ended_at: datetime | None = None) -> Observation:
        run = self.rows.run
        failure = None
        if ended_at is not None and run.state in _FAILED:
            kind = run.error_type or run.status_reason or run.status
            text = run.error_message or f"{run.status}: {run.status_reason or kind}"
            failure = ObservedFailure(kind, cut(masked(text)))
        result: Any = run.structured_output if run.structured_output is not None else run.result or run.summary
        return Observation(
            ObservationKind.RUN,
            run_span(run.pk),
            None,
            RUN_NAME,
            self.trace,
            event,
            run.created_at,
            ended_at,
            input=masked(run.prompt),
            output=masked(result) or None,
            failure=failure,
            status=run.status,
        )

    def _closed_turn(self, event: OutgoingEvent, step: int) -> Iterator[Observation]:
        """Yield the turn of a step in its final state, if the step was answered."""
        answer = self.rows.answer_of_step(step)
        if answer is None or call_ids.is_step(answer.content):
            return
        calls = [call for call in self.rows.calls if call.step_number == step]
        ended_at = max([answer.created_at, *(call.finished_at for call in calls if call.finished_at is not None)])
        yield self._turn(event, step, self._begin_of(answer), ended_at)

    def _begin_of(self, answer: AgentRunMessage) -> datetime:
        """Return when the model call of an answer began."""
        usage = self.rows.usage_of_step(answer.step_number)
        return shift(answer.created_at, -timedelta(milliseconds=(usage.duration_ms or 0) if usage else 0))

    def _turn(self, event: OutgoingEvent, step: int, started_at: datetime, ended_at: datetime | None) -> Observation:
        run = self.rows.run
        return Observation(
            ObservationKind.TURN,
            turn_span(run.pk, step),
            run_span(run.pk),
            f"turn-{step - run.step_base - 1}",
            self.trace,
            event,
            started_at,
            ended_at,
        )

    def _generation(self, event: OutgoingEvent, answer: AgentRunMessage, began: datetime) -> Observation:
        usage, content = self.rows.usage_of_step(answer.step_number), answer.content
        sent = [message_of(row.role, row.content) for row in self.rows.sent_before(answer)]
        tokens = {name: getattr(usage, name) for name in TOKENS} if usage is not None else {}
        cost = usage.cost_usd if usage is not None else None
        return Observation(
            ObservationKind.GENERATION,
            span_id("answer", answer.pk),
            turn_span(answer.run_id, answer.step_number),
            answer.model or self.trace.model or "model",
            self.trace,
            event,
            began,
            answer.created_at,
            input=masked(sent),
            output=masked([message_of(answer.role, content)]),
            model=answer.model or self.trace.model,
            response_id=str(content.get("provider_response_id") or ""),
            finish_reason=finish_reason_of(content),
            usage={name: count for name, count in tokens.items() if count},
            cost_usd=None if cost is None else float(cost),
        )

    def _tool(self, event: OutgoingEvent, call: AgentRunToolCall, *, is_open: bool) -> Observation:
        failure, output = None, None
        if not is_open:
            output = masked(call.output)
            if call.status != ToolStatus.COMPLETED:
                text = output if isinstance(output, str) else f"the call is {call.status}"
                failure = ObservedFailure("tool_error" if call.status == ToolStatus.ERROR else call.status, cut(text))
        started_at = call.started_at or call.created_at
        ended_at = None if is_open else max(call.finished_at or event.row.ts, started_at)
        # A step of a remote run that no model requested has no turn.
        is_step = call.call_id.startswith(call_ids.STEP)
        return Observation(
            ObservationKind.TOOL,
            span_id("call", call.pk),
            run_span(call.run_id) if is_step else turn_span(call.run_id, call.step_number),
            masked(call.tool_name),
            self.trace,
            event,
            started_at,
            ended_at,
            input=masked(call.input),
            output=output,
            failure=failure,
            call_id=call.call_id,
        )
