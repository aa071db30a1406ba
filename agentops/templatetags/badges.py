"""Template tags for icons and status badges, available in all templates without {% load %}.

The results are cached per process, because a page contains hundreds of them, with few different values.
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
    """Render an icon of static/icons.svg."""
    return format_html(_ICON, name, static("icons.svg"))


@register.simple_tag
@lru_cache(maxsize=256)
def status(word: str, label: str = "") -> SafeString:
    """Render a status with its colour and icon. The text is `label`, or the status itself."""
    return format_html('<span class="status status-{}">{}<span>{}</span></span>', word, icon(word), label or word)
