"""Parameters of a query: each parses what was sent, and describes itself for the OpenAPI document."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar
from uuid import UUID

from django.http import QueryDict
from django.utils.dateparse import parse_datetime

from agentops.projects.names import SLUG_PATTERN, UUID_PATTERN
from runs.api.problems import MAX_FAULTS, Fault, InvalidParameters, echo
from timeline.redaction.redact import BARE

#: What JavaScript, and every column of ours, can hold without doubt.
MAX_INTEGER = 2**63 - 1
MAX_LIMIT = 200
DEFAULT_LIMIT = 50
#: Zones beyond it exist nowhere, and PostgreSQL refuses them.
MAX_OFFSET = timedelta(hours=16)
#: 19 digits reach beyond 2**63, which is looked at afterwards; a longer text is no number that we know.
WHOLE = re.compile(r"[0-9]{1,19}", re.ASCII)
TIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?(?:[Zz]|[+-][0-9]{2}:[0-9]{2})",
    re.ASCII,
)


class Unusable(ValueError):
    """The text of the refusal; the parameter adds its name and code."""


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """The base: a text that may be sent once. `parse` gives the value, or raises Unusable with the reason."""

    name: str
    description: str
    code: str = "invalid_filter"
    default: Any = None
    required: bool = False
    example: Any = None

    #: Whether it may be sent several times.
    repeats: ClassVar[bool] = False

    def parse(self, text: str) -> Any:
        return text

    def schema(self) -> dict[str, Any]:
        """The JSON schema of the value, as OpenAPI wants it."""
        return {"type": "string"}

    def read(self, sent: Sequence[str]) -> Any:
        if len(sent) > 1:
            raise Unusable(f"{self.name} may be sent once")
        return self.parse(sent[0])

    def openapi(self) -> dict[str, Any]:
        """The parameter object of OpenAPI 3."""
        schema = self.schema() | ({} if self.default in (None, ()) else {"default": self.default})
        described: dict[str, Any] = {"name": self.name, "in": "query", "description": self.description}
        described |= {"required": True} if self.required else {}
        described |= {"schema": schema}
        return described | ({} if self.example is None else {"example": self.example})


@dataclass(frozen=True, kw_only=True)
class ChoiceParameter(Parameter):
    """One of a closed set of words."""

    choices: Sequence[str]

    def parse(self, text: str) -> str:
        if text not in self.choices:
            raise Unusable(f"{echo(text)} is none of {', '.join(self.choices)}")
        return text

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "enum": list(self.choices)}


@dataclass(frozen=True, kw_only=True)
class Choices(ChoiceParameter):
    """Words of a closed set: sent several times, or with commas between them, they mean "any of these"."""

    default: Any = ()
    repeats: ClassVar[bool] = True

    def read(self, sent: Sequence[str]) -> tuple[str, ...]:
        """Each once, in the order of the set, so that the same question is always the same."""
        chosen = {self.parse(word) for text in sent for word in text.split(",")}
        return tuple(choice for choice in self.choices if choice in chosen)

    def schema(self) -> dict[str, Any]:
        return {"type": "array", "items": {"type": "string", "enum": list(self.choices)}}


@dataclass(frozen=True, kw_only=True)
class IdParameter(Parameter):
    """A UUID in its usual spelling."""

    def parse(self, text: str) -> UUID:
        if not re.match(UUID_PATTERN, text):
            raise Unusable(f"{echo(text)} is no id: it has 32 hexadecimal digits and four dashes")
        return UUID(text)

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "format": "uuid"}


@dataclass(frozen=True, kw_only=True)
class Slug(Parameter):
    """The short name of something in a project. One that nobody has finds nothing."""

    def parse(self, text: str) -> str:
        if not re.match(SLUG_PATTERN, text):
            raise Unusable(f"{echo(text)} is no name: it has lower-case letters, digits and dashes")
        return text

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "maxLength": 63}


@dataclass(frozen=True, kw_only=True)
class WholeParameter(Parameter):
    """A whole number in ASCII digits: no sign, no point, no underscore."""

    low: int = 0
    high: int = MAX_INTEGER

    def parse(self, text: str) -> int:
        number = int(text) if WHOLE.fullmatch(text) else -1
        if not self.low <= number <= self.high:
            raise Unusable(f"{self.name} must be a whole number from {self.low} to {self.high}, not {echo(text)}")
        return number

    def schema(self) -> dict[str, Any]:
        return {"type": "integer", "minimum": self.low, "maximum": self.high}


@dataclass(frozen=True, kw_only=True)
class Time(Parameter):
    """A moment as RFC 3339 writes it, with its zone."""

    def parse(self, text: str) -> datetime:
        # An unescaped plus arrives as a space; what was meant is not in doubt.
        given = re.sub(r" (?=[0-9]{2}:[0-9]{2}\Z)", "+", text, flags=re.ASCII)
        try:
            moment = parse_datetime(given.upper()) if TIME.fullmatch(given) else None
        except ValueError:  # the 30th of February
            moment = None
        if moment is None or moment.year in (1, 9999):  # there a zone leads out of the calendar
            raise Unusable(f"{echo(text)} is no time such as 2026-11-20T16:45:00Z")
        if abs(moment.utcoffset() or timedelta(0)) >= MAX_OFFSET:
            raise Unusable(f"{echo(text)} has a zone of sixteen hours or more: send the time in UTC, with Z")
        return moment.astimezone(UTC)

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "format": "date-time"}


@dataclass(frozen=True, kw_only=True)
class TextParameter(Parameter):
    """Any text up to a length, taken literally."""

    max_length: int = 200

    def parse(self, text: str) -> str:
        if not text:
            raise Unusable(f"{self.name} is empty: leave it out instead")
        if len(text) > self.max_length:
            raise Unusable(f"{self.name} has at most {self.max_length} characters, not {len(text):,}")
        # What no database holds as it is (NUL, lone surrogates) was replaced when it was stored, and is here.
        return BARE.clean_text(text)[0]

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "minLength": 1, "maxLength": self.max_length}


LIMIT = WholeParameter(
    name="limit",
    code="invalid_limit",
    description=f"Rows per page, at most {MAX_LIMIT} (default {DEFAULT_LIMIT}).",
    default=DEFAULT_LIMIT,
    low=1,
    high=MAX_LIMIT,
)


@dataclass(frozen=True)
class Query:
    """A query as it was understood: a value for each parameter that there is."""

    values: Mapping[str, Any] = field(default_factory=dict)
    #: As they were sent: what the links to other pages repeat.
    sent: Sequence[tuple[str, str]] = ()

    def __getitem__(self, name: str) -> Any:
        return self.values[name]


def parsed(sent: QueryDict, known: Iterable[Parameter]) -> Query:
    """All that was sent, checked. Raises InvalidParameters with every fault that there is."""
    parameters = {parameter.name: parameter for parameter in known}
    values = {name: parameter.default for name, parameter in parameters.items()}
    if not sent:
        faults = [_missing(parameter) for parameter in parameters.values() if parameter.required]
        if faults:
            raise InvalidParameters(faults)
        return Query(values)
    faults = []
    for name, texts in sent.lists():
        parameter = parameters.get(name)
        if parameter is None:
            text = f"there is no parameter {echo(name)} here; known are {', '.join(parameters) or 'none'}"
            faults.append(Fault(f"?{name[:64]}", "unknown_parameter", text))
            continue
        try:
            values[name] = parameter.read(texts)
        except Unusable as reason:
            faults.append(Fault(f"?{name}", parameter.code, str(reason)))
    faults += [_missing(one) for one in parameters.values() if one.required and one.name not in sent]
    if faults:
        raise InvalidParameters(faults[:MAX_FAULTS])
    return Query(values, [(name, text) for name, texts in sent.lists() for text in texts])


def _missing(parameter: Parameter) -> Fault:
    return Fault(f"?{parameter.name}", parameter.code, f"{parameter.name} is required")


SECRETS = ChoiceParameter(
    name="secrets",
    choices=["show"],
    description="`show` returns what is otherwise masked as `[REDACTED:…]`. For admins and keys with the scope "
    "`secrets`; each use is audited.",
)
