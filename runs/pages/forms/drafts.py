"""Definitions that a user edits, and that another user may change in the meantime."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from django.http import HttpRequest

from agentops.accounts.settings_pages.page_parts import sentence
from agentops.base.refusals import InvalidQuery
from runs.agents import definition_text
from runs.pages.compare.differences import TextDifference
from timeline.display import clean


@dataclass
class Draft:
    """A definition that a user edits. A save replaces the version `base`, which the user has seen; 0: it is new."""

    base: int
    text: str = ""
    #: Errors of the text, each with its position.
    errors: list[tuple[str, str]] = field(default_factory=list)
    #: The differences between the version `base` and the draft.
    preview: list[TextDifference] | None = None
    #: Changes that another user saved after this form was opened.
    conflict: list[TextDifference] | None = None

    def add_error(self, error: object, pointer: str = "", document: Mapping[str, Any] | None = None) -> None:
        """Add an error of the text. `pointer`: its JSON pointer within `document`."""
        place = "" if document is None else clean(definition_text.json_path(pointer, document))
        self.errors.append((place, clean(sentence(error))))


def sent_version(request: HttpRequest, name: str, kind: str) -> int:
    """Return the version of a flow or an agent in a form. Raise InvalidQuery."""
    text = request.POST.get(name, "")
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InvalidQuery(f"{name} must be the version of the {kind}, not {text[:64]!r}")
    return int(text)
