"""What every event payload has in common: strict fields, a sentence about itself, a place in the registry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, ClassVar, TypeVar

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from timeline.events.vocabulary import EventType

# Counts are summed up in columns, which end here. bool and "7" are no counts.
_FITS = Field(ge=0, lt=2**63)
Count = Annotated[int, _FITS]
# Runners measure in fractions; the log keeps whole milliseconds.
Millis = Annotated[int, _FITS] | Annotated[float, _FITS, AfterValidator(round)]
Name = Annotated[str, Field(min_length=1)]
# JSON has no time of its own, so strictness would refuse every sender.
Moment = Annotated[AwareDatetime, Field(strict=False)]
# Decimal and number in, text out: money must not pass through a float on its way to a page.
Money = Annotated[str, Field(strict=False, coerce_numbers_to_str=True)]


class Payload(BaseModel):
    """Camel case is understood (runners speak it), snake case is what is stored."""

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

    def describe(self) -> str:
        """A short English sentence from the fields, for readers of an event that brought no message."""
        raise NotImplementedError


P = TypeVar("P", bound="Payload")

REGISTRY: dict[str, type[Payload]] = {}


def register(event_type: EventType) -> Callable[[type[P]], type[P]]:
    """Give a payload class its place in the registry; two classes for one type are a programming error."""

    def place(cls: type[P]) -> type[P]:
        if event_type in REGISTRY:
            raise ValueError(f"{event_type} is already {REGISTRY[event_type].__name__}")
        cls.event_type = event_type.value
        REGISTRY[event_type.value] = cls
        return cls

    return place


def sentence(head: str, *facts: str | None) -> str:
    """Join what is known: `sentence("Paused", "by ada", None)` is "Paused by ada"."""
    return " ".join([head, *(fact for fact in facts if fact)])


def because(reason: str | None) -> str | None:
    """A reason as a tail for `sentence`."""
    return f"({reason})" if reason else None


def by(who: str | None) -> str | None:
    return f"by {who}" if who else None


def number(count: int | None, noun: str) -> str | None:
    """`number(1, "step")` is "1 step"; None stays None."""
    return None if count is None else f"{count:,} {noun}{'' if count == 1 else 's'}"


def seconds(ms: int | float | None) -> str | None:
    return None if ms is None else f"in {ms / 1000:.1f} s"
