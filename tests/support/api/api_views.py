"""The views of the API, by URL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.urls import URLPattern, URLResolver

from runs.api.base_views import ApiView


def patterns(of: list[Any], before: str = "/api/") -> Iterator[tuple[str, type[ApiView]]]:
    """Yield the URL and the view of each pattern."""
    for each in of:
        address = before + str(each.pattern)
        if isinstance(each, URLResolver):
            yield from patterns(each.url_patterns, address)
        elif isinstance(each, URLPattern) and hasattr(each.callback, "view_class"):
            yield address, each.callback.view_class
