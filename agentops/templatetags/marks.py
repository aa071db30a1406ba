"""The small marks of every page, in every template without a load: an icon, a status.

A page shows hundreds of a few dozen: each is rendered once for a process.
"""

from __future__ import annotations

from functools import lru_cache

from django import template
from django.template.loader import render_to_string
from django.utils.safestring import SafeString

register = template.Library()


@register.simple_tag
@lru_cache(maxsize=256)
def icon(name: str) -> SafeString:
    """One of static/icons.svg, by its name there."""
    return render_to_string("_icon.html", {"name": name})


@register.simple_tag
@lru_cache(maxsize=256)
def status(word: str, label: str = "") -> SafeString:
    """The status of a run or a tool call as colour, icon and word; `label`: other words for it."""
    return render_to_string("_status.html", {"status": word, "label": label})
