"""`/api/schema…`: the OpenAPI document, and the JSON Schemas of events and flows. `/api/docs`: the document as a page.

`/metrics`: the metrics of the site, for Prometheus.
"""

from __future__ import annotations

import functools
from typing import Any, ClassVar

from csp.decorators import csp_replace
from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators import http
from drf_spectacular.generators import SchemaGenerator
from prometheus_client import CONTENT_TYPE_LATEST
from rest_framework.request import Request

from agentops.base.http.health import may_read
from agentops.base.http.methods import require_safe
from runs.api.base_views import ApiView
from runs.api.requests.queries import Dialect, QuerySerializer
from runs.flows.shapes import flow_schema
from runs.queries.json_columns import to_json
from runs.telemetry.metric_exposition import CACHE
from timeline.event_vocabularies import agent_schema, events_schema
from timeline.live.hub import open_streams


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
        return self.etag_response(to_json(schema))


class FlowSchema(ApiView):
    """The JSON Schema of a flow's definition, for every authenticated caller."""

    schema = None
    accepts_any_type = True

    def get(self, request: Request) -> HttpResponse:
        return self.etag_response(to_json(flow_schema()))


@functools.cache
def document() -> str:
    """Return the OpenAPI 3.1 document as JSON, generated once per process."""
    schema: dict[str, Any] = SchemaGenerator().get_schema(public=True)  # type: ignore[no-untyped-call]
    return to_json(schema)


@require_safe
@login_required
# The script of the page sets inline styles, and its images are in its style sheet.
@csp_replace({"style-src": ["'self'", "'unsafe-inline'"], "require-trusted-types-for": None})
def docs(request: HttpRequest) -> HttpResponse:
    return render(request, "api/docs.html")


@http.require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """Return the metrics in the text format, to operators only. Other callers get 404."""
    site = settings.AGENTOPS_TELEMETRY
    if not may_read(request, site.metrics_token, site.metrics_allow):
        return HttpResponse("not found\n", status=404, content_type="text/plain; charset=utf-8")
    return HttpResponse(CACHE.get(open_streams()), content_type=CONTENT_TYPE_LATEST)
