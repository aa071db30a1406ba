"""How the templates of a timeline write times and numbers; static/js/time.js goes on from there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from django import template
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from timeline import shown

register = template.Library()


@register.simple_tag
def clock(at: datetime | None) -> str | SafeString:
    """A moment by its time of day, in UTC until the page's script knows better."""
    return _time(at, "%H:%M:%S")


@register.simple_tag
def day(at: datetime | None) -> str | SafeString:
    """A moment with its day."""
    return _time(at, "%Y-%m-%d %H:%M:%S")


def _time(at: datetime | None, shape: str) -> str | SafeString:
    if at is None:
        return "–"
    at = at.astimezone(UTC)
    html = '<time datetime="{}" class="time" data-time>{}</time>'
    return format_html(html, at.isoformat(timespec="milliseconds"), at.strftime(shape))


@register.simple_tag
def tick(since: datetime) -> SafeString:
    """How long ago something began, counting up."""
    seconds = (timezone.now() - since).total_seconds()
    return format_html('<span class="tick" data-since="{}">{}</span>', since.isoformat(), shown.lasting(seconds))


@register.simple_tag
def countdown(until: datetime) -> SafeString:
    """How long until something comes, counting down."""
    left = math.ceil((until - timezone.now()).total_seconds())
    text = f"in {shown.lasting(left)}" if left > 0 else "now"
    return format_html('<span class="tick" data-until="{}">{}</span>', until.isoformat(), text)


@register.filter
def took(ms: Any) -> str:
    """Milliseconds in words; nothing where nobody measured."""
    return shown.took(ms) if isinstance(ms, int | float) else ""


@register.filter
def lasting(seconds: Any) -> str:
    return shown.lasting(seconds) if isinstance(seconds, int | float) else ""


@register.filter
def thousands(number: Any) -> str:
    return f"{number:,}" if isinstance(number, int) else ""


@register.filter
def usage(end: Mapping[str, Any]) -> str:
    """All the tokens of a model call, as the event of its end counts them."""
    kinds = ("input", "output", "cache_read", "cache_write", "reasoning")
    sent, said, read, written, thought = (thousands(end.get(f"{kind}_tokens")) for kind in kinds)
    cache = f"{read} read from the cache, {written} written to it"
    return f"{sent} tokens in, {said} out; {cache}, {thought} for reasoning"
