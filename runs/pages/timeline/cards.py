"""The cards of a run's timeline: what each shows, filled in by runs.pages.timeline.fold as its events come."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any, ClassVar

from runs.pages.runs.run_row import dollars
from runs.statuses import ToolStatus
from timeline.event_rows import BAD_STATUSES, EventRow, errors_if
from timeline.shown import Clip

TEXT_BYTES = 8192
OTHER_BYTES = 2048
#: Chips of one turn; a runaway model may ask for thousands.
MOST_CHIPS = 64
#: Characters of a line that stands for more.
LINE = 160
_STATUSES = frozenset(status.value for status in ToolStatus) | {"failed"}
_SPEAKERS = {"user": "user", "system": "system", "assistant": "assistant", "tool_result": "tool"}
#: Characters of a text that is still streaming.
MOST_STREAMED = 65_536


@dataclass(kw_only=True)
class Card:
    """What all of them have. `seq` is that of the event which opened it: its place in the timeline."""

    id: str
    seq: int
    ts: datetime
    late: bool = False
    is_target: bool = False
    #: The address of the page that it stands on.
    base: str = ""
    #: Where what it shows can be read whole; empty where nothing more is stored.
    href: str = ""


@dataclass(kw_only=True)
class Step(Card):
    """The heading of a step; the step before it, if there is one, has its checkpoint."""

    template: ClassVar[str] = "timeline/_step.html"
    step: int

    @property
    def shows(self) -> frozenset[str]:
        return frozenset({"messages"})


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """A tool call that an answer plans: its name, and the id of the card that it will have."""

    name: str
    card: str


@dataclass(kw_only=True)
class TurnCard(Card):
    """One call of the model: streaming, answered, abandoned, or answered and taken back."""

    template: ClassVar[str] = "timeline/_card_assistant.html"
    step: int | None
    attempt: int = 0
    model: str = ""
    streaming: bool = False
    abandoned: str = ""
    undone: bool = False
    text: Clip = field(default_factory=Clip)
    thinking: Clip = field(default_factory=Clip)
    #: What has streamed in; shown as long as there is no answer.
    streamed: list[str] = field(default_factory=list)
    streamed_thinking: list[str] = field(default_factory=list)
    asked: list[PlannedCall] = field(default_factory=list)
    more_asked: int = 0
    media: list[str] = field(default_factory=list)
    #: Of `llm.turn.end`: tokens, cost, duration, finish reason.
    end: dict[str, Any] = field(default_factory=dict)

    @property
    def shows(self) -> frozenset[str]:
        return frozenset({"messages"})

    @property
    def streamed_text(self) -> str:
        return tail("".join(self.streamed))

    @property
    def streamed_thoughts(self) -> str:
        return tail("".join(self.streamed_thinking))

    @property
    def number(self) -> int:
        """Of the attempt, as people count."""
        return self.attempt + 1

    @property
    def cost(self) -> str:
        """Empty where nobody told it, or what was told is no number."""
        try:
            amount = Decimal(self.end.get("cost_usd") or "NaN")
        except InvalidOperation:
            return ""
        return dollars(amount) if amount.is_finite() else ""

    @property
    def marks(self) -> str:
        """The classes that its state adds, each with a space before it."""
        states = {
            "streaming": self.streaming,
            "abandoned": self.abandoned,
            "undone": self.undone,
            "target": self.is_target,
        }
        return "".join(f" is-{name}" for name, on in states.items() if on)

    @property
    def says_nothing(self) -> bool:
        return not (self.text or self.thinking or self.asked or self.media)


@dataclass(kw_only=True)
class ToolCard(Card):
    """One tool call, from its first start to its end."""

    template: ClassVar[str] = "timeline/_card_tool.html"
    name: str
    call_id: str = ""
    step: int | None = None
    status: str = "running"
    #: Whether the run waits for somebody who says what came of it.
    awaits: bool = False
    effect: str = ""
    #: 0-based: within one start, a retry counts on.
    attempt: int = 0
    #: How often it was started; more than once where a worker died.
    starts: int = 0
    since: datetime | None = None
    arguments: Clip = field(default_factory=Clip)
    #: The arguments in one line.
    summary: str = ""
    output: Clip = field(default_factory=Clip)
    streamed: list[str] = field(default_factory=list)
    #: Whether more than `output` is kept than the model was shown.
    kept_more: bool = False
    duration_ms: int | None = None
    #: Who declared its outcome, in words; empty where that was observed.
    declared: str = ""
    child_href: str = ""

    @property
    def number(self) -> int:
        """Of the attempt, as people count."""
        return self.attempt + 1

    @property
    def first_line(self) -> str:
        """Of the output: what it says where it is not opened."""
        return first_line(self.output.text)

    @property
    def status_word(self) -> str:
        """Of ours, whatever an external runner calls it: it chooses the colour."""
        return self.status if self.status in _STATUSES else "completed"

    @property
    def marks(self) -> str:
        """The classes that its state adds, each with a space before it."""
        error = " is-error" if self.is_error and self.status_word != "error" else ""
        return f" is-{self.status_word}{error}{' is-target' if self.is_target else ''}"

    @property
    def outcome(self) -> str:
        """Where that can be said: a place on the page, for those who may."""
        return f"#outcome-{self.id.removeprefix('call-')}" if self.awaits else ""

    @property
    def effect_words(self) -> str:
        return self.effect.replace("_", " ")

    @property
    def ended(self) -> bool:
        return self.status not in {"planned", "running"}

    @property
    def is_error(self) -> bool:
        return self.status in BAD_STATUSES

    @property
    def shows(self) -> frozenset[str]:
        return frozenset({"tools"} | errors_if(self.is_error))

    @property
    def streamed_output(self) -> str:
        return tail("".join(self.streamed))


@dataclass(kw_only=True)
class MessageCard(Card):
    """A message that no model turn of this log made: of a user, of the system, or told by an external runner."""

    template: ClassVar[str] = "timeline/_card_message.html"
    role: str
    text: Clip = field(default_factory=Clip)
    #: A thought, not something said.
    thought: bool = False
    media: list[str] = field(default_factory=list)

    @property
    def shows(self) -> frozenset[str]:
        return frozenset({"messages"})

    @property
    def title(self) -> str:
        return "Thinking" if self.thought else self.role.replace("_", " ").capitalize()

    @property
    def icon(self) -> str:
        return "thinking" if self.thought else _SPEAKERS[self.role]

    @property
    def kind(self) -> str:
        """The class of its card: a result that has no call's card to stand in is no tool card."""
        return "result" if self.role == "tool_result" else self.role

    @property
    def first_line(self) -> str:
        return first_line(self.text.text)


Item = EventRow | Step | TurnCard | ToolCard | MessageCard


def first_line(text: str) -> str:
    return next((line[:LINE] for line in text.splitlines() if line.strip()), "")


def tail(text: str) -> str:
    """The end of a text that grows; the page of its message has the whole one day."""
    return text if len(text) <= MOST_STREAMED else f"…{text[-MOST_STREAMED:]}"


def call_card(step: int | None, call_id: str) -> str:
    """The id of the card of a call that no row of ours stands for."""
    digest = hashlib.sha256(f"{step}/{call_id}".encode(errors="surrogatepass")).hexdigest()
    return f"call-x{digest[:16]}"
