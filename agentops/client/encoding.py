"""Encodes events as JSON texts that a site accepts, whatever values a program puts into them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, TypeVar

T = TypeVar("T")

#: Maximum bytes of an event. A site accepts 256 KiB.
MAX_EVENT_BYTES = 240 * 1024
#: Maximum characters of a text. A site accepts 200,000.
MAX_TEXT = 190_000
#: Maximum nesting of values. A site accepts slightly more.
MAX_DEPTH = 40
#: Maximum values of an event. A site accepts 50,000 in a request.
MAX_VALUES = 45_000
#: Maximum members of an object.
MAX_KEYS = 1_000
#: Maximum characters of a member's name. A site accepts 256.
MAX_KEY = 190
#: Maximum characters of a text in a too large event, tried in this order until the event is small enough.
_CUTS = (50_000, 10_000, 2_000, 400, 80)
#: Number of items that a list or an object of a too large event keeps.
_FEWER_ITEMS = 100
#: The number of outer objects that keep all their fields: the event and its payload.
_LEVELS_OF_FIELDS = 2
#: A site accepts integers between the negative of this and this.
_MAX_INTEGER = 2**63 - 1


def encode(event: Mapping[str, Any]) -> str:
    """Return an event as ASCII JSON, with long texts truncated so that it fits.

    Values that JSON does not support become texts. Raises `ValueError` if the event cannot be made to fit.
    """
    text = _dumps(event, _Copy(MAX_TEXT))
    if len(text) <= MAX_EVENT_BYTES:
        return text
    for cut in _CUTS:
        text = _dumps(event, _Copy(cut, _FEWER_ITEMS))
        if len(text) <= MAX_EVENT_BYTES:
            return text
    raise ValueError(f"the event has {len(text)} bytes, with all its texts cut")


def _dumps(event: Mapping[str, Any], copy: _Copy) -> str:
    return json.dumps(copy.of(event), separators=(",", ":"), allow_nan=False)


class _Copy:
    """Copies one event into values of JSON, and omits everything beyond the limits of a site.

    Texts are truncated to about `cut` characters. Lists and objects keep their first `items`.
    """

    def __init__(self, cut: int, items: int = MAX_VALUES) -> None:
        self._cut = cut
        self._items = items
        self._values_left = MAX_VALUES
        #: The IDs of the containers around the value, to detect cycles.
        self._around: list[int] = []

    def of(self, value: Any) -> Any:
        """Return the copy of a value. The name of its type replaces a value for which there is no room."""
        self._values_left -= 1
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return _shortened(value, self._cut)
        if isinstance(value, int) and abs(value) <= _MAX_INTEGER:
            return int(value)
        if isinstance(value, float) and math.isfinite(value):
            return float(value)
        if len(self._around) >= MAX_DEPTH or id(value) in self._around or self._values_left <= 0:
            return f"<{type(value).__name__}>"
        self._around.append(id(value))
        try:
            return self._container(value)
        finally:
            self._around.pop()

    def _container(self, value: Any) -> Any:
        """Return the copy of a container, or of a value that JSON does not support."""
        if isinstance(value, Mapping):
            pairs = self._first(value.items(), min(self._items, MAX_KEYS))
            return {_shortened(_text(key), min(self._cut, MAX_KEY)): self.of(inner) for key, inner in pairs}
        if isinstance(value, list | tuple | set | frozenset):
            return [self.of(inner) for inner in self._first(value, self._items)]
        if callable(dump := getattr(type(value), "model_dump", None)):
            return self.of(dump(value, mode="json"))
        return _shortened(_text(value), self._cut)

    def _first(self, items: Iterable[T], count: int) -> Iterator[T]:
        """Yield up to `count` items while there is room. An event and its payload keep all their fields."""
        for item in islice(items, count):
            if self._values_left <= 0 and len(self._around) > _LEVELS_OF_FIELDS:
                return
            yield item


def _text(value: Any) -> str:
    try:
        return value if isinstance(value, str) else str(value)
    except Exception:
        # An object that cannot be converted must not cause an error in the recorded program.
        return f"<{type(value).__name__}>"


def _shortened(text: str, limit: int) -> str:
    """Return a text of about `limit` characters: its beginning, a note of the omission, and its end."""
    if len(text) <= limit:
        # `str(text)` would return the name of a member of an Enum, not its value.
        return str.__str__(text)
    head, tail = limit * 3 // 4, limit // 4
    return f"{text[:head]} … [{len(text) - head - tail} characters left out] … {text[-tail:]}"
