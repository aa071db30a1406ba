"""`…/agent-runs/{run}/events` and `…/events/stream`: a run's events in pages, and as server-sent events.

The view of the stream, also used for flow runs, checks the permission and parses the query; timeline.live serves the
stream.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from urllib.parse import urlencode
from uuid import UUID

from django.http import HttpResponse
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework.request import Request

from agentops.base.http.request_origins import refuse_foreign
from runs.api.ag_ui import AG_UI
from runs.api.base_views import ApiView
from runs.api.problems import JSON
from runs.api.requests.bodies import StringField
from runs.api.requests.pagination import object_of
from runs.api.requests.queries import MAX_INTEGER, Dialect, Limit, QuerySerializer, WholeParameter
from runs.queries.agent_dialect import agent_items, agent_texts
from runs.queries.record_columns import EVENTS, events_after
from timeline import log
from timeline.live.access_watch import Permit
from timeline.live.streams import JSON as PLAIN
from timeline.live.streams import Piece, Rendering, cursor_of, log_stream
from timeline.models import Event

#: An event with `dialect=agent`. The fields of each type are at /api/schema/events?dialect=agent.
AGENT_EVENT = object_of(
    {
        "seq": {"type": "integer"},
        "eventId": {
            "type": "string",
            "description": "Unique in the run. An `agent:error` has the `seq` of another event, but its own `eventId`.",
        },
        "runId": {"type": "string"},
        "type": {"type": "string"},
        "timestamp": {"type": "integer", "description": "Milliseconds since 1970."},
        "ts": {"type": "integer", "description": "Same as `timestamp`."},
        "nodeId": {"type": "string"},
    }
)
PAGE = object_of(
    {
        "results": {"type": "array", "items": {"anyOf": [EVENTS.schema(), AGENT_EVENT]}},
        "last_seq": {"type": "integer", "description": "Sequence number of the newest event."},
        "next": {"type": ["string", "null"], "format": "uri-reference"},
    }
)


class AfterQuery(QuerySerializer):
    afterSeq = WholeParameter(
        0,
        MAX_INTEGER,
        default=0,
        help_text="Start after this sequence number (default 0: from the first event). "
        "Beyond the end of the log, `results` is empty, and `last_seq` is the number of the last event.",
        style={"example": 50},
    )
    limit = Limit()


class EventsQuery(AfterQuery):
    dialect = Dialect()


def page_of_log(path: str, rows: Sequence[str], last_seq: int, next_query: Mapping[str, Any] | None) -> HttpResponse:
    """Return a page of rows that are JSON texts. `next_query`: the query of the next page; None if there is none."""
    url = f"{path}?{urlencode(next_query)}" if next_query is not None else None
    headers = {"Link": f'<{url}>; rel="next"'} if url else {}
    tail = f'"last_seq":{last_seq},"next":{json.dumps(url)}'
    return HttpResponse(f'{{"results":[{",".join(rows)}],{tail}}}', content_type=JSON, headers=headers)


@extend_schema(responses={200: PAGE})
class Events(ApiView):
    """List the events of a run in order. To poll, pass the last `seq` as `afterSeq`.

    With `dialect=agent`, the events use the agent dialect, with whole prompts, inputs and outputs. A failure also has
    an `agent:error`, with the `seq` of the event that reports it and another `eventId`.
    """

    query_class: ClassVar = EventsQuery

    def get(self, request: Request, **_: Any) -> HttpResponse:
        limit, after = self.query["limit"], self.query["afterSeq"]
        read = self._read_dialect if self.query.get("dialect") else self._read
        texts, seqs, last_seq = read(after, limit + 1)
        query = None
        if len(texts) > limit:
            query = dict(sorted({**request.query_params.dict(), "afterSeq": seqs[limit - 1]}.items()))
        return page_of_log(request.path, texts[:limit], last_seq, query)

    def _read(self, after: int, count: int) -> tuple[list[str], list[Any], int]:
        """Return events after a sequence number as JSON texts, their numbers, and the last number of the log."""
        rows, last_seq = events_after(self.get_project().pk, self.kwargs["run_id"], after, count)
        if not len(rows):
            last_seq = self.get_run_key().last_seq
        return rows.items, [key[0] for key in rows.keys], last_seq

    def _read_dialect(self, after: int, count: int) -> tuple[list[str], list[Any], int]:
        """Return the same as `_read`, in the agent dialect."""
        run_key = self.get_run_key()
        batch = log.read(run_key.pk, after=after, limit=count)
        return agent_items(run_key.pk, batch), [event.seq for event in batch], run_key.last_seq


_SERVER_SENT_EVENTS = {"type": "string", "description": "Server-sent events, one JSON object each."}
STREAM: dict[Any, Any] = {
    (200, "text/event-stream"): OpenApiResponse(_SERVER_SENT_EVENTS, "Success."),
    204: OpenApiResponse(description="The run has ended and there are no further events."),
}


class StreamQuery(QuerySerializer):
    afterSeq = StringField(
        required=False,
        help_text="Start after this sequence number. A `Last-Event-ID` header takes precedence.",
        style={"example": "50"},
    )
    dialect = Dialect(is_stream=True)


def _in_agent_dialect(log_id: UUID, batch: Sequence[Event]) -> list[Piece]:
    return [{"message": texts} for texts in agent_texts(log_id, batch)]


#: A stream in the agent dialect: one message for each event, and another one for each failure.
AGENT = Rendering("agent", _in_agent_dialect)
_RENDERINGS = {None: PLAIN, "agent": AGENT, "ag-ui": AG_UI}


@extend_schema(responses=STREAM)
class EventStreamView(ApiView):
    """Stream the events of a run: those after `Last-Event-ID` or `afterSeq`, then new ones until the run ends.

    Every event is sent once, in the order of `seq`, up to the terminal one (`run.completed`, `run.failed`,
    `run.stopped` or `run.resumed`). Then an event named `end` is sent, and the stream closes. An event that is stored
    after the terminal one, such as the output of a tool that answered late, has a higher `seq`. It is not sent to a
    stream that has ended. Get it from `…/events?afterSeq=`, or open the stream again with the last `id`: it sends the
    later events, and `end` again. If the run has ended and has no later events, the answer is 204. A stream may also
    close without `end`, after ten minutes at most: open it again with the last `id`. `stream-reset` means that the
    position has become invalid: start again from 0. `auth-revoked` means that access has ended.

    With `dialect=agent`, an event that reports a failure is followed by an `agent:error` with the same `seq`. Only the
    second of the two has the `id`, so that a lost connection skips neither. Recognise repeats by `eventId`.

    With `dialect=ag-ui`, the stream closes after each `RUN_FINISHED` and `RUN_ERROR`, where the run ends or waits for a
    person. Open it again with the last `id` to follow later events.
    """

    http_method_names = ["get"]
    query_class: ClassVar = StreamQuery
    #: Some clients, such as curl, do not accept `text/event-stream` explicitly.
    accepts_any_type = True

    def get(self, request: Request, **_: Any) -> HttpResponse:
        refuse_foreign(request)
        run = self.get_any_run()
        session_key = request.session.session_key if self.principal.user_id is not None else None
        permit = Permit(self.principal, run.project_id, session_key)
        rendering = _RENDERINGS[self.query.get("dialect")]
        return log_stream(run.log, cursor_of(request), rendering, permit, ended=run.state.terminal)
