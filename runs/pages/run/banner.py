"""A banner: something a reader of a run should know before anything else; and what all kinds of banners read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.urls import reverse

from timeline import log
from timeline.events import EventType
from timeline.models import Event
from timeline.shown import clean


@dataclass(frozen=True)
class OpenCall:
    """A call that somebody has to say something about."""

    id: UUID
    name: str
    step: int
    #: Its arguments in a line.
    summary: str
    #: Whether to run it again may do twice what may be done once.
    once: bool


@dataclass(frozen=True)
class AskedPerson:
    """A question of the agent's, and the answers that it offers."""

    text: str
    #: Each as it is sent, and as it is shown.
    choices: Sequence[tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class Banner:
    level: str  # info, warn, error
    icon: str
    head: str
    text: str = ""
    #: When it happened, since when it lasts, until when.
    at: datetime | None = None
    since: datetime | None = None
    until: datetime | None = None
    until_word: str = "until"
    #: Where to go, and what that is called.
    href: str = ""
    label: str = ""
    #: A command that helps.
    command: str = ""
    #: Somebody else's words.
    quote: str = ""
    #: What it asks about.
    calls: Sequence[OpenCall] = ()
    #: What the agent asks.
    question: AskedPerson | None = None


# --- Reading ---------------------------------------------------------------------------------------------------------


def last(run_id: UUID, *types: EventType) -> Event | None:
    """The newest event of these types: such as say how the run stands are near the end of its log, and found from
    there."""
    return log.events_of(run_id).filter(type__in=types).order_by("-seq").first()


def place_of(event: Event) -> str:
    return f"{reverse('runs:detail', args=[event.log_id])}?event={event.seq}#target"


def moment(text: Any) -> datetime | None:
    try:
        return datetime.fromisoformat(str(text))
    except ValueError:
        return None


def words(machine_word: str) -> str:
    return clean(machine_word.replace("_", " "))


def who(by: Any) -> str:
    """Somebody in words: a policy acts by itself."""
    name = clean(str(by or ""))
    trigger = name.removeprefix("policy:")
    return f"its policy ({trigger.replace('_', ' ')})" if trigger != name else name
