"""`…/agent-runs/{run}/replay` and `/snapshot`: the states of a run, rebuilt from its log. Nothing is executed."""

from __future__ import annotations

import json
from typing import Any, ClassVar
from urllib.parse import urlencode

from django.http import HttpResponse
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request

from runs.api.base_views import ApiView
from runs.api.event_views import EventsQuery
from runs.api.problems import JSON, Fault, InvalidParameters
from runs.api.requests.queries import MAX_INTEGER, QuerySerializer, WholeParameter
from runs.queries import replay_states
from runs.queries.json_columns import to_json
from runs.queries.masking import mask_rows
from runs.queries.record_columns import EVENTS
from timeline import log
from timeline.replay import TOKENS

_NULLABLE_ID = {"type": ["string", "null"], "format": "uuid"}
_NULLABLE_STEP = {"type": ["integer", "null"]}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


OPEN_CALL = _object(
    {
        "id": _NULLABLE_ID | {"description": "Null for a call of an external runner that has no row."},
        "call_id": {"type": "string"},
        "tool_name": {"type": "string"},
        "status": {"type": "string", "enum": ["running", "unknown"]},
        "step_number": _NULLABLE_STEP,
    }
)
STATE: dict[str, Any] = {
    "seq": {"type": "integer", "description": "The event after which this is the state."},
    "status": {"type": "string"},
    "status_reason": {"type": "string"},
    "step": {"type": "integer", "description": "Number of the last completed step, or 0."},
    "nodeId": {"type": ["string", "null"]},
    "open_model_call": {"type": "boolean", "description": "Whether a model call has started and not ended."},
    "open_tool_calls": {
        "type": "array",
        "items": OPEN_CALL,
        "description": "Tool calls that have started and have no result.",
    },
    **{name: {"type": "integer"} for name in TOKENS},
    "cost_usd": {"type": ["string", "null"], "format": "decimal", "description": "Null if no cost is known."},
    "message_count": {"type": "integer", "description": "All messages, including those that were rolled back."},
}
MESSAGE_STATE = _object(
    {
        "id": _NULLABLE_ID | {"description": "Null for a message of an external runner that has no row."},
        "position": {"type": ["integer", "null"]},
        "role": {"type": "string"},
        "step_number": _NULLABLE_STEP,
        "rolled_back": {"type": "boolean"},
        "preview": {"type": "string", "description": f"At most {replay_states.PREVIEW_BYTES} bytes of its text."},
    }
)
NEWEST = f"The newest {replay_states.MAX_MESSAGES} messages, oldest first. `…/messages` lists all."
SNAPSHOT = _object({**STATE, "messages": {"type": "array", "items": MESSAGE_STATE, "description": NEWEST}})
AFTER_EVENT = "The state after this event: the fields of `…/snapshot` without `messages`."
_EVENT = EVENTS.schema()
REPLAYED = {
    **_EVENT,
    "properties": {**_EVENT["properties"], "state": {**_object(STATE), "description": AFTER_EVENT}},
    "required": [*_EVENT["required"], "state"],
}
REPLAY_PAGE = _object(
    {
        "results": {"type": "array", "items": REPLAYED},
        "last_seq": {"type": "integer", "description": "Sequence number of the newest event."},
        "next": {"type": ["string", "null"], "format": "uri-reference"},
    }
)


class SnapshotQuery(QuerySerializer):
    seq = WholeParameter(
        1,
        MAX_INTEGER,
        required=False,
        help_text="Sequence number of an event (default: the newest).",
        style={"example": 1},
    )


@extend_schema(responses={200: REPLAY_PAGE})
class Replay(ApiView):
    """List the events of a run in order, each with the state of the run after it. Nothing is executed or changed."""

    query_class: ClassVar = EventsQuery

    def get(self, request: Request, **_: Any) -> HttpResponse:
        run, limit, after = self.get_run_key(), self.query["limit"], self.query["afterSeq"]
        events, url = log.read(run.pk, after=after, limit=limit + 1), None
        if len(events) > limit:
            events = events[:limit]
            params = {**request.query_params.dict(), "afterSeq": events[-1].seq}
            url = f"{request.path}?{urlencode(sorted(params.items()))}"
        states = replay_states.states_of(run.pk, events)
        rows = mask_rows([to_json({**log.wire(event), "state": state.as_json()}) for event, state in states])
        # The log may have grown since the run was read.
        last_seq = max(run.last_seq, events[-1].seq if events else 0)
        headers = {"Link": f'<{url}>; rel="next"'} if url else {}
        tail = f'"last_seq":{last_seq},"next":{json.dumps(url)}'
        return HttpResponse(f'{{"results":[{",".join(rows)}],{tail}}}', content_type=JSON, headers=headers)


@extend_schema(responses={200: SNAPSHOT})
class SnapshotView(ApiView):
    """Get the state of a run after an event, rebuilt from its log: the state now, or at any earlier moment."""

    query_class: ClassVar = SnapshotQuery

    def get(self, request: Request, **_: Any) -> HttpResponse:
        run = self.get_run_key()
        seq = self.query.get("seq", run.last_seq)
        if seq > run.last_seq:
            raise InvalidParameters([Fault("?seq", "invalid_seq", f"seq: the last event is {run.last_seq}, not {seq}")])
        state, messages = replay_states.snapshot_at(run.pk, seq)
        body = {**state.as_json(), "messages": [message.as_json() for message in messages]}
        return self.etag_response(mask_rows([to_json(body)])[0])
