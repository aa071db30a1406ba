"""The base class of event payloads, shared field types, and the registry of event types with all facts about them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from typing import Annotated, ClassVar, TypeVar

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, JsonValue
from pydantic.alias_generators import to_camel

from timeline.reasons import reason_label

# The range of a bigint column, in which counts are summed. Strict: True and "7" are not counts.
_FITS = Field(ge=0, lt=2**63)
Count = Annotated[int, _FITS]
# External runners may send fractions; the log stores whole milliseconds.
Millis = Annotated[int, _FITS] | Annotated[float, _FITS, AfterValidator(round)]
Name = Annotated[str, Field(min_length=1)]
# Not strict: JSON has no time type, so times arrive as strings.
Moment = Annotated[AwareDatetime, Field(strict=False)]
# Accepts decimals and numbers, stores text: money must not be converted to float.
Money = Annotated[str, Field(strict=False, coerce_numbers_to_str=True)]


class Payload(BaseModel):
    """The payload of an event. Field names are accepted in camel case and snake case, and stored in snake case."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        alias_generator=to_camel,
        populate_by_name=True,
    )
    event_type: ClassVar[str] = ""
    event_kind: ClassVar[EventKind]

    message: str = ""
    #: Additional fields from an external runner, under their own names.
    extra: dict[str, JsonValue] | None = None

    def describe(self) -> str:
        """Return a short sentence about the event, used if it has no `message`."""
        raise NotImplementedError


P = TypeVar("P", bound="Payload")

REGISTRY: dict[str, type[Payload]] = {}


class Show(StrEnum):
    """The filters of a timeline. `ERRORS` includes the failures of all types."""

    ALL = "all"
    MESSAGES = "messages"
    TOOLS = "tools"
    ERRORS = "errors"


@dataclass(frozen=True, slots=True)
class Family:
    """Event types whose rows have the same template, `timeline/events/<name>.html`, and CSS class, `row-<name>`."""

    name: str
    #: In the filter of a run's stored events.
    label: str
    icon: str
    #: The filter of the timeline that includes its rows, and the cards made of its events.
    show: Show | None = None


@dataclass(frozen=True, slots=True)
class EventKind:
    """Everything known about an event type besides its payload. The decorator of the payload class.

    `denies_if` and `warns_if` map a payload field to the values of a decision against the run or a call.
    """

    #: Templates read it; Django calls what is callable.
    do_not_call_in_templates: ClassVar[bool] = True

    event_type: str
    family: Family
    _: KW_ONLY
    #: The status of the run after the event, or the payload field with it. The row has the icon of the status.
    status: str = ""
    status_field: str = ""
    #: The icon of its rows, if it is not that of the status or the family.
    icon: str = ""
    #: Whether it ends a log: afterwards only late events are accepted, and live streams end.
    is_terminal: bool = False
    #: Whether external runners must not send it, because it records a decision of this server.
    is_reserved: bool = False
    #: Whether it always reports a failure, or if its payload says so (timeline/events/failures.py).
    is_failure: bool = False
    is_outcome: bool = False
    #: Whether its rows are warnings: always, or if the payload has such a value.
    is_warning: bool = False
    warns_if: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    denies_if: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: Whether it starts a wait for a person or a time. The minimap marks waits.
    is_wait: bool = False
    #: Whether it is a piece of a streamed text: it has no row, and is read only if the full text is not stored.
    is_chunk: bool = False
    #: Whether it starts or ends a model call or a tool call, which has a card, or changes the status of a tool call.
    opens_card: bool = False
    ends_card: bool = False
    updates_call: bool = False
    #: Whether the filter of the family includes it.
    in_filter: bool = True
    #: The level of its log line for operators. None: no line.
    log_level: int | None = None

    def __call__(self, cls: type[P]) -> type[P]:
        """Register a payload class for the type. Raise ValueError if the type has one."""
        if self.event_type in REGISTRY:
            raise ValueError(f"{self.event_type} is already {REGISTRY[self.event_type].__name__}")
        cls.event_type, cls.event_kind = str(self.event_type), self
        REGISTRY[cls.event_type] = cls
        return cls

    @property
    def show(self) -> Show | None:
        """Return the filter of the timeline that includes its rows, besides those of all rows and of failures."""
        return self.family.show if self.in_filter else None


CUSTOM = EventKind("", Family("custom", "Custom events", icon="notice"))


def kind_of(type_: str) -> EventKind:
    """Return what is known about an event type. Custom and unknown types share one."""
    cls = REGISTRY.get(type_)
    return CUSTOM if cls is None else cls.event_kind


def types_that(holds: Callable[[EventKind], object]) -> frozenset[str]:
    """Return the event types for whose kinds `holds` is true."""
    return frozenset(type_ for type_, cls in REGISTRY.items() if holds(cls.event_kind))


def sentence(head: str, *facts: str | None) -> str:
    """Join the facts that are set: `sentence("Paused", "by ada", None)` is "Paused by ada"."""
    return " ".join([head, *(fact for fact in facts if fact)])


def because(reason: str | None) -> str | None:
    """Return a reason code as a phrase, or another text, in parentheses, for `sentence`."""
    return f"({reason_label(reason)})" if reason else None


def by(actor: str | None) -> str | None:
    """Return "by <actor>", for `sentence`."""
    return f"by {actor}" if actor else None


def number(count: int | None, noun: str) -> str | None:
    """Return a count with its noun: `number(1, "step")` is "1 step". None for None."""
    return None if count is None else f"{count:,} {noun}{'' if count == 1 else 's'}"


def seconds(ms: int | float | None) -> str | None:
    """Return a duration: `seconds(1500)` is "in 1.5 s", `seconds(40)` "in 40 ms". None for None."""
    if ms is None:
        return None
    return f"in {ms:.0f} ms" if ms < 1000 else f"in {ms / 1000:.1f} s"
