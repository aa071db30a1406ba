"""Events folded into the rows and cards of a timeline, one after the other, with what each of them changed.

The first paint folds a window and shows what came of it; live rows fold what comes and show the changes. Both go
through here, so they cannot tell different stories.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, TypeVar

from runs.models import RunCommand
from runs.pages.timeline import card_contents
from runs.pages.timeline.card_contents import Payload, whole_number
from runs.pages.timeline.cards import Card, Item, MessageCard, Step, ToolCard, TurnCard, call_card
from runs.pages.timeline.event_texts import EventTexts, positions_of
from runs.statuses import WaitReason
from timeline.event_rows import payload_of, row_of
from timeline.events import EventType
from timeline.models import Event, Source
from timeline.shown import clean

C = TypeVar("C", bound=Card)


class CardChange(Enum):
    ADD = auto()  # a row that is new at the end
    PUT = auto()  # a card that takes the place of the one with its id, or is new
    REPLACE = auto()  # a card that takes the place of one with another id, or is new
    STRIKE = auto()  # the same, but never new
    APPEND = auto()  # text that streams into a card


@dataclass(frozen=True, slots=True)
class Change:
    act: CardChange
    item: Item | None = None
    #: The id of what is replaced or appended to.
    at: str = ""
    text: str = ""


class Fold:
    """The timeline as the events so far tell it."""

    def __init__(self, texts: EventTexts) -> None:
        self.texts = texts
        self.items: list[Item] = []
        #: Which item shows an event.
        self.owners: dict[int, Item] = {}
        self._by_id: dict[str, Item] = {}

    def take(self, event: Event) -> list[Change]:
        """Fold the next event in. What a payload holds never stops it: rules change, logs do not."""
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
        item = self._by_id.get(item_id or "")
        return item if isinstance(item, kind) else None

    def add(self, item: Item) -> list[Change]:
        self.items.append(item)
        self._by_id[item.id] = item
        return [Change(CardChange.ADD, item)]

    def rename(self, item: TurnCard, new_id: str) -> None:
        self._by_id.pop(item.id, None)
        item.id = new_id
        self._by_id[new_id] = item

    def opened(self, event: Event, item_id: str) -> dict[str, Any]:
        """What every card has, of the event that opens it."""
        return {"id": item_id, "seq": event.seq, "ts": event.ts, "late": event.late, "base": self.texts.base}

    def turn(self, event: Event) -> TurnCard:
        """The card of the event's step; one that has no start here is opened by whatever comes first."""
        turn_id = f"turn-{event.step}"
        turn = self.find(turn_id, TurnCard)
        if turn is None:
            turn = TurnCard(**self.opened(event, turn_id), step=event.step)
            self.add(turn)
        return turn

    def tool(self, event: Event, card_id: str) -> ToolCard:
        """The card of a call; one that was never started is opened by its end."""
        tool = self.find(card_id, ToolCard)
        if tool is None:
            tool = ToolCard(**self.opened(event, card_id), name="")
            self.add(tool)
        return tool

    def starts(self, event: Event) -> int | None:
        """How often the call of the event was started so far; None where no row says so."""
        row = self.texts.calls.get(event.ref_id) if event.ref_id else None
        return None if row is None else row.starts


Handler = Callable[[Fold, Event, Payload], list[Change] | None]


# --- The model ----------------------------------------------------------------------------------------------------


def _turn_start(fold: Fold, event: Event, payload: Payload) -> list[Change] | None:
    if event.step is None or event.late:
        return None
    turn_id = f"turn-{event.step}"
    attempt = whole_number(payload.get("attempt"))
    heading = [] if attempt else fold.add(Step(**fold.opened(event, f"e{event.seq}"), step=event.step))
    before = fold.find(turn_id, TurnCard)
    if before is not None:
        # A runner that counts no steps: its earlier answer stays, under a name of its own.
        fold.rename(before, f"{turn_id}-{before.seq}")
    turn = TurnCard(**fold.opened(event, turn_id), step=event.step, attempt=attempt, streaming=True)
    turn.model = clean(str(payload.get("model") or ""))
    return [*heading, *fold.add(turn)]


