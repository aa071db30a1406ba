"""`…/agent-runs/{run}/replay` and `/snapshot`: the states of a run, rebuilt from its log. Nothing is executed."""

from __future__ import annotations

import json
from typing import Any, ClassVar
from urllib.parse import urlencode
from uuid import UUID

from django.http import HttpResponse
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request

from agentops.base.refusals import Fault
from runs.api.base_views import ApiView
from runs.api.event_views import AfterQuery
from runs.api.problems import JSON, InvalidParameters
from runs.api.requests.bodies import StringField
from runs.api.requests.pagination import seal, unseal
from runs.api.requests.queries import MAX_INTEGER, QuerySerializer, WholeParameter
from runs.queries import replay_states
from runs.queries.json_columns import to_json
from runs.queries.masking import mask_rows
from runs.queries.record_columns import EVENTS
from timeline import log
from timeline.models import Event
from timeline.replay import TOKENS, Frame

#: Maximum bytes of a state in the URL of the next page, and characters of it there.
MAX_SUMMARY, MAX_STATE = 3000, 4096
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
    "unpriced_calls": {
        "type": "integer",
        "description": "Model calls whose cost is unknown. `cost_usd` is a lower bound if there are any.",
    },
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


class ReplayQuery(AfterQuery):
    state = StringField(
        required=False,
        max_length=MAX_STATE,
        help_text="The state after event `afterSeq`, from `next` of another page. Without it, the page takes longer: "
        "the state is rebuilt from the first event.",
    )


@extend_schema(responses={200: REPLAY_PAGE})
class Replay(ApiView):
    """List the events of a run in order, each with the state of the run after it. Nothing is executed or changed.

    Follow `next` for the pages after the first one.
    """

    query_class: ClassVar = ReplayQuery

    def get(self, request: Request, **_: Any) -> HttpResponse:
        run, limit, after = self.get_run_key(), self.query["limit"], self.query["afterSeq"]
        events, url = log.read(run.pk, after=after, limit=limit + 1), None
        has_more, events = len(events) > limit, events[:limit]
        frame = self._frame(run.pk, after, events) if events else Frame()
        states = list(replay_states.continued(frame, events))
        if has_more:
            params = {"afterSeq": events[-1].seq, "limit": limit}
            summary = replay_states.summary_of(frame, MAX_SUMMARY)
            sealed = {} if summary is None else {"state": seal(summary, _bound_to(run.pk, events[-1].seq))}
            url = f"{request.path}?{urlencode({**params, **sealed})}"
        rows = mask_rows([to_json({**log.wire(event), "state": state.as_json()}) for event, state in states])
        # The log may have grown since the run was read.
        last_seq = max(run.last_seq, events[-1].seq if events else 0)
        headers = {"Link": f'<{url}>; rel="next"'} if url else {}
        tail = f'"last_seq":{last_seq},"next":{json.dumps(url)}'
        return HttpResponse(f'{{"results":[{",".join(rows)}],{tail}}}', content_type=JSON, headers=headers)

    def _frame(self, run_id: UUID, after: int, events: list[Event]) -> Frame:
        """Return the state after event `after`, from the query if it contains one. Raises `InvalidCursor`."""
        sealed = self.query.get("state")
        summary = None if sealed is None else unseal(sealed, _bound_to(run_id, after))
        if summary is None or any(event.type in replay_states.NEEDS_MESSAGES for event in events):
            return replay_states.frame_at(run_id, after)
        return replay_states.frame_from(summary)


def _bound_to(run_id: UUID, seq: int) -> bytes:
    return f"replay {run_id} {seq}".encode()


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
