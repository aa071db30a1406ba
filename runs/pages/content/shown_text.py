"""Choose the form of a text: Markdown, a diff, code, terminal output, JSON, or plain text.

`templates/timeline/_content.html` renders the result, in cards and on the pages of payloads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from django.utils.safestring import SafeString

from runs.pages.compare.differences import TextDifference
from runs.pages.content.code_colours import MAX_COLOURED, coloured, coloured_file
from runs.pages.content.json_tree import json_tree
from runs.pages.content.markdown_text import TOO_MUCH_MARKDOWN, markdown_html, why_not_markdown
from runs.pages.content.markup import sanitised
from runs.pages.content.patch_lines import is_patch, patch_difference
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
    #: The reason why all or part of the text is plain although a reader may expect formatting; empty otherwise.
    note: str = ""
    #: Size of the full text in bytes if the text is cut, otherwise 0.
    whole: int = 0

    @property
    def is_long(self) -> bool:
        """Return whether the box of the text scrolls, and must therefore be reachable by keyboard."""
        return may_scroll(self.text or self.html or "")


def show_markdown(clip: Clip) -> ShownText:
    """Return a text of a person or a model, rendered as Markdown."""
    if why := why_not_markdown(clip.text):
        return replace(show_plain(clip), note=f"Shown as plain text, without Markdown: {why}.")
    rendered = markdown_html(clip.text)
    note = "" if rendered.is_complete else f"Parts are shown as plain text, without Markdown: {TOO_MUCH_MARKDOWN}."
    return ShownText(html=rendered.html, kind="text", note=note, whole=clip.whole)


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
        # The maximum number of spans was reached and text follows: the rest may have colours too.
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
    if len(clip.text) <= MAX_COLOURED:
        return ""
    return f"Shown without colours: it is longer than {MAX_COLOURED:,} characters."


def titled(shown: ShownText, title: str) -> ShownText:
    """Return a text with a title."""
    return replace(shown, title=title)
