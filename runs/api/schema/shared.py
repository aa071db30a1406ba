"""JSON schemas of answers that several views share, for the OpenAPI document."""

from __future__ import annotations

from typing import Any

from runs.queries.json_lists import Listing

_LINK = {"type": ["string", "null"], "format": "uri-reference"}


def page_of(listing: Listing, **head: Any) -> dict[str, Any]:
    """A page of a list; `head`: the schemas of members that stand before it."""
    properties = {**head, "next": _LINK, "previous": _LINK, "results": {"type": "array", "items": listing.schema()}}
    return {"type": "object", "properties": properties, "required": list(properties)}
