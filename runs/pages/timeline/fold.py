"""Fold events into the rows and cards of a timeline, and return the changes of each event.

The first page folds a window of events and displays the result. Live rows fold new events and send the changes. Both
use the same code, so that a reload shows the same timeline.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, TypeVar

from runs.models import RunCommand
from runs.pages.timeline import card_contents
from runs.pages.timeline.card_contents import Payload, whole_number
from runs.pages.timeline.cards import Card, Item, MessageCard, Step, ToolCard, TurnCard, external_call_card_id
from runs.pages.timeline.event_texts import EventTexts, MessageRow, positions_of
from runs.statuses import WaitReason
from timeline.display import clean
from timeline.events import EventType
from timeline.models import Event, Source
from timeline.reasons import reason_label
from timeline.shown_events import payload_of, row_of

C = TypeVar("C", bound=Card)


class CardChange(Enum):
    """How a change is applied to the page."""

    ADD = auto()  # append the item
    PUT = auto()  # replace the card with the same ID, or append
    REPLACE = auto()  # replace the card with the ID `at`, or append
    STRIKE = auto()  # replace the card with the ID `at`, if it is on the page
    APPEND = auto()  # append text to the element `at`


@dataclass(frozen=True, slots=True)
class Change:
    """A change to the timeline."""

    kind: CardChange
    item: Item | None = None
    #: The ID of the element to replace or append to.
    at: str = ""
    text: str = ""


class Fold:
    """The timeline of the events folded so far."""

    def __init__(self, texts: EventTexts) -> None:
        self.texts = texts
        self.items: list[Item] = []
        #: The item that displays an event, by its seq.
        self.owners: dict[int, Item] = {}
        self._by_id: dict[str, Item] = {}
        #: The seqs of events that a later card displays, by the ID of the card.
        self._awaited: dict[str, int] = {}

    def take(self, event: Event) -> list[Change]:
        """Fold the next event and return the changes. Payloads that older versions stored may be invalid."""
        payload = payload_of(event)
        handler = _HANDLERS.get(event.type)
        changes = handler(self, event, payload) if handler is not None else None
        if changes is None:
            changes = self.add(row_of(event, self.texts.base))
        for change in changes:
            if change.item is not None:
                self.owners[event.seq] = change.item
        return changes

    def find(self, item_id: str | None, kind: type[C]) -> C | None:
        """Return the item with this ID and class, or None."""
        item = self._by_id.get(item_id or "")
        return item if isinstance(item, kind) else None

    def add(self, item: Item) -> list[Change]:
        """Append an item and return the change."""
        self.items.append(item)
        self._by_id[item.id] = item
        return [Change(CardChange.ADD, item)]

    def rename(self, item: TurnCard, new_id: str) -> None:
        """Change the ID of an item, which frees its ID for another one."""
        self._by_id.pop(item.id, None)
        item.id = new_id
        self._by_id[new_id] = item

    def card_fields(self, event: Event, item_id: str) -> dict[str, Any]:
        """Return the common fields of a card from its first event."""
        fields = {"id": item_id, "seq": event.seq, "ts": event.ts, "step": event.step}
        return {**fields, "late": event.late, "base": self.texts.base}

    def turn(self, event: Event) -> TurnCard:
        """Return the turn card of the event's step; add it if its start is not in the window."""
        turn_id = f"turn-{event.step}"
        turn = self.find(turn_id, TurnCard)
        if turn is None:
            turn = TurnCard(**self.card_fields(event, turn_id))
            self.add(turn)
        return turn

    def tool(self, event: Event, card_id: str) -> ToolCard:
        """Return the card of a tool call; add it if its start is not in the window."""
        tool = self.find(card_id, ToolCard)
        if tool is None:
            tool = ToolCard(**self.card_fields(event, card_id), name="")
            self.add(tool)
            if card_id in self._awaited:
                self.owners[self._awaited.pop(card_id)] = tool
        return tool

    def leave_to_call(self, event: Event, message: MessageRow) -> list[Change]:
        """Leave the event of a step without a model to the card of its call, and return no changes."""
        for _, call_id in message.requested_calls:
            self._awaited[self.texts.cards.get((message.id, call_id), "")] = event.seq
        return []

    def starts(self, event: Event) -> int | None:
        """Return the number of starts of the event's call; None without a row."""
        row = self.texts.call_of(event)
        return None if row is None else row.starts


Handler = Callable[[Fold, Event, Payload], list[Change] | None]
_HANDLERS: dict[str, Handler] = {}


def _shows(*types: EventType) -> Callable[[Handler], Handler]:
    """Register the handler of these event types. If it returns None, the event gets a row, as without a handler."""

    def register(handler: Handler) -> Handler:
        _HANDLERS.update(dict.fromkeys(types, handler))
        return handler

    return register


# --- The model ----------------------------------------------------------------------------------------------------


