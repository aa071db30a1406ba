"""`…/agent-runs/{run}/replay` and `…/snapshot`, and the same for flow runs: past states, rebuilt from the events.

Nothing is executed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar
from uuid import UUID

from django.http import HttpResponse
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request

from agentops.base.refusals import Fault
from runs.api.base_views import ApiView
from runs.api.event_views import AfterQuery, page_of_log
from runs.api.flow_bodies import SNAPSHOT as FLOW_SNAPSHOT
from runs.api.problems import InvalidParameters
from runs.api.requests.bodies import StringField
from runs.api.requests.pagination import map_of, object_of, seal, unseal
from runs.api.requests.queries import MAX_INTEGER, QuerySerializer, WholeParameter
from runs.queries import replay_states
from runs.queries.flow_states import FlowReplay, snapshot_at
from runs.queries.json_columns import mask_rows, to_json
from runs.queries.record_columns import EVENTS
from timeline import log
from timeline.models import Event
from timeline.replay import TOKENS, Frame

#: Maximum bytes of a state that the URL of the next page contains.
MAX_SUMMARY = 3000
#: Maximum characters of the query parameter with this state.
MAX_STATE = 4096
_NULLABLE_ID = {"type": ["string", "null"], "format": "uuid"}
_NULLABLE_STEP = {"type": ["integer", "null"]}


OPEN_CALL = object_of(
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
MESSAGE_STATE = object_of(
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
SNAPSHOT = object_of({**STATE, "messages": {"type": "array", "items": MESSAGE_STATE, "description": NEWEST}})
_EVENT = EVENTS.schema()


def _replay_page(state: dict[str, Any], description: str) -> dict[str, Any]:
    """Return the schema of a page of events with the state after each."""
    replayed = object_of({**_EVENT["properties"], "state": {**object_of(state), "description": description}})
    return object_of(
        {
            "results": {"type": "array", "items": replayed},
            "last_seq": {"type": "integer", "description": "Sequence number of the newest event."},
            "next": {"type": ["string", "null"], "format": "uri-reference"},
        }
    )


REPLAY_PAGE = _replay_page(STATE, "The state after this event: the fields of `…/snapshot` without `messages`.")
FLOW_REPLAY_PAGE = _replay_page(
    {
        "seq": {"type": "integer", "description": "The event after which this is the state."},
        "status": {"type": "string"},
        "nodeStatus": map_of({"type": "string", "enum": ["running", "done", "failed", "skipped"]}),
        "edgeStatus": map_of({"type": "string", "enum": ["fired", "skipped"]}),
        "loopCounters": map_of({"type": "integer"}),
        "waitingMessages": {"type": "integer", "description": "Messages that wait for a resume."},
    },
    "The state after this event. Pending nodes and edges are left out. `…/snapshot?seq=` adds outputs and state.",
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


class ReplayView(ApiView):
    """A page of events, each with the state after it."""

    def read_events(self) -> tuple[list[Event], dict[str, Any] | None]:
        """Return the events of a page, and the query of the next page if there is one."""
        limit, run_id = self.query["limit"], self.kwargs.get("run_id") or self.kwargs["flow_run_id"]
        events = log.read(run_id, after=self.query["afterSeq"], limit=limit + 1)
        query = {"afterSeq": events[limit - 1].seq, "limit": limit} if len(events) > limit else None
        return events[:limit], query

    def page(self, replayed: Iterable[tuple[Event, Any]], last_seq: int, query: dict[str, Any] | None) -> HttpResponse:
        """Return the page with events and their states.

        `last_seq`: the last sequence number when it was read; the page may contain newer events.
        """
        rows = []
        for event, state in replayed:
            rows.append(to_json({**log.wire(event), "state": state.as_json()}))
            last_seq = max(last_seq, event.seq)
        return page_of_log(self.request.path, mask_rows(rows), last_seq, query)


@extend_schema(responses={200: REPLAY_PAGE})
class Replay(ReplayView):
    """List the events of a run in order, each with the state of the run after it. Nothing is executed or changed.

    Follow `next` for the pages after the first one.
    """

    query_class: ClassVar = ReplayQuery

    def get(self, request: Request, **_: Any) -> HttpResponse:
        run, (events, query) = self.get_run_key(), self.read_events()
        frame = self._frame(run.pk, self.query["afterSeq"], events) if events else Frame()
        states = list(replay_states.continued(frame, events))
        if query is not None and (summary := replay_states.summary_of(frame, MAX_SUMMARY)) is not None:
            query["state"] = seal(summary, _bound_to(run.pk, events[-1].seq))
        return self.page(states, run.last_seq, query)

    def _frame(self, run_id: UUID, after: int, events: list[Event]) -> Frame:
        """Return the state after event `after`: from the query, if it contains one that suffices for `events`.

        Raises `InvalidCursor` if this site did not sign the state in the query.
        """
        sealed = self.query.get("state")
        summary = None if sealed is None else unseal(sealed, _bound_to(run_id, after))
        if summary is None or any(event.type in replay_states.NEEDS_MESSAGES for event in events):
            return replay_states.frame_at(run_id, after)
        return replay_states.frame_from(summary)


def _bound_to(run_id: UUID, seq: int) -> bytes:
    """Return what the signature of a state is bound to, so that it is valid only for this run and event."""
    return f"replay {run_id} {seq}".encode()


@extend_schema(responses={200: SNAPSHOT})
class SnapshotView(ApiView):
    """Get the state of a run after an event, rebuilt from its log; by default the state now."""

    query_class: ClassVar = SnapshotQuery

    def get(self, request: Request, **_: Any) -> HttpResponse:
        run = self.get_run_key()
        seq = _checked_seq(self.query, run.last_seq) or run.last_seq
        state, messages = replay_states.snapshot_at(run.pk, seq)
        body = {**state.as_json(), "messages": [message.as_json() for message in messages]}
        return self.etag_response(mask_rows([to_json(body)])[0])


# --- Flow runs ---


@extend_schema(responses={200: FLOW_REPLAY_PAGE})
class FlowRunReplay(ReplayView):
    """List the events of a flow run in order, each with its state after it. Nothing is executed or changed.

    Follow `next` for the pages after the first one.
    """

    query_class: ClassVar = AfterQuery

    def get(self, request: Request, **_: Any) -> HttpResponse:
        flow_run, (events, query) = self.get_flow_run(), self.read_events()
        replayed = FlowReplay(flow_run, self.query["afterSeq"]).continued(events) if events else ()
        return self.page(replayed, flow_run.log.last_seq, query)


@extend_schema(responses={200: FLOW_SNAPSHOT})
class FlowRunSnapshot(ApiView):
    """Get the snapshot of a flow run: the stored one, or the state after an event, rebuilt from the log."""

    query_class: ClassVar = SnapshotQuery

    def get(self, request: Request, **_: Any) -> HttpResponse:
        flow_run = self.get_flow_run()
        seq = _checked_seq(self.query, flow_run.log.last_seq)
        snapshot = flow_run.snapshot if seq is None else snapshot_at(flow_run, seq)
        return self.etag_response(mask_rows([to_json(snapshot)])[0])


def _checked_seq(query: Mapping[str, Any], last_seq: int) -> int | None:
    """Return the parameter `seq`, or None. Raises `InvalidParameters` if the log has no such event."""
    seq: int | None = query.get("seq")
    if seq is not None and seq > last_seq:
        raise InvalidParameters([Fault("?seq", "invalid_seq", f"seq: the last event is {last_seq}, not {seq}")])
    return seq
