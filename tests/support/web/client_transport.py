"""Connects an HTTP client of the product to the site under test, in the test's transaction."""

from __future__ import annotations

import httpx
from django.test import Client


class ClientTransport(httpx.BaseTransport):
    """Sends requests through Django's test client."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        kind = request.headers.get("Content-Type", "")
        answer = Client().generic(
            request.method, request.url.path, request.read(), content_type=kind, headers=dict(request.headers)
        )
        return httpx.Response(answer.status_code, headers=dict(answer.headers), content=answer.content)
