"""Texts as displayed to people: Markdown, code, diffs, terminal colours, JSON, and whole payloads."""

from __future__ import annotations

import json
from collections.abc import Iterator

from django.http import HttpRequest

from runs.pages.compare.differences import difference
from runs.pages.content.call_arguments import show_arguments
from runs.pages.content.shown_text import ShownText, show_file, show_markdown, show_output, show_plain, show_tree
from runs.pages.content.terminal_text import colours_of
from runs.pages.run.payloads import Form, PayloadPage, PayloadText
from tests.support.components.rendered_examples import Example
from tests.support.components.sample_content import ContentKind, SampleContent
from tests.support.components.timeline_examples import BASE, picture_of
from timeline.display import Clip, clip

#: Bytes of a text in a card, and the URL of the whole text.
LIMIT, WHOLE = 2048, f"{BASE}/events/1"
TEMPLATE = "timeline/_content.html"


def content_examples(request: HttpRequest, content: SampleContent) -> Iterator[Example]:
    """Yield a text of each form, then the parts of a payload's page and a comparison of two texts."""
    for title, shown in _texts(content):
        yield Example(title, TEMPLATE, {"shown": shown, "href": WHOLE})
    yield Example("Plain text", "timeline/_payload.html", {"clip": clip(content.error, LIMIT), "href": WHOLE})
    yield Example("Payload", "runs/run/_payload.html", {"payload": _payload(content), "address": WHOLE, "level": 3})
    for title, a, b in (("Two texts", content.text, content.markdown), ("Equal texts", content.text, content.text)):
        yield Example(title, "runs/compare/_difference.html", {"one": difference(title, a, b), "level": 3})


def _texts(content: SampleContent) -> Iterator[tuple[str, ShownText]]:
    output, patch = clip(content.output, LIMIT), clip(content.patch, LIMIT)
    yield "Text of a person", show_markdown(clip(content.text, LIMIT))
    yield "Plain text of a person", show_plain(clip(content.text, LIMIT))
    yield "Markdown of a model", show_markdown(clip(content.markdown, 8192))
    yield "Highlighted code", show_file(clip(content.code, LIMIT), "go")
    yield "Output of a terminal", show_output(output, colours_of(content.output, output.text))
    yield "Diff", show_output(patch)
    # A broken document has no tree: its text is shown.
    is_broken = content.kind is ContentKind.HOSTILE
    document = json.dumps(content.payload)[: -1 if is_broken else None]
    yield "JSON", show_tree(Clip(document)) or show_output(Clip(document))
    for shown in show_arguments(content.arguments, LIMIT, as_tree=True):
        yield "Arguments of a tool call", shown


def _payload(content: SampleContent) -> PayloadPage:
    parts = [
        PayloadText("text", "Text", content.markdown, Form.MARKDOWN),
        PayloadText("output", "Output", content.output),
        PayloadText(
            "arguments", "Arguments", json.dumps(content.arguments), Form.ARGUMENTS, arguments=content.arguments
        ),
        PayloadText("json", "As JSON", json.dumps(content.payload), Form.JSON, folded=True),
    ]
    return PayloadPage(content.title, parts, facts=[], links=[], pictures=[picture_of(content)] * min(content.rows, 1))
