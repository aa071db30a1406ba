"""The only code that turns text into HTML without a template. All HTML passes an allowlist of elements."""

from __future__ import annotations

import nh3
from django.utils.safestring import SafeString, mark_safe

#: Classes of coloured code, see code_colours.py, and of terminal output, see terminal_text.py.
CODE_CLASSES = frozenset({"hl-k", "hl-s", "hl-n", "hl-c", "hl-f", "hl-t", "hl-i", "hl-d", "hl-l"})
TERMINAL_CLASSES = frozenset(
    {"tty-bold", "tty-faint", "tty-italic", "tty-under", "tty-struck", "tty-on"}
    | {f"tty-{colour}" for colour in ("grey", "red", "green", "amber", "blue", "violet", "teal")}
)
REL = "noopener noreferrer nofollow ugc"
SCHEMES = frozenset({"http", "https", "mailto"})

_CLEANER = nh3.Cleaner(
    tags={
        *("p", "h3", "h4", "h5", "h6", "ul", "ol", "li", "blockquote", "pre", "code", "em", "strong", "s", "a", "hr"),
        *("br", "table", "thead", "tbody", "tr", "th", "td", "div", "span", "details", "summary", "bdi"),
    },
    clean_content_tags=set(),
    attributes={"a": {"href"}, "ol": {"start"}, "details": {"open"}},
    allowed_classes={
        "span": {*CODE_CLASSES, *TERMINAL_CLASSES, "host"},
        "div": {"table-scroll"},
        "pre": {"code-block"},
        "th": {"align-center", "align-right"},
        "td": {"align-center", "align-right"},
        "ul": {"json"},
        "li": {"json-more"},
    },
    # `tabindex`: a scrolling box must be reachable by keyboard.
    tag_attribute_values={"div": {"tabindex": {"0"}}, "pre": {"tabindex": {"0"}}, "a": {"target": {"_blank"}}},
    url_schemes=set(SCHEMES),
    link_rel=REL,
    strip_comments=True,
)


def sanitised(html: str) -> SafeString:
    """Return `html` reduced to the elements, attributes and classes of this site; other elements lose their tags."""
    return mark_safe(_CLEANER.clean(html))  # noqa: S308 - cleaned by the allowlist above
