"""`/api/schema`: the OpenAPI document, and the JSON Schemas of events and flows. `/api/docs`: its HTML page.

The document is generated once per process.
"""

from __future__ import annotations

import functools
import json
from typing import Any, ClassVar

from csp.decorators import csp_replace
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from drf_spectacular.generators import SchemaGenerator
from rest_framework.request import Request

from agentops.base.http.methods import require_safe
from runs.api.base_views import ApiView
from runs.api.requests.queries import Dialect, QuerySerializer
from runs.flows.definition.schema import flow_schema
from timeline.dialects.json_schemas import agent_schema, events_schema


class Schema(ApiView):
    """The OpenAPI document, for every authenticated caller; its content is the same for all."""

    schema = None
    # Generators request YAML, "openapi+json" or any type; the document exists only in one format.
    accepts_any_type = True

    def get(self, request: Request) -> HttpResponse:
        return self.etag_response(document())


class EventSchemaQuery(QuerySerializer):
    dialect = Dialect()


class EventSchema(ApiView):
    """The JSON Schema of an event, for every authenticated caller."""

    schema = None
    query_class: ClassVar = EventSchemaQuery
    accepts_any_type = True

    def get(self, request: Request) -> HttpResponse:
        schema = agent_schema() if self.query.get("dialect") else events_schema()
        return self.etag_response(json.dumps(schema, ensure_ascii=False, separators=(",", ":")))


class FlowSchema(ApiView):
    """The JSON Schema of a flow's definition, for every authenticated caller."""

    schema = None
    accepts_any_type = True

    def get(self, request: Request) -> HttpResponse:
        return self.etag_response(json.dumps(flow_schema(), ensure_ascii=False, separators=(",", ":")))


@functools.cache
def document() -> str:
    """Return the OpenAPI 3.1 document as JSON."""
    schema: dict[str, Any] = SchemaGenerator().get_schema(public=True)  # type: ignore[no-untyped-call]
    return json.dumps(schema, ensure_ascii=False, separators=(",", ":"))


@require_safe
@login_required
# The script of the page sets inline styles, and its images are in its style sheet.
@csp_replace({"style-src": ["'self'", "'unsafe-inline'"], "require-trusted-types-for": None})
def docs(request: HttpRequest) -> HttpResponse:
    return render(request, "api/docs.html")
