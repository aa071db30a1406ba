"""Cells of change lists and read-only fields: legible, redacted and truncated."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from django.contrib import admin
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from agentops.accounts.management.base import printable
from agentops.templatetags import badges
from timeline.display import clean, clip, format_json
from timeline.reasons import reason_label

#: Maximum bytes of a text; the site's page of the payload displays all of it.
MAX_PAYLOAD = 64 * 1024
MAX_LINE = 120
NOTHING = "–"
#: The prefix of an API key (see agentops.accounts.keys), alone or as an actor. It is not secret, but the redactor would
#: mask it like a full key.
KEY_NAME = re.compile(r"(?:key:)?aok_(?:live|test)_[0-9A-Za-z]{12}")
#: Number of characters of a shortened ID; this prefix includes the creation time and can be searched for.
SHORT = 13

Cell = Callable[[Any], Any]


def line(text: object, limit: int = MAX_LINE) -> str:
    """Return `text` as a single line of at most `limit` characters, legible and redacted."""
    value = str(text if text is not None else "")
    if KEY_NAME.fullmatch(value):
        return value
    cleaned = printable(clean(value[: limit * 8])).strip()
    return cleaned if len(cleaned) <= limit else f"{cleaned[: limit - 1]}…"


def bdi(text: object, limit: int = MAX_LINE) -> SafeString | str:
    """Return `line(text)` in a <bdi> element, or a dash if it is empty."""
    value = line(text, limit)
    return format_html("<bdi>{}</bdi>", value) if value else NOTHING


def words(name: str, title: str = "", *, limit: int = MAX_LINE) -> Cell:
    """An untrusted text, on one line."""
    return _cell(name, title, lambda row: bdi(_of(row, name), limit))


def reason(name: str, title: str = "") -> Cell:
    """A reason code as a phrase."""
    return _cell(name, title, lambda row: bdi(reason_label(str(_of(row, name) or ""))))


def plain(name: str, title: str = "") -> Cell:
    """A number or a trusted identifier."""

    def render(row: Any) -> object:
        value = _of(row, name)
        return NOTHING if value is None or value == "" else str(value).replace("_", " ")

    return _cell(name, title, render)


def status(name: str = "status", reason: str = "") -> Cell:
    """A coloured status with its reason."""

    def render(row: Any) -> SafeString:
        word, why = str(_of(row, name)), str(_of(row, reason) or "") if reason else ""
        badge = badges.status(word)
        return format_html("{} <small>{}</small>", badge, reason_label(why)) if why else badge

    return _cell(name, "", render)


def moment(name: str, title: str = "") -> Cell:
    """A time in UTC."""
    return _cell(name, title, lambda row: time(_of(row, name)))


def time(value: datetime | None) -> SafeString | str:
    """Return a time in UTC as HTML, or a dash for None."""
    if value is None:
        return NOTHING
    at = value.astimezone(UTC)
    return format_html('<time datetime="{}">{}</time>', at.isoformat(), f"{at:%Y-%m-%d %H:%M:%S} UTC")


def yes(name: str, title: str = "") -> Cell:
    """ "yes" for a true value, otherwise a dash."""
    return _cell(name, title, lambda row: "yes" if _of(row, name) else NOTHING)


def link(name: str, page: str, title: str = "", *, text: str = "", short: bool = False) -> Cell:
    """A link to the administration page of a foreign key. `text` is the attribute to display instead of the ID."""

    def render(row: Any) -> SafeString | str:
        key = _of(row, name)
        if key is None:
            return NOTHING
        label = line(_of(row, text)) if text else str(key)
        if short:
            url = reverse(f"admin:{page}_change", args=[key])
            return format_html('<a href="{}" title="{}"><code>{}</code></a>', url, key, label[:SHORT])
        return to(reverse(f"admin:{page}_change", args=[key]), label or NOTHING)

    return _cell(name, title, render)


def to(url: str, label: str) -> SafeString:
    """Return a link as HTML."""
    return format_html('<a href="{}"><bdi>{}</bdi></a>', url, label)


def payload(name: str, title: str = "", *, whole: Callable[[Any], str] | None = None) -> Cell:
    """A text or a JSON value, truncated to MAX_PAYLOAD. `whole` returns the URL of the full payload."""

    def render(row: Any) -> SafeString | str:
        value = _of(row, name)
        if value is None or value == "":
            return NOTHING
        clipped = clip(format_json(value), MAX_PAYLOAD)
        text = format_html('<pre class="payload" tabindex="0"><bdi>{}</bdi></pre>', clipped.text)
        if not clipped.whole:
            return text
        note = format_html("<small>Showing the first {} of {} bytes.</small>", MAX_PAYLOAD, clipped.whole)
        more = format_html(' <a href="{}">Show all</a>', whole(row)) if whole else ""
        return format_html("{}{}{}", text, note, more)

    return _cell(name, title, render)


def cost(name: str = "cost_usd", source: str = "", unpriced: str = "") -> Cell:
    """A cost in dollars, with all known digits. `unpriced`: the column with the number of calls of unknown cost."""

    def render(row: Any) -> str:
        value = _of(row, name)
        if value is None:
            return NOTHING
        text = f"${value.normalize():f}" + (f" ({_of(row, source)})" if source else "")
        count = _of(row, unpriced) if unpriced else 0
        return f"at least {text}, {count:,} call{'' if count == 1 else 's'} unpriced" if count else text

    return _cell("cost", "cost", render)


def computed(name: str, title: str, render: Callable[[Any], Any]) -> Cell:
    """A value computed from the row."""
    return _cell(name, title, render)


def _cell(name: str, title: str, render: Callable[[Any], Any]) -> Cell:
    def cell(row: Any) -> Any:
        return render(row)

    cell.__name__ = name.replace("__", "_")
    display = admin.display(description=title or name.removesuffix("_id").replace("_", " "))
    return display(cell)


def _of(row: Any, name: str) -> Any:
    """Return an attribute of the row; double underscores follow relations, as in `message__position`."""
    for step in name.split("__"):
        row = getattr(row, step, None)
    return row
