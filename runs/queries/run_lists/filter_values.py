"""Parses the values of run-list filters in the same way for the page, the API and the command line.

Each function returns the value, or raises ValueError with a text that continues the name of the filter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from django.utils.dateparse import parse_datetime

from agentops.accounts.names import UUID_PATTERN
from agentops.base.redaction.redact import BARE
from agentops.base.redaction.redact import DEFAULT as REDACTOR
from runs.models import AgentRun
from runs.statuses import RunStatus

MAX_TEXT = 200
#: Characters of a value that are searched for secrets before it is repeated in an error, and characters repeated.
MAX_SEARCHED, MAX_ECHO = 4096, 64
#: Larger offsets do not exist, and PostgreSQL refuses them.
MAX_OFFSET = timedelta(hours=16)
#: The format that an input of type datetime-local sends.
LOCAL_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?", re.ASCII)
ZONED_TIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?(?:[Zz]|[+-][0-9]{2}:[0-9]{2})",
    re.ASCII,
)
COST = re.compile(r"[0-9]{1,8}(?:\.[0-9]{1,8})?", re.ASCII)
SECONDS = re.compile(r"[0-9]{1,9}", re.ASCII)


def statuses(values: Iterable[str]) -> tuple[RunStatus, ...]:
    """Return the statuses without duplicates, in the order of the enum. A value may hold several, with commas."""
    selected = {each for value in values for each in value.split(",") if each}
    unknown = sorted(selected - set(RunStatus))
    if unknown:
        raise ValueError(f"must be one of {', '.join(RunStatus)}, not {_echo(unknown[0])}")
    return tuple(status for status in RunStatus if status in selected)


def agent(text: str) -> str:
    """Return the name of an agent; empty for any. Runners may use any name, which is stored redacted."""
    return label(text)


def source(text: str) -> str:
    """Return a source of runs; empty for any."""
    if text and text not in AgentRun.Source.values:
        raise ValueError(f"must be one of {', '.join(AgentRun.Source.values)}, not {_echo(text)}")
    return text


def schedule(text: str) -> str:
    """Return the ID of a schedule; empty for any."""
    if text and not re.match(UUID_PATTERN, text):
        raise ValueError(f"must be the ID of a schedule, not {_echo(text)}")
    return text.lower()


def line(text: str) -> str:
    """Return a text in its stored form: without surrounding white space, NUL and lone surrogates."""
    text = text.strip()
    if len(text) > MAX_TEXT:
        raise ValueError(f"can have at most {MAX_TEXT} characters, not {len(text)}")
    return BARE.clean_text(text)[0]


def label(text: str) -> str:
    """Return a label in its stored form: redacted."""
    return REDACTOR.clean_text(line(text))[0]


def cost(text: str) -> str:
    """Return an amount in US dollars; empty for none."""
    text = text.strip()
    if text and not COST.fullmatch(text):
        raise ValueError(f"must be an amount in dollars such as 0.25, not {_echo(text)}")
    return text


def seconds(text: str) -> str:
    """Return a whole number of seconds; empty for none."""
    text = text.strip()
    if text and not SECONDS.fullmatch(text):
        raise ValueError(f"must be a whole number of seconds, not {_echo(text)}")
    return text


def local_time(text: str) -> str:
    """Return a time in UTC, in the form of an input of type datetime-local; empty for none."""
    if not text or (LOCAL_TIME.fullmatch(text) and _is_in_calendar(text)):
        return text
    if ZONED_TIME.fullmatch(text):
        return zoned_time(text).replace(tzinfo=None).isoformat()
    raise ValueError(f"must be a time such as 2026-11-20T16:45 in UTC, not {_echo(text)}")


def zoned_time(text: str) -> datetime:
    """Return a time of RFC 3339 with a zone, converted to UTC."""
    # An unescaped plus arrives as a space.
    text = re.sub(r" (?=[0-9]{2}:[0-9]{2}\Z)", "+", text, flags=re.ASCII)
    try:
        moment = parse_datetime(text.upper()) if ZONED_TIME.fullmatch(text) else None
    except ValueError:  # the 30th of February
        moment = None
    if moment is None or moment.year in (1, 9999):  # the zone moves it out of the calendar
        raise ValueError("must be a time such as 2026-11-20T16:45:00Z")
    if abs(moment.utcoffset() or timedelta(0)) >= MAX_OFFSET:
        raise ValueError("must have a UTC offset below 16 hours: send the time in UTC, with Z")
    return moment.astimezone(UTC)


def _echo(text: str) -> str:
    """Return a value for an error text. It is masked before it is cut, because half a secret is not recognised."""
    return repr(REDACTOR.clean_text(text[:MAX_SEARCHED])[0][:MAX_ECHO])


def _is_in_calendar(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).year not in (1, 9999)
    except ValueError:
        return False
