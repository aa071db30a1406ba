"""Content negotiation of the API, and its JSON renderer, which masks secrets."""

from __future__ import annotations

from typing import Any

from django.utils.http import parse_header_parameters
from rest_framework.exceptions import NotAcceptable
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request

from runs.queries.masking import mask_rows


class Negotiation(DefaultContentNegotiation):  # type: ignore[misc]
    """DRF's negotiation, except that an empty Accept header excludes nothing, and a quality of 0 excludes a type."""

    def select_renderer(self, request: Request, renderers: Any, format_suffix: str | None = None) -> tuple[Any, str]:
        first = renderers[0]
        # The common headers need no parsing.
        if request.headers.get("Accept", "") in ("", "*/*", first.media_type):
            return first, first.media_type
        renderer, media_type = super().select_renderer(request, renderers, format_suffix)
        try:
            # The quality of the most specific media range, which DRF tries first.
            excluded = float(parse_header_parameters(media_type)[1].get("q", 1)) <= 0
        except ValueError:
            excluded = False
        if excluded:
            raise NotAcceptable
        return renderer, media_type


class MaskedJSONRenderer(JSONRenderer):  # type: ignore[misc]
    """DRF's JSON renderer, with secrets masked."""

    def render(self, data: Any, accepted_media_type: str | None = None, renderer_context: Any = None) -> bytes:
        text: bytes = super().render(data, accepted_media_type, renderer_context)
        return mask_rows([text.decode()])[0].encode()
