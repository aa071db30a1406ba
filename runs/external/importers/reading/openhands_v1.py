"""Events of OpenHands since version 1: messages of the model, and calls and results of its tools, each with a `kind`.

The actions of one response are separate events that name the response. Together they form one answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from runs.external import contents
from runs.external.event_input import IncomingEvent
from runs.external.importers.base import ImportRefused
from runs.external.importers.reading.chat_messages import read_chat_message
from runs.external.importers.reading.conversation import AnswerFacts, ChatMessage, ImportedConversation, check_calls
from runs.external.importers.reading.json_place import JsonPlace
from runs.providers.messages import canonical

_ACTION = "ActionEvent"


def is_event(value: object) -> bool:
    """Return whether a value is an event of version 1 or later."""
    return isinstance(value, dict) and isinstance(value.get("kind"), str) and {"source", "id"} <= value.keys()


def read_events(events: Sequence[JsonPlace], conversation: ImportedConversation) -> Iterator[IncomingEvent]:
    """Yield the events of a run. Raises `ImportRefused`."""
    actions: list[JsonPlace] = []
    for event in events:
        is_action = event.at("kind").value == _ACTION
        if actions and not (is_action and _response_of(event) == _response_of(actions[0])):
            yield from _answer(actions, conversation)
            actions = []
        if is_action:
            actions.append(event)
        else:
            try:
                yield from _other(event, conversation)
            except ImportRefused as refusal:
                event.file.leave_out(refusal)
    if actions:
        yield from _answer(actions, conversation)


def _response_of(action: JsonPlace) -> object:
    """Return the response ID of an action. An action without one is a whole response."""
    return action.at("llm_response_id").value or action.path


def _answer(actions: Sequence[JsonPlace], conversation: ImportedConversation) -> Iterator[IncomingEvent]:
    first = actions[0]
    thoughts = [text for action in actions if (text := _text(action.at("thought").value))]
    message = ChatMessage(
        role="assistant",
        content="\n".join(thoughts),
        thinking=first.at("reasoning_content").text() or _thinking(first),
        calls=[_call(action) for action in actions],
    )
    check_calls(message, conversation, first)
    yield from conversation.add(message, AnswerFacts(at=first.at("timestamp").time()))


def _thinking(action: JsonPlace) -> str:
    blocks = [block.at("thinking").text() for block in action.at("thinking_blocks").items()]
    return "\n".join(block for block in blocks if block)


def _call(action: JsonPlace) -> Any:
    call = action.at("tool_call")
    arguments = call.at("arguments").value
    if arguments is None:
        arguments = {name: value for name, value in action.at("action").members().items() if name != "kind"}
    return contents.call_part(action.at("tool_call_id").name(), action.at("tool_name").name(), arguments)


def _other(event: JsonPlace, conversation: ImportedConversation) -> Iterator[IncomingEvent]:
    facts = AnswerFacts(at=event.at("timestamp").time())
    match event.at("kind").text(None):
        case "SystemPromptEvent":
            prompt = _text(event.at("system_prompt").value)
            yield from conversation.add(ChatMessage(role="system", content=prompt), facts)
        case "MessageEvent":
            message = read_chat_message(event.at("llm_message"))
            check_calls(message, conversation, event.at("llm_message"))
            yield from conversation.add(message, facts)
        case "ObservationEvent":
            observation = event.at("observation")
            yield from _result(
                event, _output(observation), observation.at("is_error").value is True, conversation, facts
            )
        case "UserRejectObservation":
            yield from _result(event, event.at("rejection_reason").text(), True, conversation, facts)
        case "AgentErrorEvent":
            error = event.at("error").text()
            if event.at("tool_call_id").value is not None:
                yield from _result(event, error, True, conversation, facts)
            yield conversation.error("runner", error, facts.at)
        case "ConversationErrorEvent":
            text = event.at("detail").text() or event.at("code").text()
            yield conversation.error(event.at("code").label()[:64] or "runner", text, facts.at)


def _result(
    event: JsonPlace, output: Any, has_failed: bool, conversation: ImportedConversation, facts: AnswerFacts
) -> Iterator[IncomingEvent]:
    call_id = event.at("tool_call_id").name()
    message = ChatMessage(
        role="tool", content=output, call_ids=[call_id], tool_name=event.at("tool_name").name(), has_failed=has_failed
    )
    yield from conversation.add(message, facts)


def _output(observation: JsonPlace) -> Any:
    """Return the output of a tool: its content (older versions use several names for it), or all of its values."""
    fields = observation.members()
    for name in ("content", "output", "text", "message"):
        if isinstance(fields.get(name), str | list) and fields[name]:
            return fields[name]
    rest = {name: value for name, value in fields.items() if name not in ("kind", "content", "is_error")}
    return canonical(rest) if rest else ""


def _text(value: Any) -> str:
    return contents.text_content([value] if isinstance(value, dict) else value)
