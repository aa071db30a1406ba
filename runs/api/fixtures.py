"""`…/agent-runs/{run}/fixture` and `…/flow-runs/{flow_run}/fixtures`: runs as fixtures, and the schema of fixtures."""

from __future__ import annotations

import json
from typing import Any

from django.http import HttpResponse
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request

from runs.api.base_views import ApiView
from runs.fixtures.fixture_files import dumps, json_schema
from runs.queries.flow_fixtures import record_flow_of_request
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
_RECORDING = {
    "type": "object",
    "properties": {
        "flow_id": {"type": "string"},
        "fixtures": {"type": "object", "additionalProperties": FIXTURE, "description": "The fixtures by node."},
        "answers": {
            "type": "object",
            "additionalProperties": {"type": "array", "items": {}},
            "description": "What people answered, by human node, in the order of its visits.",
        },
        "notes": {
            "type": "array",
            "items": {"type": "string"},
            "description": "What the fixtures do not carry. Notes about a node are in its fixture.",
        },
    },
    "required": ["flow_id", "fixtures", "answers", "notes"],
}


@extend_schema(responses={200: FIXTURE})
class FixtureView(ApiView):
    """Get the conversation of a run as a fixture, which the provider `fixture` plays. Secrets are masked.

    409 `nothing_recorded` if the run has no answer of a model yet.
    """

    def get(self, request: Request, **_: Any) -> HttpResponse:
        return self.etag_response(dumps(record(self.get_run()).fixture))


@extend_schema(responses={200: _RECORDING})
class FlowRunFixtures(ApiView):
    """Get a fixture for each agent node of a flow run, which the provider `fixture` plays. Secrets are masked.

    409 `nothing_recorded` if no agent node has an answer of a model yet, `too_many_visits` if agents were called for
    more than 200 visits of nodes: then `agentops record_fixtures` can do it.
    """

    def get(self, request: Request, **_: Any) -> HttpResponse:
        recording = record_flow_of_request(self.get_flow_run()).as_json()
        return self.etag_response(json.dumps(recording, ensure_ascii=False, separators=(",", ":")))


class FixtureSchema(ApiView):
    """The JSON Schema of fixture files, for every authenticated caller."""

    schema = None
    accepts_any_type = True

    def get(self, request: Request) -> HttpResponse:
        return self.etag_response(json.dumps(json_schema(), ensure_ascii=False, separators=(",", ":")))
