"""`…/flow-runs/{flow_run}/replay`: the events of a flow run with the state after each. Nothing is executed."""

from __future__ import annotations

import json
from typing import Any, ClassVar
from urllib.parse import urlencode

from django.http import HttpResponse
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request

from runs.api.event_views import AfterQuery
from runs.api.flows.flow_bodies import map_of, object_of
from runs.api.flows.flow_run_views import OfFlowRun
from runs.api.problems import JSON
from runs.queries.flow_states import FlowReplay
from runs.queries.json_columns import to_json
from runs.queries.masking import mask_rows
from runs.queries.record_columns import EVENTS
from timeline import log

_STATE = object_of(
    {
        "seq": {"type": "integer", "description": "The event after which this is the state."},
        "status": {"type": "string"},
        "nodeStatus": map_of({"type": "string", "enum": ["running", "done", "failed", "skipped"]}),
        "edgeStatus": map_of({"type": "string", "enum": ["fired", "skipped"]}),
        "loopCounters": map_of({"type": "integer"}),
        "waitingMessages": {"type": "integer", "description": "Messages that wait for a resume."},
    }
)
_ABOUT = "The state after this event. Pending nodes and edges are left out. `…/snapshot?seq=` adds outputs and state."
_EVENT = EVENTS.schema()
FLOW_REPLAY_PAGE = object_of(
    {
        "results": {
            "type": "array",
            "items": {
                **_EVENT,
                "properties": {**_EVENT["properties"], "state": {**_STATE, "description": _ABOUT}},
                "required": [*_EVENT["required"], "state"],
            },
        },
        "last_seq": {"type": "integer", "description": "Sequence number of the newest event."},
        "next": {"type": ["string", "null"], "format": "uri-reference"},
    }
)


@extend_schema(responses={200: FLOW_REPLAY_PAGE})
class FlowRunReplay(OfFlowRun):
    """List the events of a flow run in order, each with its state after it. Nothing is executed or changed.

    Follow `next` for the pages after the first one.
    """

    query_class: ClassVar = AfterQuery

    def get(self, request: Request, **_: Any) -> HttpResponse:
        flow_run, limit, after = self.get_flow_run(), self.query["limit"], self.query["afterSeq"]
        events = log.read(flow_run.pk, after=after, limit=limit + 1)
        has_more, events = len(events) > limit, events[:limit]
        replayed = FlowReplay(flow_run, after).continued(events) if events else iter(())
        rows = mask_rows([to_json({**log.wire(event), "state": state.as_json()}) for event, state in replayed])
        query = urlencode({"afterSeq": events[-1].seq, "limit": limit}) if has_more else ""
        url = f"{request.path}?{query}" if query else None
        # The log may have grown since the flow run was read.
        last_seq = max(flow_run.log.last_seq, events[-1].seq if events else 0)
        headers = {"Link": f'<{url}>; rel="next"'} if url else {}
        tail = f'"last_seq":{last_seq},"next":{json.dumps(url)}'
        return HttpResponse(f'{{"results":[{",".join(rows)}],{tail}}}', content_type=JSON, headers=headers)
