"""Creates a fixture of the stored conversation of any run, with its secrets masked."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast
from uuid import UUID

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ThinkingPart, UserContent, UserPromptPart

from agentops.base import database_clock
from agentops.base.redaction.redact import DEFAULT as REDACTOR
from agentops.base.redaction.redact import REDACTED
from agentops.base.refusals import Conflict
from runs.conversation import call_ids, repeats, transcript
from runs.fixtures.assemble import Answer, assemble
from runs.fixtures.format import UNKNOWN_OUTCOME, About, ContentEvent, Fixture, FixtureError, RecordedResult
from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall, TurnUsage
from runs.providers import messages
from runs.statuses import LIVE, ToolStatus
from timeline.events import EventType
from timeline.events.base import number
from timeline.models import Event

_DELTAS = (EventType.LLM_TEXT_DELTA, EventType.LLM_THINKING_DELTA)
_WHOLE = (EventType.LLM_TEXT, EventType.LLM_THINKING)
#: Kind of an event → the part of a response with its content.
_KINDS = {"text": TextPart, "thinking": ThinkingPart}
#: A run of the conversation, and a step number.
CallKey = tuple[UUID, int | None]


class StreamedCall:
    """The events with content of one model call, oldest first, with their times."""

    def __init__(self, began_at: datetime) -> None:
        self.began_at = began_at
        self.was_streamed = False
        self.events: list[ContentEvent] = []

    def add(self, kind: str, text: str, at: datetime) -> None:
        at_ms = database_clock.milliseconds_between(self.began_at, at)
        last = self.events[-1].at_ms if self.events else 0
        event = ContentEvent.model_validate({"type": kind, "content": text, "atMs": max(at_ms, last)}, by_alias=True)
        self.events.append(event)

    def events_matching(self, response: ModelResponse) -> list[ContentEvent]:
        """Return the events of each kind whose joined texts equal the content of the response.

        They differ after a change of redaction rules, or if another program sent only a part. Empty if the call was not
        streamed.
        """
        if not self.was_streamed:
            return []
        kinds = {kind for kind, part_type in _KINDS.items() if self._joined(kind) == _content(response, part_type)}
        return [event for event in self.events if event.type in kinds]

    def _joined(self, kind: str) -> str:
        return "".join(event.content for event in self.events if event.type == kind)


def streamed_calls(run_ids: Iterable[UUID]) -> dict[CallKey, StreamedCall]:
    """Return the events of each model call of these runs. Of a repeated call, only the last attempt is returned."""
    types = [EventType.LLM_TURN_START, *_DELTAS, *_WHOLE]
    events = Event.objects.filter(log__in=list(run_ids), type__in=types, step__isnull=False).order_by("log", "seq")
    calls: dict[CallKey, StreamedCall] = {}
    for log_id, step, kind, at, payload in events.values_list("log", "step", "type", "ts", "payload"):
        if kind == EventType.LLM_TURN_START:
            calls[log_id, step] = StreamedCall(at)
            continue
        call = calls.setdefault((log_id, step), StreamedCall(at))
        call.was_streamed |= kind in _DELTAS
        call.add(kind.split(".")[1], str(payload.get("text") or ""), at)
    return calls


def _content(response: ModelResponse, part_type: type[TextPart | ThinkingPart]) -> str:
    return "".join(part.content for part in response.parts if isinstance(part, part_type))


# --- Fixtures ---

Role = AgentRunMessage.Role


class NothingRecorded(Conflict):
    """The run has no answer of a model, or its conversation cannot be a fixture."""

    code = "nothing_recorded"


@dataclass(frozen=True)
class RunRecording:
    """The fixture of a run, and notes on its omissions. The notes are in the fixture too (`about.notes`)."""

    fixture: Fixture
    notes: list[str]


@dataclass
class _Draft:
    """A fixture under construction."""

    run: AgentRun
    calls: dict[UUID, AgentRunToolCall]
    system: str | None = None
    prompt: list[UserContent] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    #: The answers by message ID.
    by_message: dict[UUID, Answer] = field(default_factory=dict)
    #: The role of the preceding message.
    last_role: str = ""
    #: How many items of the conversation were changed, by item and change, such as ("message", "with masked secrets").
    changes: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, row: AgentRunMessage) -> None:
        content = self._cleaned(row.content)
        if row.role == Role.ASSISTANT:
            self.changes["step", "without a model played as a tool call of a model"] += call_ids.is_step(content)
            response = cast("ModelResponse", messages.load(content))
            self.answers.append(Answer(response, session_id=self.run.session_id or None))
            self.by_message[row.pk] = self.answers[-1]
        elif row.role == Role.TOOL_RESULT:
            self._add_result(row, content)
        else:
            self._add_request(row, content["parts"][0]["content"])
        self.last_role = row.role

    def _add_request(self, row: AgentRunMessage, content: Any) -> None:
        if row.role == Role.SYSTEM:
            if self.answers or self.prompt or self.system is not None:
                self.changes["system message", "left out: only the first is played"] += 1
            else:
                self.system = content
            return
        if self.last_role == Role.USER:
            self.changes["user message", "joined with the user message before"] += 1
        items = messages.content_of(content)
        (self.answers[-1].user if self.answers else self.prompt).extend([items] if isinstance(items, str) else items)

    def _add_result(self, row: AgentRunMessage, content: dict[str, Any]) -> None:
        call = self.calls.get(row.pk)
        answer = self.by_message.get(call.message_id) if call is not None else None
        if call is None or answer is None:
            self.changes["tool result", "left out: it belongs to no call of the conversation"] += 1
            return
        if self.last_role == Role.USER or not _is_next(call.call_id, answer):
            self.changes["tool result", "moved: results are played in the order of their calls"] += 1
        output = content["parts"][0]["content"]
        if call.status == ToolStatus.UNKNOWN and output == UNKNOWN_OUTCOME:
            return
        if call.status == ToolStatus.DENIED:
            self.changes["denied tool call", "played as failed"] += 1
        failed = call.status in (ToolStatus.ERROR, ToolStatus.DENIED)
        answer.tools[call.call_id] = RecordedResult(
            output=_without_warning(output), error=failed, duration_ms=call.duration_ms or 0
        )

    def _cleaned(self, content: dict[str, Any]) -> dict[str, Any]:
        cleaned, changes = REDACTOR.clean(content)
        if REDACTED in changes:
            self.changes["message", "with masked secrets"] += 1
        return cast("dict[str, Any]", cleaned)


def record(run: AgentRun) -> RunRecording:
    """Return the fixture of the conversation of `run`, with the runs that it continues. Takes several queries.

    Redaction rules of the project apply if the caller has added the project to the scope. Raises `NothingRecorded`.
    """
    rows = transcript.rows_of(run)
    calls = AgentRunToolCall.objects.filter(run__in={row.run_id for row in rows}, result_message__isnull=False)
    draft = _Draft(run, {call.result_message_id: call for call in calls if call.result_message_id is not None})
    for row in rows:
        draft.add(row)
    if not draft.answers:
        raise NothingRecorded("the run has no answer of a model yet, so there is nothing to record")
    _add_times(draft, rows)
    notes = _notes(run, draft, rows)
    about = About(title=_title(run), origin=f"agentops run {run.pk}", notes="; ".join(notes))
    try:
        fixture = assemble(draft.answers, where=f"run {run.pk}", system=draft.system, prompt=draft.prompt, about=about)
    except FixtureError as error:
        raise NothingRecorded(f"the conversation cannot be a fixture: {error.message}") from error
    return RunRecording(fixture, notes)


def _add_times(draft: _Draft, rows: list[AgentRunMessage]) -> None:
    """Set the duration of each answer and, if it was streamed, its events."""
    run_ids = {row.run_id for row in rows}
    usages = TurnUsage.objects.filter(run__in=run_ids, outcome=TurnUsage.Outcome.ANSWERED, duration_ms__isnull=False)
    times = usages.values_list("run", "step_number", "duration_ms")
    durations: dict[CallKey, int] = {(run_id, step): took_ms or 0 for run_id, step, took_ms in times}
    streamed = streamed_calls(run_ids)
    for row in rows:
        if row.role == Role.ASSISTANT:
            answer, key = draft.by_message[row.pk], (row.run_id, row.step_number)
            answer.duration_ms = durations.get(key, 0)
            answer.events = streamed[key].events_matching(answer.message) if key in streamed else []


def _notes(run: AgentRun, draft: _Draft, rows: list[AgentRunMessage]) -> list[str]:
    """Return notes on the fixture's omissions, and on possible differences in a run that plays it."""
    counts = draft.changes.copy()
    run_ids = {row.run_id for row in rows}
    rolled_back = AgentRunMessage.objects.filter(run__in=run_ids, rolled_back_at__isnull=False)
    counts["rolled-back message", "left out"] = rolled_back.count()
    children = AgentRun.objects.filter(parent_run__in=run_ids)
    counts["child run", "left out: only its result is played"] = children.count()
    unknown = "without a known result: a run that plays it waits for a person, unless on_unknown_tool is tell_model"
    calls = [(answer, part) for answer in draft.answers for part in answer.message.tool_calls]
    counts["tool call", unknown] = sum(part.tool_call_id not in answer.tools for answer, part in calls)
    repeated = "at which the repeat guard warns or stops a run that plays the fixture"
    counts["repeated tool call", repeated] = _repeated_calls(draft)
    notes = [f"{number(count, noun)} {change}" for (noun, change), count in counts.items() if count]
    if not draft.prompt:
        notes.append("the conversation starts without a user message")
    if run.state in LIVE:
        notes.append(f"the run is {run.status}: only what it has done so far is recorded")
    return notes


