"""Events of OpenHands: a list of actions and observations, alone or as the `history` of a result line.

An action of the agent becomes an answer with a call, and the observation that follows becomes its result. Newer
versions write the provider's response with an action. It is then the exact answer; several actions can share one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from runs.external import contents
from runs.external.importers import openhands_v1
from runs.external.importers.base import ImportedRun, ImportFile, ImportRefused, Item, NothingToImport
from runs.external.importers.chat_messages import read_chat_message
from runs.external.importers.conversation import AnswerFacts, ChatMessage, ImportedConversation
from runs.external.importers.json_place import JsonPlace, documents, looks_like, read_documents
from runs.external.importers.observed_messages import finish_reason_in
from runs.statuses import RunStatus

#: Actions and observations about OpenHands itself, which are not imported.
_INTERNAL = frozenset({"null", "change_agent_state", "agent_state_changed", "recall", "condensation", "loadprompt"})
#: Fields of a document that can hold its events.
_LISTS = ("history", "trajectory", "events")
_TOKENS = ("prompt_tokens", "completion_tokens", "cache_read_tokens", "cache_write_tokens")
#: Fields of an event without `args` that are not arguments.
_NO_ARGUMENTS = frozenset(
    {"action", "id", "timestamp", "source", "message", "cause", "timeout", "thought", "is_confirmed", "action_risk"}
    | {"confirmation_state", "security_risk", "keep_prompt", "kernel_init_code", "tool_call_metadata", "llm_metrics"}
)


class OpenHandsImporter:
    name = "openhands"
    title = "events of OpenHands, and its result lines (output.jsonl)"

    def detect(self, file: ImportFile) -> bool:
        """Return whether the content is a list of actions and observations, or has such a list as its history."""
        return looks_like(file, _is_events)

    def read(self, file: ImportFile) -> Iterator[Item]:
        """Yield a run for each list of events. Raises `ImportRefused`."""
        if not any(map(_is_event, file.first_lines())) or file.whole() is not None:
            yield from read_documents(file, _read_run)
            return
        # The events of one run, one on each line.
        places = [place for place in documents(file) if _is_readable(place)]
        if not places:
            raise NothingToImport(file.name, "no events")
        yield from _read_run(JsonPlace(file, [place.value for place in places]), places)


def _is_readable(place: JsonPlace) -> bool:
    """Return whether a line is an event. If not, leave it out."""
    try:
        if not _is_event(place.value):
            raise place.refuse("not an event")
        place.at("timestamp").time()
        place.at("tool_call_metadata", "model_response", "model").label()
    except ImportRefused as refusal:
        place.file.leave_out(refusal)
        return False
    return True


def _is_events(value: Any) -> bool:
    if isinstance(value, dict):
        value = next((value[name] for name in _LISTS if name in value), [value])
    events = _flat(value)
    return bool(events) and all(_is_event(event) for event in events[:5])


def _is_event(value: Any) -> bool:
    if openhands_v1.is_event(value):
        return True
    return (
        isinstance(value, dict)
        and not isinstance(value.get("action"), dict)
        and bool({"action", "observation"} & value.keys())
    )


def _flat(events: Any) -> list[Any]:
    """Return the events of a history. The first versions wrote pairs of an action and its observation."""
    return [one for event in events for one in (event if isinstance(event, list) else [event])]


def _events_of(place: JsonPlace) -> list[JsonPlace]:
    """Return the events of a history, as `_flat`, with their places."""
    return [one for event in place.items() for one in (event.items() if isinstance(event.value, list) else [event])]


def _read_run(place: JsonPlace, events: Sequence[JsonPlace] | None = None) -> Iterator[Item]:
    """Yield the run of a document. `events`: the places of its events, if each is on a separate line."""
    is_list = isinstance(place.value, list)
    name = "history" if is_list else next((name for name in _LISTS if name in place.members()), "history")
    events = events or _events_of(place if is_list else place.at(name))
    if not events:
        raise place.refuse("must be a list of events, or have one as its history")
    error = "" if is_list else place.at("error").text()
    costs = [] if is_list else _costs(place.at("metrics", "costs"))
    turns = sum(_is_turn(event) for event in events)
    is_new = openhands_v1.is_event(events[0].value)
    models = [event.at("tool_call_metadata", "model_response", "model").label() for event in events]
    has_costs = bool(costs) and len(costs) == turns and not is_new
    totals = {} if is_list or any(models) else place.at("metrics", "accumulated_token_usage").members()
    head = ImportedRun(
        run_ref=place.run_reference(OpenHandsImporter.name),
        agent="openhands",
        model=next((model for model in models if model), "") or ("" if is_list else _model(place)),
        title="" if is_list else place.at("issue", "title").label(),
        created_at=events[0].at("timestamp").time(),
        ended=RunStatus.FAILED if error else RunStatus.COMPLETED,
        cost_usd=None if is_list or has_costs else place.at("metrics", "accumulated_cost").value,
        usage={name: totals.get(name) for name in _TOKENS} if totals else {},
        error=error,
    )
    yield head
    if is_new:
        conversation = ImportedConversation(head.run_ref, last_at=head.created_at)
        yield from openhands_v1.read_events(events, conversation)
        yield from conversation.close()
        return
    reader = _Reader(ImportedConversation(head.run_ref, last_at=head.created_at), costs if has_costs else [])
    for event in events:
        try:
            yield from reader.read(event)
        except ImportRefused as refusal:
            place.file.leave_out(refusal)
    yield from reader.conversation.close()


def _model(place: JsonPlace) -> str:
    """Return the model in the metadata of a result line; empty without one."""
    for config_name in ("llm_config", "llm"):
        value: Any = place.value
        for name in ("metadata", config_name, "model"):
            value = value.get(name) if isinstance(value, dict) else None
        if isinstance(value, str) and value.isprintable():
            return value
    return ""


def _is_turn(event: JsonPlace) -> bool:
    """Return whether an event is an action, for which `metrics.costs` has a cost."""
    return event.at("action").value not in (None, "message", "system", *_INTERNAL)


def _costs(place: JsonPlace) -> list[Any]:
    """Return the cost of each model call. In newer versions, each cost is an object."""
    return [item.at("cost").value if isinstance(item.value, dict) else item.value for item in place.items()]


@dataclass
class _Reader:
    """Reads the events of a run in order."""

    conversation: ImportedConversation
    #: The costs of the answers, in order; empty if they are unknown.
    costs: Sequence[Any]
    #: The call ID of each action, by the ID of its event.
    calls: dict[str, str] = field(default_factory=dict)
    #: The number of answers so far.
    answers: int = 0
    #: The IDs of the responses that were read.
    responses: set[str] = field(default_factory=set)
    has_messages: bool = False

    def read(self, event: JsonPlace) -> Iterator[Item]:
        at = event.at("timestamp").time()
        if event.at("observation").value is not None:
            yield from self._observation(event, AnswerFacts(at=at))
            return
        action = event.at("action").name()
        # The oldest events keep their arguments at the top level, and do not name the sender of a message.
        arguments = event.at("args") if event.at("args").value is not None else event
        if action in _INTERNAL:
            return
        if action in ("message", "system") and event.at("tool_call_metadata", "model_response").value is None:
            role = self._role(event, action)
            content = arguments.at("content").text()
            images = [{"type": "image_url", "image_url": url.text()} for url in arguments.at("image_urls").items()]
            blocks = [content, *images] if images else content
            yield from self.conversation.add(ChatMessage(role=role, content=blocks), AnswerFacts(at=at))
            return
        yield from self._action(event, action, arguments, AnswerFacts(at=at, cost=self._next_cost()))

    def _role(self, event: JsonPlace, action: str) -> Any:
        """Return the role of a message. Without a sender, the first message is the user's, any other the agent's."""
        is_first, self.has_messages = not self.has_messages, True
        source = event.at("source").value or ("user" if is_first else "agent")
        return "system" if action == "system" else "assistant" if source == "agent" else "user"

    def _next_cost(self) -> Any:
        self.answers += 1
        return self.costs[self.answers - 1] if self.costs else None

    def _action(self, event: JsonPlace, action: str, arguments: JsonPlace, facts: AnswerFacts) -> Iterator[Item]:
        """Yield the answer of an action, and the start of its call."""
        metadata = event.at("tool_call_metadata")
        thought = arguments.at("thought").text()
        if metadata.at("model_response").value is not None:
            yield from self._response(metadata.at("model_response"), facts)
            call_id = metadata.at("tool_call_id").name()
        elif action == "finish":
            yield from self.conversation.add(ChatMessage(role="assistant", content=thought), facts)
            return
        else:
            call_id = metadata.at("tool_call_id").text() or f"event-{'-'.join(map(str, event.path[-2:]))}"
            values = {name: value for name, value in arguments.members().items() if name not in _NO_ARGUMENTS}
            call = contents.call_part(call_id, action, values)
            yield from self.conversation.add(ChatMessage(role="assistant", content=thought, calls=[call]), facts)
        self.calls[str(event.at("id").value)] = call_id
        if action == "finish" and call_id in self.conversation.open_calls:
            # No observation follows this action.
            yield from self.conversation.add(ChatMessage(role="tool", content="", call_ids=[call_id]), facts)

    def _response(self, response: JsonPlace, facts: AnswerFacts) -> Iterator[Item]:
        """Yield the answer in a provider's response, unless an earlier action had the same response."""
        response_id = response.at("id").text(None)
        choice = next(response.at("choices").items(), None)
        if choice is None:
            raise response.at("choices").refuse("must have a message")
        if response_id in self.responses:
            return
        self.responses.add(response_id)
        message = read_chat_message(choice.at("message"))
        model, usage = response.at("model").label(), response.at("usage").members()
        facts = replace(facts, model=model, usage=usage, finish_reason=finish_reason_in(response))
        yield from self.conversation.add_checked(message, choice.at("message"), facts)

    def _observation(self, event: JsonPlace, facts: AnswerFacts) -> Iterator[Item]:
        """Yield the result of a call: of the call that the observation names, or else of the newest open call."""
        kind = event.at("observation").text()
        if kind in _INTERNAL:
            return
        content = event.at("content").text()
        has_failed = kind == "error"
        open_calls = self.conversation.open_calls
        call_id = event.at("tool_call_metadata", "tool_call_id").text() or self.calls.get(str(event.at("cause").value))
        call_id = call_id or next(reversed(open_calls), None)
        if call_id in open_calls:
            result = ChatMessage(role="tool", content=content, call_ids=[call_id], has_failed=has_failed)
            yield from self.conversation.add(result, facts)
        if has_failed:
            yield self.conversation.error("runner", content, facts.at)