@_shows(EventType.LLM_TURN_START)
def _turn_start(fold: Fold, event: Event, payload: Payload) -> list[Change] | None:
    """Add the card of a model call; before the first attempt of a step, also its heading."""
    if event.step is None or event.late:
        return None
    turn_id = f"turn-{event.step}"
    attempt = whole_number(payload.get("attempt"))
    heading = [] if attempt else fold.add(Step(**fold.card_fields(event, f"e{event.seq}")))
    before = fold.find(turn_id, TurnCard)
    if before is not None:
        # The external runner does not count steps: keep the earlier card under another ID.
        fold.rename(before, f"{turn_id}-{before.seq}")
    turn = TurnCard(**fold.card_fields(event, turn_id), attempt=attempt, streaming=True)
    turn.model = clean(str(payload.get("model") or ""))
    return [*heading, *fold.add(turn)]


@_shows(EventType.LLM_TEXT_DELTA, EventType.LLM_THINKING_DELTA)
def _delta(fold: Fold, event: Event, payload: Payload) -> list[Change] | None:
    """Append streamed text. Text without a step is ignored, because its card is unknown."""
    text = clean(str(payload.get("text") or ""))
    if event.step is None or event.late or not text:
        return []
    turn = fold.find(f"turn-{event.step}", TurnCard)
    is_thinking = event.type == EventType.LLM_THINKING_DELTA
    if turn is not None:
        if not turn.streaming:
            return []
        (turn.streamed_thinking if is_thinking else turn.streamed).append(text)
        fold.owners[event.seq] = turn
    return [Change(CardChange.APPEND, at=f"turn-{event.step}-{'thinking' if is_thinking else 'text'}", text=text)]


@_shows(EventType.MESSAGE_ADDED)
def _message_added(fold: Fold, event: Event, payload: Payload) -> list[Change] | None:
    """Show a message: in the card of its turn or its tool call, or in a card of its own."""
    role = payload.get("role")
    if role == "assistant" and event.step is not None and not event.late:
        answer = fold.texts.message_of(event)
        if answer is not None and answer.is_step:
            return fold.leave_to_call(event, answer)
        turn = fold.turn(event)
        card_contents.fill_from_message_added(turn, fold.texts, event, payload)
        return [Change(CardChange.PUT, turn)]
    if role == "tool_result" and payload.get("content") is None:
        # The card of its call displays it.
        card = fold.find(fold.texts.card_of_result(event.ref_id), ToolCard)
        if card is not None:
            fold.owners[event.seq] = card
        return []
    if role in ("user", "system", "assistant", "tool_result"):
        message = MessageCard(**fold.card_fields(event, f"e{event.seq}"), role=role)
        card_contents.fill_message(message, fold.texts, event, payload)
        return fold.add(message)
    return None


@_shows(EventType.LLM_TURN_END)
def _turn_end(fold: Fold, event: Event, payload: Payload) -> list[Change] | None:
    """Complete the card of a model call."""
    if event.step is None or event.late:
        return None
    turn = fold.turn(event)
    card_contents.fill_from_turn_end(turn, fold.texts, event, payload)
    return [Change(CardChange.PUT, turn)]


@_shows(EventType.LLM_TURN_ABANDONED)
def _abandoned(fold: Fold, event: Event, payload: Payload) -> list[Change] | None:
    """Mark the turn's card as abandoned, and change its ID to free it for the next attempt.

    A late event, or one of a turn that has already ended, gets a row.
    """
    turn = fold.turn(event) if event.step is not None and not event.late else None
    if turn is None or (turn.end and not turn.streaming):
        return None
    at, turn.streaming = turn.id, False
    turn.abandoned = clean(reason_label(str(payload.get("reason") or ""))) or "unknown reason"
    turn.attempt = whole_number(payload.get("attempt"))
    card_contents.use_streamed_text(turn)
    fold.rename(turn, f"abandoned-{event.seq}")
    return [Change(CardChange.REPLACE, turn, at=at)]


@_shows(EventType.LLM_TEXT, EventType.LLM_THINKING)
def _full_block(fold: Fold, event: Event, payload: Payload) -> list[Change] | None:
    """Add a text or thinking block that an external runner sent as a whole."""
    if event.source == Source.WORKER:
        # The card of the response displays the text of its row.
        turn = fold.find(f"turn-{event.step}", TurnCard)
        if turn is not None:
            fold.owners[event.seq] = turn
        return []
    block = MessageCard(**fold.card_fields(event, f"e{event.seq}"), role="assistant")
    card_contents.fill_message(block, fold.texts, event, {"content": payload.get("text")})
    block.is_thinking = event.type == EventType.LLM_THINKING
    return fold.add(block)


@_shows(EventType.RUN_ROLLED_BACK)
def _rolled_back(fold: Fold, event: Event, payload: Payload) -> list[Change]:
    """Mark the cards of the rolled back responses, and change their IDs to free them for the next response."""
    changes = fold.add(row_of(event, fold.texts.base))
    for position in positions_of(event):
        message = fold.texts.rolled_back.get(position)
        if message is None:
            continue
        at = f"turn-{message.step}"
        turn_card = fold.find(at, TurnCard)
        new_id = f"rolled-back-{position}"
        if turn_card is not None:
            fold.rename(turn_card, new_id)
        turn = turn_card or TurnCard(**fold.card_fields(event, new_id) | {"step": message.step})
        turn.rolled_back, turn.streaming, turn.model, turn.end = True, False, "", {}
        card_contents.fill_answer(turn, fold.texts, message)
        changes.append(Change(CardChange.STRIKE, turn, at=at))
    return changes


