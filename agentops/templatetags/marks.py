"""The small marks of every page, in every template without a load: an icon, a status.

A page shows hundreds of a few dozen: each is made once for a process.
"""

from __future__ import annotations

from functools import lru_cache

from django import template
from django.templatetags.static import static
from django.utils.html import format_html
from django.utils.safestring import SafeString

register = template.Library()

_ICON = '<svg class="icon icon-{0}" width="16" height="16" aria-hidden="true"><use href="{1}#{0}"></use></svg>'


@register.simple_tag
@lru_cache(maxsize=256)
def icon(name: str) -> SafeString:
    """One of static/icons.svg, by its name there."""
    return format_html(_ICON, name, static("icons.svg"))


@register.simple_tag
@lru_cache(maxsize=256)
def status(word: str, label: str = "") -> SafeString:
    """The status of a run or a tool call as colour, icon and word; `label`: other words for it."""
    return format_html('<span class="status status-{}">{}<span>{}</span></span>', word, icon(word), label or word)
