"""Conversion of a tool's return value to text, with limits for storing it and for sending it to the model."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections import deque
from collections.abc import Iterator, Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any
from uuid import UUID

from pydantic import BaseModel
from pydantic import JsonValue as JSON

Output = str | list[JSON]

#: Maximum characters of a text that the model gets, unless the caller sets another limit.
MODEL_LIMIT = 8_000
#: Maximum characters of a stored text. A longer one is cut, with a note of its full length and hash.
MAX_OUTPUT = 16 * 1024 * 1024
#: Maximum characters of an error message.
MAX_MESSAGE = 2_000

# Types whose str() is their value. The str() of other types may only be a memory address.
_WITH_STR = (Decimal, UUID, PurePath, timedelta)


class _NoText(Exception):
    """The value has no text form."""


def as_output(value: object) -> tuple[str, bool]:
    """Return the value as text, and True. If it has no text form, return a note about it, and False."""
    try:
        return _limit_text(_text(value)), True
    except _NoText as error:
        return f"[the tool returned {error}]", False
    except Exception as error:
        # A property, __str__ or model_dump of the value raised. The tool itself succeeded.
        return f"[the tool returned {_kind(value)} that cannot be read: {type(error).__name__}]", False


def shorten_for_model(output: Output, limit: int | None = MODEL_LIMIT) -> tuple[Output, bool]:
    """Return the output for the model, and whether it was shortened. `limit` applies to each text of a list."""
    if limit is None:
        return output, False
    if isinstance(output, str):
        return _shorten(output, limit)
    items = [_shorten(item, limit) if isinstance(item, str) else (item, False) for item in output]
    return [item for item, _ in items], any(cut for _, cut in items)


def limit_size(output: Output) -> Output:
    """Return the output with each text limited to `MAX_OUTPUT`."""
    if isinstance(output, str):
        return _limit_text(output)
    return [_limit_text(item) if isinstance(item, str) else item for item in output]


def clip(text: str, limit: int) -> str:
    """Return the text, shortened to `limit` characters with an ellipsis at the end."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _shorten(text: str, limit: int) -> tuple[str, bool]:
    if len(text) <= limit:
        return text, False
    # Do not separate a surrogate pair.
    cuts_pair = limit and "\ud800" <= text[limit - 1] <= "\udbff" and "\udc00" <= text[limit] <= "\udfff"
    end = limit - 1 if cuts_pair else limit
    return f"{text[:end]}\n… [cut: {end} of {len(text)} characters shown]", True


def _limit_text(text: str) -> str:
    if len(text) <= MAX_OUTPUT:
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{text[:MAX_OUTPUT]}\n… [cut: {MAX_OUTPUT} of {len(text)} characters kept, sha256 {digest}]"


def _text(value: object) -> str:
    """Return the text form of a value. Raises `_NoText`."""
    if isinstance(value, str):
        return str.__str__(value)  # a subclass may have another __str__
    if isinstance(value, bytes | bytearray | memoryview):
        return _decode(bytes(value))
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, _WITH_STR):
        return str(value)
    return _json(value)


def _decode(data: bytes) -> str:
    text = data.decode(errors="replace")
    if not is_text(text):
        return f"[{len(data)} bytes that are not text, sha256 {hashlib.sha256(data).hexdigest()}]"
    return text


def is_text(decoded: str) -> bool:
    """Return whether decoded bytes are text: no NUL, and at most 10 % replacement characters."""
    return "\0" not in decoded and decoded.count("\ufffd") * 10 <= len(decoded)


def _json(value: object) -> str:
    try:
        try:
            return _ENCODER.encode(value)
        except ValueError:
            # NaN and Infinity are not JSON: they become strings.
            return _ENCODER.encode(json.loads(_LOOSE_ENCODER.encode(value), parse_constant=str))
    except (TypeError, ValueError, RecursionError) as error:
        raise _NoText(f"{_kind(value)} without a JSON form: {clip(str(error), 200)}") from error


def _plain(value: Any) -> object:
    """Convert a value for the JSON encoder. Raises `_NoText`, also for iterators, which may be infinite."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, set | frozenset):
        return sorted(value, key=str)
    if isinstance(value, deque):
        return list(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (bytes, bytearray, memoryview, date, time, *_WITH_STR)):
        return _text(value)
    if isinstance(value, Iterator):
        raise _NoText(f"{_kind(value)}; a tool has to return its values, not an iterator over them")
    raise _NoText(f"{_kind(value)}, which has no text form")


def _kind(value: object) -> str:
    return f"a value of type {type(value).__name__!r}"


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=_plain)
_LOOSE_ENCODER = json.JSONEncoder(ensure_ascii=False, default=_plain)