def _delta(fold: Fold, event: Event, payload: Payload) -> list[Change] | None:
    """Of a turn without a step only the whole text is shown: nothing says which card its pieces belong to."""
    text = clean(str(payload.get("text") or ""))
    if event.step is None or event.late or not text:
        return []
    turn = fold.find(f"turn-{event.step}", TurnCard)
    thought = event.type == EventType.LLM_THINKING_DELTA
    if turn is not None:
        if not turn.streaming:
            return []
        (turn.streamed_thinking if thought else turn.streamed).append(text)
        fold.owners[event.seq] = turn
    return [Change(CardChange.APPEND, at=f"turn-{event.step}-{'thinking' if thought else 'text'}", text=text)]


def _message_added(fold: Fold, event: Event, payload: Payload) -> list[Change] | None:
    role = payload.get("role")
    if role == "assistant" and event.step is not None and not event.late:
        turn = fold.turn(event)
        card_contents.answer_from(turn, fold.texts, event, payload)
        return [Change(CardChange.PUT, turn)]
    if role == "tool_result" and payload.get("content") is None:
        # It is shown by the card of its call.
        card = fold.find(fold.texts.card_of_result(event.ref_id), ToolCard)
        if card is not None:
            fold.owners[event.seq] = card
        return []
    if role in ("user", "system", "assistant", "tool_result"):
        card_of_it = MessageCard(**fold.opened(event, f"e{event.seq}"), role=role)
        card_contents.said(card_of_it, fold.texts, event, payload)
        return fold.add(card_of_it)
    return None


def _turn_end(fold: Fold, event: Event, payload: Payload) -> list[Change] | None:
    if event.step is None or event.late:
        return None
    turn = fold.turn(event)
    card_contents.end_of_turn(turn, fold.texts, event, payload)
    return [Change(CardChange.PUT, turn)]


def _abandoned(fold: Fold, event: Event, payload: Payload) -> list[Change] | None:
    turn = fold.turn(event) if event.step is not None and not event.late else None
    if turn is None or (turn.end and not turn.streaming):
        return None
    at, turn.streaming = turn.id, False
    turn.abandoned = clean(str(payload.get("reason") or "")) or "no reason given"
    turn.attempt = whole_number(payload.get("attempt"))
    card_contents.settle(turn)
    fold.rename(turn, f"abandoned-{event.seq}")
    return [Change(CardChange.REPLACE, turn, at=at)]


def _whole_block(fold: Fold, event: Event, payload: Payload) -> list[Change] | None:
    """A text or a thought that was not streamed, as external runners tell it."""
    if event.source == Source.WORKER:
        # Committed with its answer, whose card shows it from the row.
        turn = fold.find(f"turn-{event.step}", TurnCard)
        if turn is not None:
            fold.owners[event.seq] = turn
        return []
    block = MessageCard(**fold.opened(event, f"e{event.seq}"), role="assistant")
    card_contents.said(block, fold.texts, event, {"content": payload.get("text")})
    block.thought = event.type == EventType.LLM_THINKING
    return fold.add(block)


def _rolled_back(fold: Fold, event: Event, payload: Payload) -> list[Change]:
    """Its answers stay, struck through and under names that the step's next answer does not have."""
    changes = fold.add(row_of(event, fold.texts.base))
    for position in positions_of(event):
        message = fold.texts.undone.get(position)
        if message is None:
            continue
        at = f"turn-{message.step}"
        known = fold.find(at, TurnCard)
        if known is not None:
            fold.rename(known, f"undone-{position}")
        turn = known or TurnCard(**fold.opened(event, f"undone-{position}"), step=message.step)
        turn.undone, turn.streaming, turn.model, turn.end = True, False, "", {}
        card_contents.answer(turn, fold.texts, message)
        changes.append(Change(CardChange.STRIKE, turn, at=at))
    return changes


# --- Tools --------------------------------------------------------------------------------------------------------