def _repeated_calls(draft: _Draft) -> int:
    """Return the number of calls at which the repeat guard would warn or stop a run that plays the fixture."""
    count = 0
    newest_first: deque[ModelMessage] = deque()
    for answer in draft.answers:
        newest_first.appendleft(answer.message)
        ids = [part.tool_call_id for part in answer.message.tool_calls]
        count += sum(repeats.streak(newest_first, call_id) >= repeats.WARN_AT for call_id in ids)
        if answer.user:
            newest_first.appendleft(messages.request(UserPromptPart(answer.user)))
    return count


def _is_next(call_id: str, answer: Answer) -> bool:
    """Return whether only earlier calls of the answer have results so far."""
    ids = [part.tool_call_id for part in answer.message.tool_calls]
    return call_id in ids and all(other in ids[: ids.index(call_id)] for other in answer.tools)


def _title(run: AgentRun) -> str:
    return REDACTOR.clean_text(run.title)[0] or "Recorded run"


def _without_warning(output: str | list[Any]) -> str | list[Any]:
    """Return a tool result without the repeat guard's warning at its end. A run that plays the fixture adds its own."""
    if isinstance(output, list):
        last = output[-1] if output else None
        return output[:-1] if isinstance(last, str) and _is_warning(last) else output
    head, separator, last = output.rpartition("\n\n")
    return head if separator and _is_warning(last) else output


def _is_warning(text: str) -> bool:
    return any(text == repeats.warning(count) for count in range(repeats.WARN_AT, repeats.STOP_AT))
