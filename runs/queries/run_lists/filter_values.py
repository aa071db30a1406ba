"""The kinds of values of the run list's filters, for the page, the API and the command line.

A value is a text. Each parser returns its form in links, or "" for no filter. It raises `ValueError` for an invalid
value, with a text that follows the name of the filter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from django.utils.dateparse import parse_datetime

from agentops.accounts.names import UUID_PATTERN
from agentops.base.redaction.redact import BARE
from agentops.base.redaction.redact import DEFAULT as REDACTOR
from runs.models import AgentRun
from runs.statuses import RunStatus

#: Maximum characters of a text.
MAX_TEXT = 200
#: Characters of an invalid value that an error repeats.
MAX_ECHO = 64
#: Characters of an invalid value that are searched for secrets before.
MAX_SEARCHED = 4096
#: UTC offsets must be smaller. No zone has a larger one, and PostgreSQL refuses them.
MAX_OFFSET = timedelta(hours=16)
#: The format that an input of type datetime-local sends.
LOCAL_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?", re.ASCII)
ZONED_TIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?(?:[Zz]|[+-][0-9]{2}:[0-9]{2})",
    re.ASCII,
)
COST_PATTERN = re.compile(r"[0-9]{1,8}(?:\.[0-9]{1,8})?", re.ASCII)
SECONDS_PATTERN = re.compile(r"[0-9]{1,9}", re.ASCII)


@dataclass(frozen=True, eq=False)
class ValueKind:
    """A kind of values: its parser, and its presentation in the form and on the command line."""

    parse: Callable[[str], str]
    #: The placeholder in the help of the command line; by default the name of the filter.
    metavar: str | None = None
    #: A closed set of values.
    choices: tuple[str, ...] = ()
    #: A sentence for the API's exports and the command line.
    note: str = ""
    #: Whether there may be several values, with commas, which mean "any of these".
    is_many: bool = False
    #: Attributes of the input in the form.
    attributes: Mapping[str, str] = field(default_factory=dict)


def statuses(text: str) -> str:
    """Return statuses without duplicates, in the order of the enum."""
    selected = {each for each in text.split(",") if each}
    unknown = sorted(selected - set(RunStatus))
    if unknown:
        raise ValueError(f"must be one of {', '.join(RunStatus)}, not {_echo(unknown[0])}")
    return ",".join(status for status in RunStatus if status in selected)


def source(text: str) -> str:
    """Return a source of runs."""
    if text and text not in AgentRun.SOURCES:
        raise ValueError(f"must be one of {', '.join(AgentRun.SOURCES)}, not {_echo(text)}")
    return text


def flag(text: str) -> str:
    """Return 1 for any text."""
    return "1" if text else ""


def identifier(text: str) -> str:
    """Return a UUID."""
    if text and not re.match(UUID_PATTERN, text):
        raise ValueError(f"must be a UUID, not {_echo(text)}")
    return text.lower()


def line(text: str) -> str:
    """Return a text of at most `MAX_TEXT` characters, without surrounding white space, NUL and lone surrogates."""
    text = text.strip()
    if len(text) > MAX_TEXT:
        raise ValueError(f"can have at most {MAX_TEXT} characters, not {len(text)}")
    return BARE.clean_text(text)[0]


def label(text: str) -> str:
    """Return a label or the name of an agent in its stored form, which is redacted."""
    return REDACTOR.clean_text(line(text))[0]


def cost(text: str) -> str:
    """Return an amount in US dollars."""
    text = text.strip()
    if text and not COST_PATTERN.fullmatch(text):
        raise ValueError(f"must be an amount in dollars such as 0.25, not {_echo(text)}")
    return text


def seconds(text: str) -> str:
    """Return a whole number of seconds."""
    text = text.strip()
    if text and not SECONDS_PATTERN.fullmatch(text):
        raise ValueError(f"must be a whole number of seconds, not {_echo(text)}")
    return text


def local_time(text: str) -> str:
    """Return a time in UTC, in the form of an input of type datetime-local."""
    if not text or (LOCAL_TIME.fullmatch(text) and _is_in_calendar(text)):
        return text
    if ZONED_TIME.fullmatch(_with_plus(text)):
        return zoned_time(text).replace(tzinfo=None).isoformat()
    raise ValueError(f"must be a time such as 2026-11-20T16:45 in UTC, not {_echo(text)}")


def zoned_time(text: str) -> datetime:
    """Return the time of an RFC 3339 text with a zone, in UTC. Raises `ValueError`."""
    text = _with_plus(text)
    try:
        moment = parse_datetime(text.upper()) if ZONED_TIME.fullmatch(text) else None
    except ValueError:  # such as the 30th of February
        moment = None
    if moment is None or moment.year in (1, 9999):  # in UTC, the time might be out of the range of datetime
        raise ValueError("must be a time such as 2026-11-20T16:45:00Z")
    if abs(moment.utcoffset() or timedelta(0)) >= MAX_OFFSET:
        raise ValueError("must have a UTC offset below 16 hours: send the time in UTC, with Z")
    return moment.astimezone(UTC)


def _with_plus(text: str) -> str:
    """Return a time with a plus sign before the offset, which an unescaped URL turns into a space."""
    return re.sub(r" (?=[0-9]{2}:[0-9]{2}\Z)", "+", text, flags=re.ASCII)


def _echo(text: str) -> str:
    """Return an invalid value for an error text. Masked before it is truncated: half a secret is not recognised."""
    return repr(REDACTOR.clean_text(text[:MAX_SEARCHED])[0][:MAX_ECHO])


def _is_in_calendar(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).year not in (1, 9999)
    except ValueError:
        return False


STATUSES = ValueKind(statuses, choices=tuple(status.value for status in RunStatus), is_many=True)
SOURCE = ValueKind(source, choices=AgentRun.SOURCES)
FLAG = ValueKind(flag)
ID = ValueKind(identifier, "ID")
NAME = ValueKind(label, attributes={"maxlength": str(MAX_TEXT), "autocomplete": "off"})
LINE = ValueKind(line, attributes={"maxlength": str(MAX_TEXT), "autocomplete": "off", "spellcheck": "false"})
SEARCH = ValueKind(line, "TEXT", attributes={"type": "search", "maxlength": str(MAX_TEXT), "data-filter": ""})
TIME = ValueKind(local_time, "TIME", note="Without a zone: UTC.", attributes={"type": "datetime-local"})
DOLLARS = ValueKind(cost, "USD", attributes={"inputmode": "decimal", "maxlength": "17", "autocomplete": "off"})
SECONDS = ValueKind(seconds, "SECONDS", attributes={"inputmode": "numeric", "maxlength": "9", "autocomplete": "off"})
