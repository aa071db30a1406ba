"""The cards of a timeline. runs.pages.timeline.fold makes them of events."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any, ClassVar

from runs.pages.content.call_arguments import language_read, show_arguments
from runs.pages.content.shown_text import ShownText, show_markdown, show_output, show_plain
from runs.pages.content.terminal_text import TextSpan
from runs.statuses import ToolStatus
from timeline.display import Clip, dollars
from timeline.events import Show
from timeline.reasons import FINISH_LABELS
from timeline.shown_events import FAILED_STATUSES, EventRow, filters_of

#: Maximum bytes of a text of a person or a model, and of any other text.
TEXT_BYTES, OTHER_BYTES = 8192, 2048
#: Maximum chips for the requested tool calls of a turn.
MOST_CHIPS = 64
#: Maximum characters of a one-line summary.
LINE = 160
#: The statuses of tool calls that have a colour.
_STATUSES = frozenset(status.value for status in ToolStatus) | {"failed"}
#: Roles whose texts are rendered as Markdown.
PROSE_ROLES = frozenset({"user", "assistant"})
#: Role of a message → icon.
_ICONS = {"user": "user", "system": "system", "assistant": "assistant", "tool_result": "tool"}
#: Maximum characters of a text that is still streaming.
MOST_STREAMED = 65_536


@dataclass(kw_only=True)
class Card:
    """A card of the timeline."""

    #: The ID of the card's HTML element.
    id: str
    #: The sequence number of the first event, which is the position of the card.
    seq: int
    ts: datetime
    step: int | None = None
    #: Whether the event arrived after the end of the run.
    late: bool = False
    #: Whether the URL selects the card.
    is_target: bool = False
    #: The URL of the run's page.
    base: str = ""
    #: The URL of the full payload; empty if nothing more is stored.
    href: str = ""
    #: The time of a replay. None: now, so that the time of open work counts up.
    until: datetime | None = None

    @property
    def shows(self) -> list[Show]:
        """Return the filters that include the card."""
        return filters_of(Show.MESSAGES, is_error=False)


@dataclass(frozen=True, slots=True)
class CardMedia:
    """A picture or another medium of a card."""

    name: str
    #: The URL of a picture that pages can show; empty for other media.
    href: str = ""


@dataclass(kw_only=True)
class Step(Card):
    """The heading of a step, with a link to fork from the checkpoint before it."""

    template: ClassVar[str] = "timeline/_step.html"
    step: int


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """A tool call that the model requested: its name and the element ID of its card."""

    name: str
    card: str


@dataclass(kw_only=True)
class TurnCard(Card):
    """A model call: streaming, completed, discarded or rolled back."""

    template: ClassVar[str] = "timeline/_card_assistant.html"
    #: From 0.
    attempt: int = 0
    model: str = ""
    streaming: bool = False
    #: Why the response was discarded; empty if it was not.
    abandoned: str = ""
    rolled_back: bool = False
    text: Clip = field(default_factory=Clip)
    thinking: Clip = field(default_factory=Clip)
    #: Text streamed so far, displayed until the turn ends.
    streamed: list[str] = field(default_factory=list)
    streamed_thinking: list[str] = field(default_factory=list)
    requested_calls: list[PlannedCall] = field(default_factory=list)
    #: Number of requested calls beyond MOST_CHIPS.
    more_calls: int = 0
    media: list[CardMedia] = field(default_factory=list)
    #: Tokens, cost, duration and finish reason of `llm.turn.end`.
    end: dict[str, Any] = field(default_factory=dict)

    @property
    def shown_text(self) -> ShownText:
        return show_markdown(self.text)

    @property
    def copy_href(self) -> str:
        """Return the URL of the stored text; empty if no text is stored."""
        return f"{self.href}?download=text" if self.href and self.text else ""

    @property
    def plain_href(self) -> str:
        """Return the URL of the text without Markdown; empty if no text is stored."""
        return f"{self.href}?as=text" if self.href and self.text and not self.streaming else ""

    @property
    def streamed_text(self) -> str:
        return tail("".join(self.streamed))

    @property
    def streamed_thoughts(self) -> str:
        return tail("".join(self.streamed_thinking))

    @property
    def number(self) -> int:
        """Return the attempt, counted from 1."""
        return self.attempt + 1

    @property
    def fault(self) -> str:
        """Return how the answer is not whole, such as "cut off"; empty for a whole answer."""
        return FINISH_LABELS.get(self.end.get("finish_reason", ""), "")

    @property
    def cost(self) -> str:
        """Return the cost for display; empty if it is unknown or not a number."""
        try:
            amount = Decimal(self.end.get("cost_usd") or "NaN")
        except InvalidOperation:
            return ""
        return dollars(amount) if amount.is_finite() else ""

    @property
    def css_classes(self) -> str:
        """Return the CSS classes of its state, each with a leading space."""
        states = {
            "streaming": self.streaming,
            "abandoned": self.abandoned,
            "rolled-back": self.rolled_back,
            "target": self.is_target,
        }
        return "".join(f" is-{name}" for name, on in states.items() if on)

    @property
    def is_empty(self) -> bool:
        return not (self.text or self.thinking or self.requested_calls or self.media)


@dataclass(kw_only=True)
class ToolCard(Card):
    """A tool call."""

    template: ClassVar[str] = "timeline/_card_tool.html"
    name: str
    call_id: str = ""
    status: str = "running"
    #: Whether the run waits for a user to resolve the outcome.
    needs_outcome: bool = False
    effect: str = ""
    #: Attempt within a start, from 0.
    attempt: int = 0
    #: Number of starts; more than one after a lost worker or a retry.
    starts: int = 0
    #: The time of the last start.
    since: datetime | None = None
    #: The arguments as they are stored; `shown_arguments` prepares them for display.
    arguments: Any = None
    #: The arguments in one line.
    summary: str = ""
    output: Clip = field(default_factory=Clip)
    #: The parts of the output in a terminal colour.
    colours: tuple[TextSpan, ...] = ()
    media: list[CardMedia] = field(default_factory=list)
    #: Output streamed so far, displayed until the call ends.
    streamed: list[str] = field(default_factory=list)
    #: The URL of the output as a file; empty if only its pieces are stored.
    output_href: str = ""
    #: Whether the stored output is longer than `output`, which was sent to the model.
    has_unsent_output: bool = False
    duration_ms: int | None = None
    #: Who resolved its unknown outcome; empty if the outcome was observed.
    resolution: str = ""
    #: Whether another program executed it: an unknown outcome then does not mean that a worker stopped.
    is_recorded: bool = False
    #: The noun for what executed it on behalf of this site.
    executor: str = "worker"
    #: The URL of the child run that the call spawned.
    child_href: str = ""

    @property
    def number(self) -> int:
        """Return the attempt, counted from 1."""
        return self.attempt + 1

    @property
    def shown_arguments(self) -> list[ShownText]:
        return show_arguments(self.arguments, OTHER_BYTES)

    @property
    def shown_output(self) -> ShownText:
        """Return the output with the colours of a terminal, or of the code of the file that the call read."""
        return show_output(self.output, self.colours, "" if self.is_error else language_read(self.arguments))

    @property
    def has_row(self) -> bool:
        """Return whether `href` is the page of the call, which needs a row, and not the page of its event."""
        return "/calls/" in self.href

    @property
    def is_quiet(self) -> bool:
        """Return whether the card is collapsed to a line: the call succeeded, and no person resolved its outcome."""
        return self.status == "completed" and not self.resolution

    @property
    def first_line(self) -> str:
        return first_line(self.output.text)

    @property
    def status_word(self) -> str:
        """Return the status that sets the colour; "completed" for a status that only an external runner knows."""
        return self.status if self.status in _STATUSES else "completed"

    @property
    def css_classes(self) -> str:
        """Return the CSS classes of its state, each with a leading space."""
        error = " is-error" if self.is_error and self.status_word != "error" else ""
        return f" is-{self.status_word}{error}{' is-target' if self.is_target else ''}"

    @property
    def outcome_href(self) -> str:
        """Return the link to the form that resolves the outcome; empty if no outcome is needed."""
        return f"#outcome-{self.id.removeprefix('call-')}" if self.needs_outcome else ""

    @property
    def effect_label(self) -> str:
        return self.effect.replace("_", " ")

    @property
    def ended(self) -> bool:
        return self.status not in {"planned", "running"}

    @property
    def is_error(self) -> bool:
        """Return whether the call failed, was denied or has an unknown outcome."""
        return self.status in FAILED_STATUSES

    @property
    def shows(self) -> list[Show]:
        return filters_of(Show.TOOLS, is_error=self.is_error)

    @property
    def streamed_output(self) -> str:
        return tail("".join(self.streamed))


@dataclass(kw_only=True)
class MessageCard(Card):
    """A message outside of a model turn: of a user, of the system or of an external runner."""

    template: ClassVar[str] = "timeline/_card_message.html"
    role: str
    text: Clip = field(default_factory=Clip)
    is_thinking: bool = False
    media: list[CardMedia] = field(default_factory=list)

    @property
    def shown_text(self) -> ShownText:
        return show_markdown(self.text) if self.is_markdown else show_plain(self.text)

    @property
    def copy_href(self) -> str:
        """Return the URL of the stored text; empty if no text is stored."""
        return f"{self.href}?download=text" if self.href and self.text else ""

    @property
    def plain_href(self) -> str:
        """Return the URL of the text without Markdown; empty if the text is plain."""
        return f"{self.href}?as=text" if self.copy_href and self.is_markdown else ""

    @property
    def is_markdown(self) -> bool:
        """Return whether the text is rendered as Markdown: texts of a person or a model are."""
        return self.role in PROSE_ROLES and not self.is_thinking

    @property
    def title(self) -> str:
        return "Thinking" if self.is_thinking else self.role.replace("_", " ").capitalize()

    @property
    def icon(self) -> str:
        return "thinking" if self.is_thinking else _ICONS[self.role]

    @property
    def kind(self) -> str:
        """Return the suffix of the CSS class: "result" for a tool result without a tool card."""
        return "result" if self.role == "tool_result" else self.role

    @property
    def first_line(self) -> str:
        return first_line(self.text.text)


Item = EventRow | Step | TurnCard | ToolCard | MessageCard


def first_line(text: str) -> str:
    """Return the first line that is not blank, truncated to LINE characters."""
    return next((line[:LINE] for line in text.splitlines() if line.strip()), "")


def tail(text: str) -> str:
    """Return a streaming text, or its end if it has more than MOST_STREAMED characters."""
    return text if len(text) <= MOST_STREAMED else f"…{text[-MOST_STREAMED:]}"


def external_call_card_id(step: int | None, call_id: str) -> str:
    """Return the element ID of the card of a tool call without a row, reported by an external runner."""
    digest = hashlib.sha256(f"{step}/{call_id}".encode(errors="surrogatepass")).hexdigest()
    return f"call-x{digest[:16]}"
