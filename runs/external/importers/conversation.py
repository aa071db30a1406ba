"""Creates the events of an imported conversation, message by message, and matches its calls with their results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal, cast

from pydantic_ai.messages import (
    ModelResponse,
    ModelResponsePart,
    SystemPromptPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from agentops.base import database_clock
from runs.conversation import call_ids
from runs.conversation.call_ids import MAX_CALL_ID
from runs.external import contents
from runs.external.event_input import IncomingEvent
from runs.external.foreign_payloads import read_cost, read_usage
from runs.external.importers.json_place import JsonPlace
from runs.fixtures.format import UNKNOWN_OUTCOME
from runs.providers.finish_reasons import named
from runs.providers.messages import canonical, request
from runs.providers.price_tiers import details_of
from timeline.events import Payload
from timeline.events.llm import LlmTurnEnd, MessageAdded
from timeline.events.notice import Error
from timeline.events.tool import ToolEnd, ToolStart


@dataclass(frozen=True, kw_only=True)
class ChatMessage:
    """A message of a conversation in any format."""

    role: Literal["system", "user", "assistant", "tool"]
    #: A text, or a list of texts and blocks, in the forms that `runs.external.contents` reads.
    content: Any = None
    thinking: str = ""
    calls: Sequence[ToolCallPart] = ()
    #: Of a tool result: the IDs of the calls that it answers, and the name of the tool.
    call_ids: Sequence[str] = ()
    tool_name: str = ""
    has_failed: bool = False


@dataclass(frozen=True, kw_only=True)
class AnswerFacts:
    """The facts about an answer or a tool call that are not part of its message."""

    model: str = ""
    #: The tokens in a form that `foreign_payloads.read_usage` reads, and the tier as in `runs.providers.price_tiers`.
    usage: Mapping[str, Any] | None = None
    cost: object = None
    began_at: datetime | None = None
    at: datetime | None = None
    #: The duration in milliseconds, if it is known without the times.
    took_ms: int | None = None
    #: See `IncomingEvent.call_names`.
    call_names: tuple[str, ...] = ()
    #: Why the model ended the answer, in the words of the provider or the program; empty if it is not known.
    finish_reason: str = ""

    @property
    def duration_ms(self) -> int | None:
        """Return the duration in milliseconds: as reported, or between both times; None if neither is known."""
        if self.took_ms is not None:
            return self.took_ms
        if self.began_at is None or self.at is None or self.at < self.began_at:
            return None
        return database_clock.milliseconds_between(self.began_at, self.at)


NO_FACTS = AnswerFacts()


@dataclass
class ImportedConversation:
    """The conversation of one run. Its event IDs are a prefix and a counter, so the same file gives the same IDs."""

    run_ref: str
    #: The prefix of the next event IDs; `number_from` changes it.
    id_prefix: str = ""
    #: The time of the last event. An event without a time gets this time, so that times keep the order of events.
    last_at: datetime | None = None
    #: The calls without a result.
    open_calls: dict[str, ToolCallPart] = field(default_factory=dict)
    #: The number of events since the prefix changed.
    _count: int = 0
    #: How often the run has each message, by `_key`.
    _known: Counter[str] = field(default_factory=Counter)
    #: The times and durations of tool calls by call ID, if the file has them.
    call_facts: dict[str, AnswerFacts] = field(default_factory=dict)

    def number_from(self, prefix: str) -> None:
        """Set the prefix of the next event IDs, and restart the counter."""
        self.id_prefix, self._count = prefix, 0

    def remember(self, message: ChatMessage) -> None:
        """Note that the run has a message, so that `add_request` does not add it again."""
        self._known[_key(message)] += 1

    def add(self, message: ChatMessage, facts: AnswerFacts = NO_FACTS) -> Iterator[IncomingEvent]:
        """Yield the events of the next message. A tool result ends its calls."""
        self.remember(message)
        if message.role == "tool":
            for call_id in message.call_ids:
                yield from self._result(call_id, message, facts)
        elif message.role == "assistant":
            yield from self._answer(message, facts)
        else:
            yield self._request_message(message, facts.at)

    def add_checked(
        self, message: ChatMessage, place: JsonPlace, facts: AnswerFacts = NO_FACTS
    ) -> Iterator[IncomingEvent]:
        """Yield the events of the next message, as `add`. Raises `ImportRefused`, at `place`, for an invalid call ID.

        Two calls of a message must not have the same ID, and the result of an unknown call must name its tool.
        """
        ids = [call.tool_call_id for call in message.calls]
        if len(set(ids)) < len(ids):
            raise place.refuse("two calls of an answer have the same ID")
        for call_id in message.call_ids:
            if call_id[:MAX_CALL_ID] not in self.open_calls and not message.tool_name:
                raise place.refuse(f"no call before it has the ID {call_id[:64]!r}")
        yield from self.add(message, facts)

    def add_request(self, messages: Sequence[ChatMessage], at: datetime | None) -> Iterator[IncomingEvent]:
        """Yield the events of the messages in a request that the run does not have yet, without answers.

        A request repeats the whole conversation before it. `at`: the time of the request.
        """
        sent: Counter[str] = Counter()
        for message in messages:
            key = _key(message)
            sent[key] += 1
            if message.role == "assistant" or sent[key] <= self._known[key]:
                continue
            if message.role != "tool" or all(call_id in self.open_calls for call_id in message.call_ids):
                yield from self.add(message, AnswerFacts(at=at))

    def unrequested_call(self, call_id: str, name: str, arguments: Any, facts: AnswerFacts) -> IncomingEvent:
        """Return the start of a call that no answer requested. When the event is applied, an answer is added for it."""
        self.open_calls[call_id] = contents.call_part(call_id, name, arguments)
        return self._event(ToolStart(call_id=call_id, tool_name=name, arguments=arguments), facts.began_at)

    def close(self) -> Iterator[IncomingEvent]:
        """Yield the ends of the calls without a result, at the end of a finished run. Their outcome is unknown."""
        for call_id, call in self.open_calls.items():
            end = ToolEnd(call_id=call_id, tool_name=call.tool_name, status="unknown")
            yield self._event(end, None, message=request(ToolReturnPart(call.tool_name, UNKNOWN_OUTCOME, call_id)))

    def error(self, kind: str, text: str, at: datetime | None = None, *, details: Any = None) -> IncomingEvent:
        """Return the event of an error."""
        return self._event(Error(error_type=kind, error=text, details=details), at)

    def _request_message(self, message: ChatMessage, at: datetime | None) -> IncomingEvent:
        """Return the event of a system or user message."""
        when = self._time(at)
        part: SystemPromptPart | UserPromptPart
        if message.role == "system":
            part = SystemPromptPart(contents.text_content(message.content), timestamp=when)
        else:
            part = UserPromptPart(contents.user_content(message.content), timestamp=when)
        payload = MessageAdded(role=cast("Literal['system', 'user']", message.role))
        return self._event(payload, at, message=request(part))

    def _answer(self, message: ChatMessage, facts: AnswerFacts) -> Iterator[IncomingEvent]:
        """Yield the end of a turn, and the start of each call."""
        parts: list[ModelResponsePart] = [ThinkingPart(message.thinking)] if message.thinking else []
        parts += contents.response_parts(message.content)
        parts += message.calls
        answer = ModelResponse(
            parts=parts,
            usage=read_usage(facts.usage or {}),
            model_name=facts.model or None,
            provider_details=details_of(facts.usage or {}) or None,
            timestamp=self._time(facts.at),
            finish_reason=named(facts.finish_reason),
        )
        call_ids.make_usable(answer)
        cost = read_cost(facts.cost)
        payload = LlmTurnEnd(
            finish_reason=answer.finish_reason,
            cost_usd=None if cost is None else f"{cost:f}",
            duration_ms=facts.duration_ms,
        )
        yield replace(self._event(payload, facts.at, message=answer), call_names=facts.call_names)
        for call in answer.tool_calls:
            self.open_calls[call.tool_call_id] = call
            known = self.call_facts.get(call.tool_call_id, NO_FACTS)
            start = ToolStart(call_id=call.tool_call_id, tool_name=call.tool_name)
            yield self._event(start, known.began_at or facts.at)

    def _result(self, call_id: str, message: ChatMessage, facts: AnswerFacts) -> Iterator[IncomingEvent]:
        """Yield the end of a call. The result closes the call."""
        call_id = call_id[:MAX_CALL_ID]
        call = self.open_calls.pop(call_id, None)
        name = call.tool_name if call else message.tool_name
        facts = self.call_facts.get(call_id, facts)
        output = contents.user_content(message.content)
        end = ToolEnd(
            call_id=call_id,
            tool_name=name,
            status="error" if message.has_failed else "completed",
            duration_ms=facts.duration_ms,
        )
        yield self._event(end, facts.at, message=request(ToolReturnPart(name, output, call_id)))

    def _time(self, at: datetime | None) -> datetime:
        return at or self.last_at or database_clock.now()

    def _event(self, payload: Payload, at: datetime | None, *, message: Any = None) -> IncomingEvent:
        self._count += 1
        self.last_at = at = at or self.last_at
        return IncomingEvent.of(self.run_ref, payload, f"{self.id_prefix}{self._count}", at, message=message)


def _key(message: ChatMessage) -> str:
    """Return a text that is equal for equal messages."""
    content = contents.text_content(message.content) if message.role in ("system", "user") else message.content
    return canonical([message.role, content, list(message.call_ids)])