# --- Tools --------------------------------------------------------------------------------------------------------


@_shows(EventType.TOOL_START)
def _tool_start(fold: Fold, event: Event, payload: Payload) -> list[Change] | None:
    """Show that a tool call is running, in its existing card or a new one."""
    card_id = _card_id(event, payload)
    if card_id is None or event.late:
        return None
    is_known, tool = fold.find(card_id, ToolCard) is not None, fold.tool(event, card_id)
    card_contents.fill_from_tool_start(tool, fold.texts, event, payload)
    # The page has a card of a call that was started before, maybe by another worker.
    is_on_page = is_known or tool.attempt > 0 or (fold.starts(event) or 0) > 1
    return [Change(CardChange.PUT if is_on_page else CardChange.ADD, tool)]


@_shows(EventType.TOOL_OUTPUT)
def _tool_output(fold: Fold, event: Event, payload: Payload) -> list[Change] | None:
    """Append streamed output to the card of a tool call."""
    card_id = _card_id(event, payload)
    if card_id is None or event.late or payload.get("late"):
        return None
    text = clean(str(payload.get("text") or ""))
    tool = fold.find(card_id, ToolCard)
    if tool is not None:
        fold.owners[event.seq] = tool
        if tool.ended:
            return []
        tool.streamed.append(text)
    return [Change(CardChange.APPEND, at=f"{card_id}-output", text=text)] if text else []


@_shows(EventType.TOOL_END)
def _tool_end(fold: Fold, event: Event, payload: Payload) -> list[Change] | None:
    """Complete the card of a tool call."""
    card_id = _card_id(event, payload)
    if card_id is None or event.late:
        return None
    tool = fold.tool(event, card_id)
    card_contents.fill_from_tool_end(tool, fold.texts, event, payload)
    # A call that was denied before its start has no card yet.
    return [Change(CardChange.ADD if fold.starts(event) == 0 else CardChange.PUT, tool)]


@_shows(EventType.RUN_COMPLETED)
def _completed(fold: Fold, event: Event, payload: Payload) -> list[Change] | None:
    """Add a row, with the summary of the run only if nothing else displays it."""
    row = row_of(event, fold.texts.base)
    if event.source == Source.WORKER:
        # The last card and the page header display it.
        row.facts.pop("summary", None)
    return fold.add(row)


@_shows(EventType.COMMAND_RECEIVED)
def _command(fold: Fold, event: Event, payload: Payload) -> list[Change] | None:
    """Add the row of a command, with its outcome if the command was not applied."""
    outcome = fold.texts.outcomes.get(event.ref_id) if event.ref_id is not None else None
    # The page header shows a pending command, and an applied command has visible effects.
    is_shown_elsewhere = outcome in (None, RunCommand.Outcome.APPLIED)
    # A message is not shown twice: once the agent has read it, it has a card.
    if is_shown_elsewhere and payload.get("type") == RunCommand.Type.SEND and not payload.get("refused"):
        return []
    row = row_of(event, fold.texts.base)
    if not is_shown_elsewhere:
        row.facts["outcome"] = outcome
    return fold.add(row)


@_shows(EventType.RUN_WAITING)
def _waiting(fold: Fold, event: Event, payload: Payload) -> list[Change] | None:
    """Add the row, and update the card of a call with an unknown outcome."""
    changes = fold.add(row_of(event, fold.texts.base))
    if payload.get("reason") == WaitReason.UNKNOWN_TOOL:
        changes += _update_call(fold, event, "unknown", needs_outcome=True)
    return changes


@_shows(EventType.APPROVAL_RESOLVED, EventType.TOOL_OUTCOME_RESOLVED)
def _resolved(fold: Fold, event: Event, payload: Payload) -> list[Change] | None:
    """Add the row, and update the card of a call that is executed again."""
    changes = fold.add(row_of(event, fold.texts.base))
    if payload.get("decision") == "retry":
        changes += _update_call(fold, event, "planned", needs_outcome=False)
    return changes


def _update_call(fold: Fold, event: Event, status: str, *, needs_outcome: bool) -> list[Change]:
    """Set the status of a call in its card, if the timeline has it."""
    tool = fold.find(f"call-{event.ref_id}", ToolCard)
    if tool is None or event.late:
        return []
    tool.status, tool.needs_outcome = status, needs_outcome
    return [Change(CardChange.PUT, tool)]


def _card_id(event: Event, payload: Payload) -> str | None:
    """Return the element ID of a call's card, from its row or from the call ID of an external runner."""
    if event.ref_id is not None:
        return f"call-{event.ref_id}"
    call_id = payload.get("call_id")
    return external_call_card_id(event.step, call_id) if isinstance(call_id, str) and call_id else None
