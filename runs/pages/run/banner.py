"""The banner of a run page, and helpers to build banners from events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.urls import reverse

from runs.pages.approvals.shown_approval import ShownApproval
from runs.pages.run.action_commands import ActionCommand
from timeline import log
from timeline.display import clean
from timeline.events import EventType
from timeline.models import Event
from timeline.reasons import reason_label


@dataclass(frozen=True)
class OpenCall:
    """A tool call with an unknown outcome that a user has to resolve."""

    id: UUID
    name: str
    step: int
    #: The arguments in one line.
    summary: str
    #: Whether the tool is not safe to repeat.
    at_most_once: bool
    #: The command that resolves it as done.
    command: ActionCommand | None = None


@dataclass(frozen=True)
class AgentQuestion:
    """A question of the agent with its suggested answers."""

    text: str
    #: Pairs of the value to send and its label.
    choices: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class ChildInNeed:
    """A descendant run that waits for a person, with a link to the page of the decision."""

    href: str
    #: The action there: a verb and its object.
    label: str
    title: str


@dataclass(frozen=True, kw_only=True)
class Banner:
    """A notice at the top of a run page."""

    level: str  # info, warn, error
    icon: str
    head: str
    text: str = ""
    #: The time of the cause, the start and the end.
    at: datetime | None = None
    since: datetime | None = None
    until: datetime | None = None
    until_word: str = "until"
    #: A link and its label.
    href: str = ""
    label: str = ""
    #: A shell command to copy.
    command: str = ""
    #: Untrusted text, such as an error message.
    quote: str = ""
    #: Tool calls to resolve.
    calls: Sequence[OpenCall] = ()
    #: The agent's question to answer.
    question: AgentQuestion | None = None
    #: The call to approve or deny, and the command that approves it.
    approval: ShownApproval | None = None
    #: Descendant runs that wait for a person.
    children: Sequence[ChildInNeed] = ()
    approval_command: ActionCommand | None = None
    #: Whether it explains why the run does not continue. Such a banner appears at the live end of the timeline.
    is_wait: bool = False


# --- Reading ---------------------------------------------------------------------------------------------------------


def newest_event(run_id: UUID, *types: EventType) -> Event | None:
    """Return the newest event of these types, or None. Reads the log from its end."""
    return log.events_of(run_id).filter(type__in=types).order_by("-seq").first()


def href_of(event: Event) -> str:
    """Return the URL of the event in the timeline."""
    return f"{reverse('runs:detail', args=[event.log_id])}?event={event.seq}#target"


def parse_time(text: Any) -> datetime | None:
    """Return the ISO 8601 time in `text`, or None if it is not one."""
    try:
        return datetime.fromisoformat(str(text))
    except ValueError:
        return None


def label_of(code: str) -> str:
    """Return the phrase for a reason code."""
    return clean(reason_label(code))


def actor_label(by: Any) -> str:
    """Return the name of an actor for display: a user, an API key or a policy."""
    name = clean(str(by or ""))
    trigger = name.removeprefix("policy:")
    return f"policy {trigger}" if trigger != name else name
