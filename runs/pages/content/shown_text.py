"""Choose the form of a text: Markdown, a diff, code, terminal output, JSON, or plain text.

`templates/timeline/_content.html` renders the result, in cards and on the pages of payloads. JSON becomes nested lists
that open and close without scripts; their depth, width and size are bounded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

from django.utils.safestring import SafeString

from runs.pages.content.code_colours import MAX_COLOURED, coloured, coloured_file
from runs.pages.content.differences import TextDifference, is_patch, patch_difference
from runs.pages.content.markdown_text import TOO_MUCH_MARKDOWN, markdown_html, why_not_markdown
from runs.pages.content.markup import sanitised
from runs.pages.content.terminal_text import MAX_SPANS, TextSpan, terminal_html
from timeline.display import Clip, clean, make_legible, may_scroll


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownText:
    """A text in its display form. Exactly one field of `html`, `difference` and `text` is set."""

    title: str = ""
    html: SafeString | None = None
    difference: TextDifference | None = None
    text: str = ""
    #: "text" for prose, "payload" for machine-readable text, "tree" for collapsible JSON.
    kind: str = "payload"
    #: Why the text, or a part of it, is plain although a reader may expect formatting; empty otherwise.
    note: str = ""
    #: Size of the full text in bytes if the text is cut, otherwise 0.
    whole: int = 0

    @property
    def is_long(self) -> bool:
        """Return whether the box of the text scrolls, and must therefore be reachable by keyboard."""
        return may_scroll(self.text or self.html or "")


def show_markdown(clip: Clip) -> ShownText:
    """Return a text of a person or a model, rendered as Markdown if its size permits it."""
    if why := why_not_markdown(clip.text):
        return replace(show_plain(clip), note=f"Shown as plain text, without Markdown: {why}.")
    html, is_complete = markdown_html(clip.text)
    note = "" if is_complete else f"Parts are shown as plain text, without Markdown: {TOO_MUCH_MARKDOWN}."
    return ShownText(html=html, kind="text", note=note, whole=clip.whole)


def show_plain(clip: Clip) -> ShownText:
    """Return a text of a person or a model without formatting."""
    return ShownText(text=clip.text, kind="text", whole=clip.whole)


def show_json(clip: Clip) -> ShownText:
    """Return JSON, which may be cut, as coloured text."""
    return ShownText(html=sanitised(coloured(clip.text, "json")), note=_colour_note(clip), whole=clip.whole)


def show_tree(clip: Clip, *, secrets: bool = False) -> ShownText | None:
    """Return JSON as a tree; None if it is cut, or if it is not an object or list."""
    tree = None if clip.whole else json_tree(clip.text, make_legible if secrets else clean)
    return None if tree is None else ShownText(html=tree, kind="tree")


def show_file(clip: Clip, language: str) -> ShownText:
    """Return the content of a file, coloured if its language is known."""
    if not language:
        return ShownText(text=clip.text, whole=clip.whole)
    html = sanitised(coloured_file(clip.text, language))
    return ShownText(html=html, note=_colour_note(clip), whole=clip.whole)


def show_output(clip: Clip, colours: Sequence[TextSpan] = (), language: str = "") -> ShownText:
    """Return the output of a tool. `language` is the language of the file that the tool read, if any."""
    if colours:
        # The rest of the text may have colours too.
        is_cut = len(colours) >= MAX_SPANS and colours[-1].end < len(clip.text)
        note = f"Shown without colours after the first {MAX_SPANS:,} coloured parts." if is_cut else ""
        return ShownText(html=terminal_html(clip.text, colours), note=note, whole=clip.whole)
    if is_patch(clip.text):
        return ShownText(difference=patch_difference("", clip.text), whole=clip.whole)
    if language:
        return show_file(clip, language)
    if clip.text[:1] in ("{", "["):
        return show_json(clip)
    return ShownText(text=clip.text, whole=clip.whole)


def _colour_note(clip: Clip) -> str:
    """Return why a code has no colours; empty if it has."""
    if len(clip.text) <= MAX_COLOURED:
        return ""
    return f"Shown without colours: it is longer than {MAX_COLOURED:,} characters."


#: Maximum levels that can be opened, members of a list or object, and values in total. The rest is shown as text or a
#: count.
MAX_DEPTH, MAX_WIDTH, MAX_VALUES = 24, 400, 8000
#: Levels that are open at first, and the maximum members of an open list or object.
_OPEN_DEPTH, _OPEN_WIDTH = 2, 24


def json_tree(text: str, clean: Callable[[str], str]) -> SafeString | None:
    """Return the JSON of `text` as a tree; None if it is not an object or list.

    `clean` prepares each string for display: JSON escapes may hide text that a check of the whole text would miss.
    """
    if text[:1] not in ("{", "["):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return sanitised("".join(_Tree(clean).container(value, 0)))


class _Tree:
    """Renders a JSON value as nested lists, up to MAX_VALUES values. The classes `hl-…` are those of coloured code."""

    def __init__(self, clean: Callable[[str], str]) -> None:
        self._clean = clean
        self._left = MAX_VALUES

    def container(self, value: dict[str, Any] | list[Any], depth: int) -> Iterator[str]:
        """Yield the HTML of an object or list at a depth, from 0."""
        yield '<ul class="json">'
        members = value.items() if isinstance(value, dict) else enumerate(value)
        for number, (name, member) in enumerate(members):
            if number == MAX_WIDTH or self._left <= 0:
                yield f'<li class="json-more">and {len(value) - number} more</li>'
                break
            self._left -= 1
            label = f'<span class="hl-f"><bdi>{self._text(str(name))}</bdi></span>: '
            yield f"<li>{''.join(self._member(label, member, depth))}</li>"
        yield "</ul>"

    def _member(self, label: str, value: Any, depth: int) -> Iterator[str]:
        """Yield the HTML of a member of an object or list, after its label."""
        if not isinstance(value, dict | list) or not value:
            yield label + self._leaf(value)
            return
        if depth >= MAX_DEPTH:
            yield f"{label}<code>{self._text(json.dumps(value, ensure_ascii=False)[:2000])}</code>"
            return
        is_open = " open" if depth < _OPEN_DEPTH and len(value) <= _OPEN_WIDTH else ""
        noun = "member" if isinstance(value, dict) else "item"
        count = f"{len(value)} {noun}{'' if len(value) == 1 else 's'}"
        yield f'<details{is_open}><summary>{label}<span class="hl-c">{count}</span></summary>'
        yield from self.container(value, depth + 1)
        yield "</details>"

    def _leaf(self, value: Any) -> str:
        """Return the HTML of a string, number, boolean, null, empty object or empty list."""
        if isinstance(value, str):
            return f'<span class="hl-s"><bdi>"{self._text(value)}"</bdi></span>'
        kind = "hl-n" if isinstance(value, int | float) and not isinstance(value, bool) else "hl-k"
        return f'<span class="{kind}">{escape(json.dumps(value))}</span>'

    def _text(self, text: str) -> str:
        return escape(self._clean(text), quote=False)
