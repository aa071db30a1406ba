"""Definitions as text: TOML or JSON, and positions in them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any

from agentops.base.http import strict_json


class NotADefinition(ValueError):
    """The text is neither a JSON object nor TOML. The message gives position and reason."""


def parse(text: str, *, suffix: str = "") -> dict[str, Any]:
    """Return the definition in a text, detected by the suffix of its file or by its first character.

    Raises `NotADefinition`.
    """
    is_json = suffix == ".json" or (suffix != ".toml" and text.lstrip()[:1] in {"{", ""})
    try:
        definition = strict_json.parse(text) if is_json else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise NotADefinition(f"not {'JSON' if is_json else 'TOML'}: {reason}") from None
    if not isinstance(definition, dict):
        raise NotADefinition("$: a definition must be an object")
    return definition


def json_path(pointer: str, document: Any) -> str:
    """Convert a JSON pointer to a JSON path: `/tools/0` to `$.tools[0]`. Pointers of errors may have been cut."""
    path = "$"
    for step in (part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]):
        if isinstance(document, list):
            is_index = step.isascii() and step.isdigit() and int(step) < len(document)
            path, document = f"{path}[{step}]", document[int(step)] if is_index else None
        else:
            path, document = f"{path}.{step}", document.get(step) if isinstance(document, Mapping) else None
    return path
