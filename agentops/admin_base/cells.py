"""What a cell of a list, or a line of an object's page, shows: legible, without secrets, cut to its room."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from django.contrib import admin
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from agentops.projects.management.base import printable
from agentops.templatetags import marks
from timeline.shown import clean, clip, pretty

#: Of one text on a page; who wants more follows the link to the site's own page of it.
MAX_PAYLOAD = 64 * 1024
MAX_LINE = 120
NOTHING = "–"
#: What an API key is called (see agentops.projects.keys), by itself or as who did something: no secret, though the
#: redactor takes anything that begins so for a whole key.
KEY_NAME = re.compile(r"(?:key:)?aok_(?:live|test)_[0-9A-Za-z]{12}")
#: Of an id in a list: the beginning finds it again, and says when it was made.
SHORT = 13

Cell = Callable[[Any], Any]


def line(text: object, limit: int = MAX_LINE) -> str:
    """As text of one line: nothing in it steers, hides or reorders what stands around it."""
    given = str(text if text is not None else "")
    if KEY_NAME.fullmatch(given):
        return given
    shown = printable(clean(given[: limit * 8])).strip()
    return shown if len(shown) <= limit else f"{shown[: limit - 1]}…"


def bdi(text: object, limit: int = MAX_LINE) -> SafeString | str:
    shown = line(text, limit)
    return format_html("<bdi>{}</bdi>", shown) if shown else NOTHING


def words(name: str, title: str = "", *, limit: int = MAX_LINE) -> Cell:
    """A text of somebody else's making, on one line."""
    return _cell(name, title, lambda row: bdi(_of(row, name), limit))


def plain(name: str, title: str = "") -> Cell:
    """A number, or a word of our own."""

    def shown(row: Any) -> object:
        value = _of(row, name)
        return NOTHING if value is None or value == "" else str(value).replace("_", " ")

    return _cell(name, title, shown)


def status(name: str = "status", reason: str = "") -> Cell:
    """A status in its colour, with the reason that was given for it."""

    def shown(row: Any) -> SafeString:
        word, why = str(_of(row, name)), str(_of(row, reason) or "") if reason else ""
        badge = marks.status(word)
        return format_html("{} <small>{}</small>", badge, why.replace("_", " ")) if why else badge

    return _cell(name, "", shown)


def moment(name: str, title: str = "") -> Cell:
    return _cell(name, title, lambda row: time(_of(row, name)))


def time(value: datetime | None) -> SafeString | str:
    if value is None:
        return NOTHING
    at = value.astimezone(UTC)
    return format_html('<time datetime="{}">{}</time>', at.isoformat(), f"{at:%Y-%m-%d %H:%M:%S}")


def yes(name: str, title: str = "") -> Cell:
    """Said only where it is so."""
    return _cell(name, title, lambda row: "yes" if _of(row, name) else NOTHING)


def link(name: str, page: str, title: str = "", *, text: str = "", short: bool = False) -> Cell:
    """To the administration page of what `name` holds the id of; `text` names what is shown instead of the id."""

    def shown(row: Any) -> SafeString | str:
        key = _of(row, name)
        if key is None:
            return NOTHING
        label = line(_of(row, text)) if text else str(key)
        if short:
            url = reverse(f"admin:{page}_change", args=[key])
            return format_html('<a href="{}" title="{}"><code>{}</code></a>', url, key, label[:SHORT])
        return to(reverse(f"admin:{page}_change", args=[key]), label or NOTHING)

    return _cell(name, title, shown)


def to(url: str, label: str) -> SafeString:
    return format_html('<a href="{}"><bdi>{}</bdi></a>', url, label)


def payload(name: str, title: str = "", *, whole: Callable[[Any], str] | None = None) -> Cell:
    """All of a text or a JSON value, or its beginning; `whole` gives the address of the site's page of it."""

    def shown(row: Any) -> SafeString | str:
        value = _of(row, name)
        if value is None or value == "":
            return NOTHING
        cut = clip(pretty(value), MAX_PAYLOAD)
        text = format_html('<pre class="payload" tabindex="0"><bdi>{}</bdi></pre>', cut.text)
        if not cut.whole:
            return text
        note = format_html("<small>The first {} of {} bytes.</small>", MAX_PAYLOAD, cut.whole)
        more = format_html(' <a href="{}">All of it</a>', whole(row)) if whole else ""
        return format_html("{}{}{}", text, note, more)

    return _cell(name, title, shown)


def cost(name: str = "cost_usd", source: str = "") -> Cell:
    """In dollars, to the last digit that is known."""

    def shown(row: Any) -> str:
        value = _of(row, name)
        if value is None:
            return NOTHING
        return f"${value.normalize():f}" + (f" ({_of(row, source)})" if source else "")

    return _cell("cost", "cost", shown)


def made(name: str, title: str, shown: Callable[[Any], Any]) -> Cell:
    """A cell that says something of the row as a whole."""
    return _cell(name, title, shown)


def _cell(name: str, title: str, shown: Callable[[Any], Any]) -> Cell:
    def cell(row: Any) -> Any:
        return shown(row)

    cell.__name__ = name.replace("__", "_")
    described = admin.display(description=title or name.removesuffix("_id").replace("_", " "))
    return described(cell)


def _of(row: Any, name: str) -> Any:
    """`message__position` is the position of the row's message."""
    for step in name.split("__"):
        row = getattr(row, step, None)
    return row
