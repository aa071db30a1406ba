"""A JSON value as nested lists that open and close without scripts. Depth, width and size are bounded."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from html import escape
from typing import Any

from django.utils.safestring import SafeString

from runs.pages.content.markup import sanitised

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
    def __init__(self, clean: Callable[[str], str]) -> None:
        self._clean = clean
        self._left = MAX_VALUES

    def container(self, value: dict[str, Any] | list[Any], depth: int) -> Iterator[str]:
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
        if not isinstance(value, dict | list) or not value:
            yield label + self._scalar(value)
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

    def _scalar(self, value: Any) -> str:
        if isinstance(value, str):
            return f'<span class="hl-s"><bdi>"{self._text(value)}"</bdi></span>'
        kind = "hl-n" if isinstance(value, int | float) and not isinstance(value, bool) else "hl-k"
        return f'<span class="{kind}">{escape(json.dumps(value))}</span>'

    def _text(self, text: str) -> str:
        return escape(self._clean(text), quote=False)
