"""`/api/schema`: the OpenAPI document. `/api/docs`: the same for people, where it can be tried.

A door: authorises, and gives what is made once per process.
"""

from __future__ import annotations

import functools
import json
from typing import Any

from csp.decorators import csp_replace
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from drf_spectacular.generators import SchemaGenerator
from rest_framework.request import Request

from agentops.http.methods import require_safe
from runs.api.base_views import ApiView


class Schema(ApiView):
    """For whoever has a key or is signed in; what is in it depends on neither."""

    schema = None
    # Generators ask for YAML, for "openapi+json", or for anything: there is one form.
    any_type = True

    def get(self, request: Request) -> HttpResponse:
        return self.tagged(document())


@functools.cache
def document() -> str:
    """The OpenAPI 3.1 document as JSON."""
    made: dict[str, Any] = SchemaGenerator().get_schema(public=True)  # type: ignore[no-untyped-call]
    return json.dumps(made, ensure_ascii=False, separators=(",", ":"))


@require_safe
@login_required
# The page's program writes styles into elements, and has its pictures inside its style sheet.
@csp_replace({"style-src": ["'self'", "'unsafe-inline'"], "require-trusted-types-for": None})
def docs(request: HttpRequest) -> HttpResponse:
    return render(request, "api/docs.html")
