"""In which form the API answers: what an Accept header excludes, and JSON without secrets."""

from __future__ import annotations

from typing import Any

from django.utils.http import parse_header_parameters
from rest_framework.exceptions import NotAcceptable
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request

from runs.queries.masking import masked_rows


class Negotiation(DefaultContentNegotiation):  # type: ignore[misc]
    """DRF's, to which an empty Accept header excludes nothing, and a quality of 0 does exclude."""

    def select_renderer(self, request: Request, renderers: Any, format_suffix: str | None = None) -> tuple[Any, str]:
        first = renderers[0]
        # What nearly everyone sends needs no parsing.
        if request.headers.get("Accept", "") in ("", "*/*", first.media_type):
            return first, first.media_type
        renderer, media_type = super().select_renderer(request, renderers, format_suffix)
        try:
            # Of the most exact word for it, which DRF looks at first.
            excluded = float(parse_header_parameters(media_type)[1].get("q", 1)) <= 0
        except ValueError:
            excluded = False
        if excluded:
            raise NotAcceptable
        return renderer, media_type


class MaskedJSONRenderer(JSONRenderer):  # type: ignore[misc]
    """DRF's JSON; secrets leave by no door."""

    def render(self, data: Any, accepted_media_type: str | None = None, renderer_context: Any = None) -> bytes:
        text: bytes = super().render(data, accepted_media_type, renderer_context)
        return masked_rows([text.decode()])[0].encode()
