"""`…/flow-runs/{flow_run}/fixtures`: the agent nodes of a flow run as fixtures."""

from __future__ import annotations

import json
from typing import Any

from django.http import HttpResponse
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request

from runs.api.fixtures import FIXTURE
from runs.api.flows.flow_run_views import OfFlowRun
from runs.queries.flow_fixtures import record_flow_of_request

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


@extend_schema(responses={200: _RECORDING})
class FlowRunFixtures(OfFlowRun):
    """Get a fixture for each agent node of a flow run, which the provider `fixture` plays. Secrets are masked.

    409 `nothing_recorded` if no agent node has an answer of a model yet, `too_many_visits` if agents were called for
    more than 200 visits of nodes: then `agentops record_fixtures` can do it.
    """

    def get(self, request: Request, **_: Any) -> HttpResponse:
        recording = record_flow_of_request(self.get_flow_run()).as_json()
        return self.etag_response(json.dumps(recording, ensure_ascii=False, separators=(",", ":")))
