"""A component of the page: a template of the site, rendered with the context that a page would use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from django.http import HttpRequest
from django.template.loader import render_to_string
from django.utils.safestring import SafeString

from tests.support.components.sample_content import SampleContent


class ExampleFrame(StrEnum):
    """The element that contains a component on its page, such as the list around a row."""

    NONE = ""
    TIMELINE = "timeline"
    #: The frame with the filter "messages", which names the tool calls that an answer requests.
    MESSAGES = "messages"
    RESULTS = "results"
    FACTS = "facts"
    ACTIONS = "actions"
    FORM = "form"


@dataclass(frozen=True)
class Example:
    """A component. A template may appear several times, each time with a different title."""

    title: str
    template: str
    context: Mapping[str, Any]
    frame: ExampleFrame = ExampleFrame.NONE
    #: The ID of the heading that the component refers to.
    heading_id: str = ""


@dataclass(frozen=True)
class ShownExample:
    """A rendered component."""

    title: str
    template: str
    frame: str
    heading_id: str
    html: SafeString


#: Returns the components of a group, filled with content.
Examples = Callable[[HttpRequest, SampleContent], Iterable[Example]]


def render_examples(request: HttpRequest, examples: Iterable[Example]) -> list[ShownExample]:
    """Render components with the templates of the site."""
    return [_rendered(request, each) for each in examples]


def _rendered(request: HttpRequest, each: Example) -> ShownExample:
    html = render_to_string(each.template, {**each.context}, request)
    return ShownExample(each.title, each.template, each.frame, each.heading_id, html)
