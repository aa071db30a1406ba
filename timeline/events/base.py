"""The base class of event payloads, shared field types, and the registry of event types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, ClassVar, TypeVar

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, JsonValue
from pydantic.alias_generators import to_camel

from timeline.events.vocabulary import EventType
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

    message: str = ""
    #: Additional fields from an external runner, under their own names.
    extra: dict[str, JsonValue] | None = None

    def describe(self) -> str:
        """Return a short sentence about the event, used if it has no `message`."""
        raise NotImplementedError


P = TypeVar("P", bound="Payload")

REGISTRY: dict[str, type[Payload]] = {}


def register(event_type: EventType) -> Callable[[type[P]], type[P]]:
    """Register a payload class for an event type. Raise ValueError if the type has one."""

    def register_class(cls: type[P]) -> type[P]:
        if event_type in REGISTRY:
            raise ValueError(f"{event_type} is already {REGISTRY[event_type].__name__}")
        cls.event_type = event_type.value
        REGISTRY[event_type.value] = cls
        return cls

    return register_class


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
