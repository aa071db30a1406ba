"""`…/agent-runs/{run}/fixture`: a run as a fixture, and `/api/schema/fixtures`: the JSON Schema of fixtures."""

from __future__ import annotations

import json
from typing import Any

from django.http import HttpResponse
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request

from runs.api.base_views import ApiView
from runs.fixtures.fixture_files import dumps, json_schema
from runs.queries.run_fixture import record

_ABOUT = {
    "type": "object",
    "properties": {
        "title": {"type": "string"},
        "origin": {"type": "string", "description": "The run that was recorded."},
        "notes": {"type": "string", "description": "What the fixture does not carry. Absent: nothing."},
    },
    "required": ["title"],
}
FIXTURE = {
    "type": "object",
    "properties": {
        "about": _ABOUT,
        "calls": {
            "type": "array",
            "items": {"type": "object", "additionalProperties": True},
            "description": "The model calls in order, as `/api/schema/fixtures` describes them.",
        },
    },
    "required": ["about", "calls"],
}


@extend_schema(responses={200: FIXTURE})
class FixtureView(ApiView):
    """Get the conversation of a run as a fixture, which the provider `fixture` plays. Secrets are masked.

    409 `nothing_recorded` if the run has no answer of a model yet.
    """

    def get(self, request: Request, **_: Any) -> HttpResponse:
        return self.etag_response(dumps(record(self.get_run()).fixture))


class FixtureSchema(ApiView):
    """The JSON Schema of fixture files, for every authenticated caller."""

    schema = None
    accepts_any_type = True

    def get(self, request: Request) -> HttpResponse:
        return self.etag_response(json.dumps(json_schema(), ensure_ascii=False, separators=(",", ":")))
