"""Projects the events of an external run into the rows of its conversation. The caller has locked the run's row.

Rows and events are collected in memory, and written by `flush`. An answer is added when its turn ends or, if the
program sends no turns, when an event of another kind follows its texts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from functools import cached_property
from typing import Any
from uuid import UUID

from django.db import connection
from pydantic_ai.messages import ModelMessage, ModelResponse, ModelResponsePart

from agentops.base import database_clock
from agentops.base.database.statements import insert, select
from agentops.base.redaction.redact import DEFAULT as REDACTOR
from runs.agents.prices import ModelPrice, readable_prices
from runs.conversation import call_ids, tool_starts, transcript, turn_usage
from runs.conversation.transcript import text_of
from runs.conversation.writes import TOKENS, without_shared_output
from runs.external import contents
from runs.external.event_input import IncomingEvent
from runs.external.foreign_payloads import with_notes
from runs.external.model_calls import CallReports
from runs.external.streamed_texts import DELTA_TYPES, TEXT_TYPES, StreamedTexts, parts_of
from runs.lifecycle.moves import PHASES
from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall, ExternalRun, RunError, TurnUsage
from runs.providers import messages
from runs.statuses import Effect
from timeline import log
from timeline.events import EventType, Payload
from timeline.events.llm import LlmTurnEnd, MessageAdded
from timeline.log import Entry
from timeline.models import Phase, RunKind, Source
from timeline.numbered import append_numbered

Role = AgentRunMessage.Role
#: Costs from this amount on do not fit the column of a run.
MAX_TOTAL_COST = Decimal(10) ** 8
#: How many of the newest calls are searched for the call of an event without a call ID.
NEWEST_CALLS = 200
_CALL_COLUMNS = (
    *("status", "starts", "attempts", "started_at", "finished_at", "duration_ms"),
    *("output", "output_bytes", "output_sha256", "result_message_id", "child_run_id"),
)
_STATE_COLUMNS = ("answer_from_seq", "open_texts", "sender", "silent_since")


@dataclass
class Projection:
    """The state of an external run, and the rows and events that are not written yet."""

    run: AgentRun
    state: ExternalRun
    source: Source
    #: The sequence number of the last event, including unwritten events.
    last_seq: int
    texts: StreamedTexts
    #: The model calls that the imported file identifies; None if events have no `call_names`.
    calls: CallReports | None = None
    #: The stored values of `_STATE_COLUMNS`.
    _state_columns: tuple[object, ...] = ()
    #: The position of the last message; None if it was not needed yet.
    _position: int | None = None
    _entries: list[Entry] = field(default_factory=list)
    _messages: list[AgentRunMessage] = field(default_factory=list)
    #: Stored messages that got further parts, by ID.
    _changed_messages: dict[UUID, AgentRunMessage] = field(default_factory=dict)
    #: The unwritten calls by ID: the newest one, because runners may reuse an ID.
    _new_calls: dict[str, AgentRunToolCall] = field(default_factory=dict)
    #: All unwritten calls.
    _calls: list[AgentRunToolCall] = field(default_factory=list)
    #: The stored calls that were looked up, by ID.
    _stored_calls: dict[str, AgentRunToolCall | None] = field(default_factory=dict)
    #: The newest calls of the run, loaded if a runner omitted a call ID.
    _newest_calls: list[AgentRunToolCall] | None = None
    _changed_calls: dict[UUID, AgentRunToolCall] = field(default_factory=dict)
    _usages: list[TurnUsage] = field(default_factory=list)
    _errors: list[RunError] = field(default_factory=list)
    _run_columns: set[str] = field(default_factory=set)

    @classmethod
    def load(cls, run: AgentRun, source: Source) -> Projection:
        """Load the state of a run whose row is locked, and lock its log."""
        last_seq = log.lock(run.pk)
        # A separate query after the locks: in a join, this row would have its values from before the locks.
        states = select(ExternalRun, "run_id = %s", [run.pk])
        state = states[0] if states else ExternalRun.objects.create(run=run)
        return cls.of(run, source, last_seq, state)

    @classmethod
    def of(cls, run: AgentRun, source: Source, last_seq: int, state: ExternalRun) -> Projection:
        """Return the projection of rows that the caller has locked."""
        texts = StreamedTexts(run.pk, dict(state.open_texts))
        return cls(run, state, source, last_seq, texts, _state_columns=_columns_of(state))

    # --- Events ---

    def append(self, entry: Entry) -> int:
        """Add an event, and return its sequence number."""
        self._entries.append(entry)
        self.last_seq += 1
        return self.last_seq

    def append_delta(self, event: IncomingEvent, *, step: int | None = None, late: bool = False) -> int:
        """Add a delta of a streamed text, and return its sequence number.

        `flush` decides how much of the text can be stored already: the end of the text may be the start of a secret.
        """
        # Deltas with a message or extra fields are rare. They are redacted like other events.
        is_clean = not (event.payload.message or event.payload.extra)
        entry = self.entry_of(event, step=step, late=late, clean=is_clean)
        for earlier in self.texts.entries_before(entry, len(self._entries)):
            self.append(self.derived(earlier, event.ts))
        return self.append(entry)

    def end_texts(self, at: datetime | None, types: Iterable[str] = DELTA_TYPES) -> None:
        """End the texts that are streamed with deltas of these types: their held-back ends are stored, too."""
        for type_ in types:
            for rest in self.texts.entries_of_rest(type_, len(self._entries)):
                self.append(self.derived(rest, at))
            self.texts.end(type_, self._entries)

    def entry_of(
        self, event: IncomingEvent, payload: Payload | None = None, *, phase: Phase | None = None, **columns: Any
    ) -> Entry:
        """Return the entry of a received event, with another payload, phase or other column if given."""
        return event.entry(payload, PHASES[self.run.state] if phase is None else phase, **columns)

    def derived(self, entry: Entry, at: datetime | None) -> Entry:
        """Return the entry of an event that is derived from a received one."""
        return replace(entry, phase=PHASES[self.run.state], ts=at, late=self.run.state.terminal)

    def append_message_event(self, row: AgentRunMessage, event: IncomingEvent | None) -> int:
        """Append the `message.added` of a row: the received `event`, or a derived one without it.

        Returns its sequence number.
        """
        entry = transcript.message_event(row)
        if event is None:
            return self.append(self.derived(entry, row.created_at))
        assert isinstance(entry.payload, Payload)
        payload = with_notes(entry.payload, event.payload)
        return self.append(self.entry_of(event, payload, step=entry.step, ref_id=entry.ref_id))

    @property
    def position(self) -> int:
        """Return the position of the last message; 0 without any."""
        if self._position is None:
            self._position = transcript.last_position(self.run.pk)
        return self._position

    @position.setter
    def position(self, position: int) -> None:
        self._position = position

    @property
    def next_step(self) -> int:
        """Return the step of the next answer."""
        return self.run.step_count + 1

    # --- Rows ---

    def add_message(self, role: str, message: ModelMessage, *, step: int, at: datetime | None) -> AgentRunMessage:
        """Add a message to the conversation. The caller appends its event."""
        self.position += 1
        row, _ = transcript.new_row(
            self.run.pk, self.position, message, role=role, step=step, epoch=None, redacts_all=True, at=at
        )
        self._messages.append(row)
        return row

    @property
    def newest_user_message(self) -> AgentRunMessage | None:
        """Return the last user message among the unwritten messages, without texts that programs add."""
        rows = (row for row in reversed(self._messages) if row.role == Role.USER)
        return next((row for row in rows if not contents.is_of_program(text_of(row.content))), None)

    def add_row(self, row: AgentRunMessage) -> None:
        """Add a message that another function created, at the next position."""
        self.position = row.position
        self._messages.append(row)

    def add_answer(
        self, response: ModelResponse, *, at: datetime | None, event: IncomingEvent | None = None
    ) -> AgentRunMessage:
        """Add an answer with its planned calls, and append its `message.added`: see `append_message_event`."""
        call_ids.make_usable(response)
        step = self.next_step
        row = self.add_message(Role.ASSISTANT, response, step=step, at=at)
        self._plan_calls(row, response)
        self.change_run(step_count=step)
        if self.source == Source.IMPORT and not self.model:
            self._note_model(response.model_name or "")
        self.state.answer_from_seq = None
        self.append_message_event(row, event)
        return row

    def extend_answer(self, response: ModelResponse) -> AgentRunMessage | None:
        """Add the parts of a response to the last message, and plan its calls. None if that is not the last answer."""
        row = self._messages[-1] if self._messages else None
        if row is None:
            row = AgentRunMessage.objects.filter(run=self.run, position=self.position).first()
        if row is None or row.role != Role.ASSISTANT or row.step_number != self.run.step_count:
            return None
        answer = messages.load(row.content)
        assert isinstance(answer, ModelResponse)
        call_ids.make_usable(response)
        whole = replace(answer, parts=[*answer.parts, *response.parts])
        columns: dict[str, Any] = {"role": row.role, "step": row.step_number, "epoch": None, "redacts_all": True}
        new, _ = transcript.new_row(self.run.pk, row.position, whole, **columns)
        row.content, row.sha256 = new.content, new.sha256
        self._changed_messages |= {} if row in self._messages else {row.pk: row}
        self._plan_calls(row, response)
        return row

    def _plan_calls(self, row: AgentRunMessage, response: ModelResponse) -> None:
        """Add the planned calls of an answer."""
        for part in response.tool_calls:
            call = tool_starts.planned_call(row, part, effect=None)
            call.effect = Effect.AT_MOST_ONCE.value
            # Some runners name a call by its command line.
            call.tool_name = REDACTOR.clean_text(part.tool_name)[0][:256]
            self._new_calls[call.call_id] = call
            self._calls.append(call)
            if self._newest_calls is not None:
                self._newest_calls.append(call)

    def _note_model(self, name: str) -> None:
        """Set the model of a session that was opened without one, because its first lines have no answer."""
        if name and not name.startswith("<"):  # such as `<synthetic>`, which Claude Code writes for its notes
            model, _ = REDACTOR.clean_text(name)
            self.change_run(agent_config={**self.run.agent_config, "model": model[:200]})

    def add_answer_without_turn(
        self, response: ModelResponse, *, at: datetime | None, event: IncomingEvent | None = None
    ) -> int:
        """Add an answer that no `llm.turn.end` reports, and return the sequence number of its `message.added`.

        An answer with calls gets a derived `llm.turn.end`, because replays read the number of calls from it.
        """
        row = self.add_answer(response, at=at, event=event)
        seq = self.last_seq
        if response.tool_calls:
            end = LlmTurnEnd(model=row.model or None, tool_calls=len(response.tool_calls))
            self.append(self.derived(Entry(end, step=row.step_number, ref_id=row.pk, clean=True), at))
        return seq

    def add_usage(self, response: ModelResponse, *, step: int, cost: Any, duration_ms: int | None) -> TurnUsage:
        """Add the usage of an answer to the run. `cost`: the reported US dollars; None to compute them from prices.

        A cost that does not fit the run's column counts as unknown. For example, a runner may send cents as dollars.
        """
        prices = self._prices if cost is None else ()
        row = turn_usage.usage_of(self.run.pk, step, 0, response, duration_ms, prices=prices)
        if cost is not None:
            row.cost_usd, row.cache_saved_usd, row.cost_source = cost, None, AgentRun.CostSource.REPORTED.value
            row.cost_note = ""
        if row.cost_usd is not None and (self.run.cost_usd or 0) + row.cost_usd >= MAX_TOTAL_COST:
            row.cost_usd, row.cache_saved_usd, row.cost_source = None, None, AgentRun.CostSource.UNKNOWN.value
            row.cost_note = "more than a run can cost"
        self._usages.append(row)
        self.change_run(**{name: getattr(self.run, name) + getattr(row, name) for name in TOKENS})
        if row.cost_usd is not None:
            self.change_run(cost_usd=(self.run.cost_usd or 0) + row.cost_usd, cost_source=row.cost_source)
        else:
            self.change_run(unpriced_calls=self.run.unpriced_calls + 1)
        return row

    @cached_property
    def _prices(self) -> list[ModelPrice]:
        return readable_prices(self.run.project.settings)

    def add_error(self, error: RunError) -> None:
        """Add an error of the run."""
        self._errors.append(error)

    def find_call(self, call_id: str) -> AgentRunToolCall | None:
        """Return the newest call with this ID; None if the run has none."""
        call_id = call_id[: call_ids.MAX_CALL_ID]
        if not call_id:
            return None
        call = self._new_calls.get(call_id)
        if call is None and call_id not in self._stored_calls:
            rows = AgentRunToolCall.objects.filter(run=self.run, call_id=call_id)
            self._stored_calls[call_id] = rows.order_by("-step_number").first()
        return call or self._stored_calls[call_id]

    def newest_calls(self) -> list[AgentRunToolCall]:
        """Return the last `NEWEST_CALLS` stored calls of the run and the unwritten ones, oldest first."""
        if self._newest_calls is None:
            rows = AgentRunToolCall.objects.filter(run=self.run).order_by("-step_number", "-pk")[:NEWEST_CALLS]
            stored = [self._stored_calls.setdefault(row.call_id, row) or row for row in reversed(rows)]
            self._newest_calls = [*stored, *self._calls]
        return self._newest_calls

    def change_call(self, call: AgentRunToolCall) -> None:
        """Note that a call was changed. `flush` writes it."""
        if self._new_calls.get(call.call_id) is not call:
            self._changed_calls[call.pk] = call

    def change_run(self, **columns: Any) -> None:
        """Set columns of the run in memory. `flush` writes them."""
        for name, value in columns.items():
            setattr(self.run, name, value)
        self._run_columns |= columns.keys()

    # --- Answers ---

    def begin_answer(self) -> None:
        """Note that the next event belongs to an answer, if none is in progress. The answer is added later."""
        if self.state.answer_from_seq is None:
            self.state.answer_from_seq = self.last_seq + 1

    def received_parts(self) -> list[ModelResponsePart]:
        """Return the thinking and the text of the answer in progress, received so far; empty without any."""
        begin = self.state.answer_from_seq
        if begin is None:
            return []
        written = self.last_seq - len(self._entries)
        pieces = []
        if begin <= written:
            stored = log.events_of(self.run.pk).filter(seq__gte=begin, type__in=TEXT_TYPES)
            pieces = [(row.type, contents.text_or_empty(row.payload.get("text"))) for row in stored]
        for entry in self._entries[max(begin - written - 1, 0) :]:
            if isinstance(entry.payload, Payload):
                pieces.append((entry.payload.event_type, contents.text_or_empty(getattr(entry.payload, "text", None))))
        return parts_of(pieces)

    def take_parts(self, at: datetime | None) -> list[ModelResponsePart]:
        """Return the thinking and the text of the answer in progress, and end it."""
        self.end_texts(at)
        parts = self.received_parts()
        self.state.answer_from_seq = None
        return parts

    def close_answer(self, at: datetime | None, *more: ModelResponsePart) -> None:
        """Add the answer in progress, made of its texts and `more` parts, unless it has neither."""
        if parts := [*self.take_parts(at), *more]:
            response = ModelResponse(parts=parts, model_name=self.model or None, timestamp=at or database_clock.now())
            self.add_answer_without_turn(response, at=at)

    def follows_answer(self) -> bool:
        """Return whether the last event of the run is the `message.added` of an answer."""
        if self._entries:
            payload: object = self._entries[-1].payload
            return isinstance(payload, MessageAdded) and payload.role == "assistant"
        last = log.events_of(self.run.pk).order_by("-seq").values_list("type", "payload__role").first()
        return last == (EventType.MESSAGE_ADDED, "assistant")

    @property
    def model(self) -> str:
        """Return the model that the run was started with."""
        return str(self.run.agent_config.get("model") or "")

    # --- Writing ---

    def flush(self) -> None:
        """Write the collected rows and events, in the caller's transaction.

        Raises `IntegrityError` if the run already has an event with the same event ID.
        """
        with connection.cursor() as cursor:
            insert(cursor, self._messages)
            insert(cursor, [without_shared_output(call, self._messages) for call in self._calls])
            insert(cursor, self._usages)
            insert(cursor, self._errors)
        for message in self._changed_messages.values():
            message.save(update_fields=["content", "sha256"])
        for call in self._changed_calls.values():
            without_shared_output(call, self._messages).save(update_fields=_CALL_COLUMNS)
        if self._run_columns:
            self.run.save(update_fields=sorted(self._run_columns))
        self.texts.release(self._entries)
        self.state.open_texts = self.texts.state()
        first_seq = self.last_seq - len(self._entries) + 1
        append_numbered(self.run.pk, first_seq, self._entries, source=self.source, run_kind=RunKind(self.run.run_kind))
        self._stored_calls |= self._new_calls
        for collected in (self._entries, self._messages, self._new_calls, self._calls, self._usages, self._errors):
            collected.clear()
        self._changed_messages.clear()
        self._changed_calls.clear()
        self._run_columns.clear()

    def save_state(self) -> None:
        """Write the state that the next projection of this run continues, if it has changed."""
        columns = _columns_of(self.state)
        if columns != self._state_columns:
            self.state.save(update_fields=_STATE_COLUMNS)
            self._state_columns = columns


def _columns_of(state: ExternalRun) -> tuple[object, ...]:
    return tuple(getattr(state, name) for name in _STATE_COLUMNS)
