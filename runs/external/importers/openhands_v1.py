"""Events of OpenHands since version 1: messages of the model, and calls and results of its tools, each with a `kind`.

The actions of one response are separate events that name the response. Together they form one answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from runs.external import contents
from runs.external.event_input import IncomingEvent
from runs.external.importers.base import ImportRefused
from runs.external.importers.chat_messages import read_chat_message
from runs.external.importers.conversation import AnswerFacts, ChatMessage, ImportedConversation
from runs.external.importers.json_place import JsonPlace
from runs.providers.messages import canonical

_ACTION = "ActionEvent"


def is_event(value: object) -> bool:
    """Return whether a value is an event of version 1 or later."""
    return isinstance(value, dict) and isinstance(value.get("kind"), str) and {"source", "id"} <= value.keys()


def read_events(events: Sequence[JsonPlace], conversation: ImportedConversation) -> Iterator[IncomingEvent]:
    """Yield the events of a run. Raises `ImportRefused` for an invalid action; leaves out other invalid events."""
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
    """Return the ID of the response that an action belongs to. An action without such an ID is a whole response."""
    return action.at("llm_response_id").value or action.path


def _answer(actions: Sequence[JsonPlace], conversation: ImportedConversation) -> Iterator[IncomingEvent]:
    """Yield the answer that the actions of one response form."""
    first = actions[0]
    thoughts = [text for action in actions if (text := _text(action.at("thought").value))]
    blocks = [block.at("thinking").text() for block in first.at("thinking_blocks").items()]
    message = ChatMessage(
        role="assistant",
        content="\n".join(thoughts),
        thinking=first.at("reasoning_content").text() or "\n".join(filter(None, blocks)),
        calls=[_call(action) for action in actions],
    )
    yield from conversation.add_checked(message, first, AnswerFacts(at=first.at("timestamp").time()))


def _call(action: JsonPlace) -> Any:
    call = action.at("tool_call")
    arguments = call.at("arguments").value
    if arguments is None:
        arguments = {name: value for name, value in action.at("action").members().items() if name != "kind"}
    return contents.call_part(action.at("tool_call_id").name(), action.at("tool_name").name(), arguments)


def _other(event: JsonPlace, conversation: ImportedConversation) -> Iterator[IncomingEvent]:
    """Yield the events for any event except an action; nothing for an unknown kind."""
    facts = AnswerFacts(at=event.at("timestamp").time())
    match event.at("kind").text(None):
        case "SystemPromptEvent":
            prompt = _text(event.at("system_prompt").value)
            yield from conversation.add(ChatMessage(role="system", content=prompt), facts)
        case "MessageEvent":
            message = read_chat_message(event.at("llm_message"))
            yield from conversation.add_checked(message, event.at("llm_message"), facts)
        case "ObservationEvent":
            observation = event.at("observation")
            has_failed = observation.at("is_error").value is True
            yield from _result(event, _output(observation), has_failed, conversation, facts)
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
    ids, name = [event.at("tool_call_id").name()], event.at("tool_name").name()
    message = ChatMessage(role="tool", content=output, call_ids=ids, tool_name=name, has_failed=has_failed)
    yield from conversation.add(message, facts)


def _output(observation: JsonPlace) -> Any:
    """Return the output of a tool: its content, which has other names in older versions, or else all other fields."""
    fields = observation.members()
    for name in ("content", "output", "text", "message"):
        if isinstance(fields.get(name), str | list) and fields[name]:
            return fields[name]
    rest = {name: value for name, value in fields.items() if name not in ("kind", "content", "is_error")}
    return canonical(rest) if rest else ""


def _text(value: Any) -> str:
    return contents.text_content([value] if isinstance(value, dict) else value)