def _tool_start(fold: Fold, event: Event, payload: Payload) -> list[Change] | None:
    card_id = _card_id(event, payload)
    if card_id is None or event.late:
        return None
    known, tool = fold.find(card_id, ToolCard) is not None, fold.tool(event, card_id)
    card_contents.start_of_call(tool, fold.texts, event, payload)
    # A call that was started before, by this worker or another, has its card already.
    again = known or tool.attempt > 0 or (fold.starts(event) or 0) > 1
    return [Change(CardChange.PUT if again else CardChange.ADD, tool)]


def _tool_output(fold: Fold, event: Event, payload: Payload) -> list[Change] | None:
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


def _tool_end(fold: Fold, event: Event, payload: Payload) -> list[Change] | None:
    card_id = _card_id(event, payload)
    if card_id is None or event.late:
        return None
    tool = fold.tool(event, card_id)
    card_contents.end_of_call(tool, fold.texts, event, payload)
    # One that was refused before it could start has no card yet.
    return [Change(CardChange.ADD if fold.starts(event) == 0 else CardChange.PUT, tool)]


def _completed(fold: Fold, event: Event, payload: Payload) -> list[Change] | None:
    row = row_of(event, fold.texts.base)
    if event.source == Source.WORKER:
        # The card of the answer, or of the call that ended the run, shows it, and so does the head of the page.
        row.facts.pop("summary", None)
    return fold.add(row)


def _command(fold: Fold, event: Event, payload: Payload) -> list[Change] | None:
    row = row_of(event, fold.texts.base)
    outcome = fold.texts.outcomes.get(event.ref_id) if event.ref_id is not None else None
    # That one waits is said at the head of the page, and one that was applied shows by what it did.
    if outcome not in (None, RunCommand.Outcome.APPLIED):
        row.facts["outcome"] = outcome
    return fold.add(row)


def _waiting(fold: Fold, event: Event, payload: Payload) -> list[Change] | None:
    """The card of a call that the run waits for a word about says so."""
    changes = fold.add(row_of(event, fold.texts.base))
    if payload.get("reason") == WaitReason.UNKNOWN_TOOL:
        changes += _move_call(fold, event, "unknown", awaits=True)
    return changes


def _decided(fold: Fold, event: Event, payload: Payload) -> list[Change] | None:
    changes = fold.add(row_of(event, fold.texts.base))
    if payload.get("decision") == "retry":
        changes += _move_call(fold, event, "planned", awaits=False)
    return changes


def _move_call(fold: Fold, event: Event, status: str, *, awaits: bool) -> list[Change]:
    tool = fold.find(f"call-{event.ref_id}", ToolCard)
    if tool is None or event.late:
        return []
    tool.status, tool.awaits = status, awaits
    return [Change(CardChange.PUT, tool)]


def _card_id(event: Event, payload: Payload) -> str | None:
    """By the call's row; by its own id where a runner knows no rows."""
    if event.ref_id is not None:
        return f"call-{event.ref_id}"
    call_id = payload.get("call_id")
    return call_card(event.step, call_id) if isinstance(call_id, str) and call_id else None


_HANDLERS: dict[str, Handler] = {
    EventType.LLM_TURN_START: _turn_start,
    EventType.LLM_TEXT_DELTA: _delta,
    EventType.LLM_THINKING_DELTA: _delta,
    EventType.MESSAGE_ADDED: _message_added,
    EventType.LLM_TURN_END: _turn_end,
    EventType.LLM_TURN_ABANDONED: _abandoned,
    EventType.LLM_TEXT: _whole_block,
    EventType.LLM_THINKING: _whole_block,
    EventType.RUN_ROLLED_BACK: _rolled_back,
    EventType.TOOL_START: _tool_start,
    EventType.TOOL_OUTPUT: _tool_output,
    EventType.TOOL_END: _tool_end,
    EventType.RUN_COMPLETED: _completed,
    EventType.COMMAND_RECEIVED: _command,
    EventType.RUN_WAITING: _waiting,
    EventType.APPROVAL_RESOLVED: _decided,
    EventType.TOOL_OUTCOME_RESOLVED: _decided,
}
