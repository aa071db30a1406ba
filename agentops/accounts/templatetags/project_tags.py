"""Template tags of all pages: whether the user manages the project, and texts with code."""

from __future__ import annotations

from django import template
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from agentops.accounts.access import Action, may
from agentops.accounts.requests import principal_of

register = template.Library()


@register.simple_tag(takes_context=True)
def manages(context: template.Context) -> bool:
    """Return whether the user manages the page's project: `may_manage` of the page, or one query without it."""
    known = context.get("may_manage")
    return may(principal_of(context["request"]), Action.MANAGE, context["project"].pk) if known is None else bool(known)


@register.filter
def with_code(text: str) -> SafeString:
    """Return a text as HTML, with the parts between backticks as code."""
    parts = enumerate(str(text).split("`"))
    return format_html_join(
        "", "{}", ((format_html("<code><bdi>{}</bdi></code>", part) if at % 2 else part,) for at, part in parts)
    )
