"""Template tags and filters of all pages: times and numbers, texts with code, and whether the user manages the project.

static/js/time.js updates the times in the browser.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from django import template
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from agentops.accounts.access import Action, may
from agentops.accounts.requests import principal_of
from agentops.base import database_clock
from timeline import display

register = template.Library()
_BOX = '<pre class="payload" hx-disable><bdi>{}</bdi></pre>'
_SCROLLING_BOX = '<pre class="payload" tabindex="0" hx-disable><bdi>{}</bdi></pre>'


@register.simple_tag
def clock(at: datetime | None) -> str | SafeString:
    """Render a time of day, in UTC; the page's script converts it to the selected zone."""
    return _time(at, "%H:%M:%S")


@register.simple_tag
def day(at: datetime | None) -> str | SafeString:
    """Render a date and time, in UTC; the page's script converts it to the selected zone."""
    return _time(at, "%Y-%m-%d %H:%M:%S")


@register.simple_tag
def moment_after(at: datetime, start: datetime) -> str | SafeString:
    """Render a time of day, in UTC, with its date if that is not the date of `start`."""
    return clock(at) if at.astimezone(UTC).date() == start.astimezone(UTC).date() else day(at)


def _time(at: datetime | None, shape: str) -> str | SafeString:
    if at is None:
        return "–"
    at = at.astimezone(UTC)
    html = '<time datetime="{}" class="time" data-time>{}</time>'
    return format_html(html, at.isoformat(timespec="milliseconds"), at.strftime(shape))


@register.simple_tag
def tick(since: datetime, until: datetime | None = None) -> str | SafeString:
    """Render the time since `since`, counting up; or, in a replay, the fixed time up to its position `until`."""
    elapsed = display.format_duration(database_clock.seconds_between(since, until or database_clock.now()))
    if until is not None:
        return elapsed
    return format_html('<span class="tick" data-since="{}">{}</span>', since.isoformat(), elapsed)


@register.simple_tag
def countdown(until: datetime) -> SafeString:
    """Render the time until `until`, counting down."""
    left_s = math.ceil((until - database_clock.now()).total_seconds())
    text = f"in {display.format_duration(left_s)}" if left_s > 0 else "now"
    return format_html('<span class="tick" data-until="{}">{}</span>', until.isoformat(), text)


@register.simple_tag
def payload_box(text: Any) -> str | SafeString:
    """Render a text in a box; nothing without a text. A box that may scroll is reachable by keyboard."""
    if not text:
        return ""
    box = _SCROLLING_BOX if display.may_scroll(str(text)) else _BOX
    return format_html(box, text)


@register.filter
def format_ms(ms: Any) -> str:
    """Format a duration in milliseconds; empty without one."""
    return display.format_ms(ms) if isinstance(ms, int | float) else ""


@register.filter
def format_duration(seconds: Any) -> str:
    """Format a duration in seconds; empty without one."""
    return display.format_duration(seconds) if isinstance(seconds, int | float) else ""


@register.filter
def format_elapsed(seconds: Any) -> str:
    """Format a final duration in seconds; empty without one."""
    return display.format_elapsed(seconds) if isinstance(seconds, int | float) else ""


@register.filter
def thousands(number: Any) -> str:
    """Format an integer with thousands separators; empty without one."""
    return f"{number:,}" if isinstance(number, int) else ""


@register.filter
def usage(end: Mapping[str, Any]) -> str:
    """Format all token counts of an `llm.turn.end` payload."""
    kinds = ("input", "output", "cache_read", "cache_write", "reasoning")
    sent, received, read, written, reasoning = (thousands(end.get(f"{kind}_tokens")) for kind in kinds)
    cache = f"{read} read from the cache, {written} written to the cache"
    return f"{sent} input tokens, {received} output tokens; {cache}; {reasoning} reasoning tokens"


@register.simple_tag(takes_context=True)
def manages(context: template.Context) -> bool:
    """Return whether the user manages the page's project. Takes a query unless the context has `may_manage`."""
    known = context.get("may_manage")
    return may(principal_of(context["request"]), Action.MANAGE, context["project"].pk) if known is None else bool(known)


@register.filter
def with_code(text: str) -> SafeString:
    """Return a text as HTML, with the parts between backticks as code."""
    parts = enumerate(str(text).split("`"))
    return format_html_join(
        "", "{}", ((format_html("<code><bdi>{}</bdi></code>", part) if at % 2 else part,) for at, part in parts)
    )
