"""`…/agent-runs/{run}/events`: pages of a run's log. The stream is in stream_views."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from urllib.parse import urlencode

from django.http import HttpResponse
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request

from runs.api.base_views import ApiView
from runs.api.problems import JSON
from runs.api.requests.queries import MAX_INTEGER, Dialect, Limit, QuerySerializer, WholeParameter
from runs.queries.agent_dialect import agent_items
from runs.queries.record_columns import EVENTS, events_after
from timeline import log

#: An event with `dialect=agent`. The fields of each type are at /api/schema/events?dialect=agent.
AGENT_EVENT = {
    "type": "object",
    "properties": {
        "seq": {"type": "integer"},
        "eventId": {"type": "string", "description": "Unique in the run; `seq` is not, beside an `agent:error`."},
        "runId": {"type": "string"},
        "type": {"type": "string"},
        "timestamp": {"type": "integer", "description": "Milliseconds since 1970."},
        "ts": {"type": "integer", "description": "As `timestamp`."},
        "nodeId": {"type": "string"},
    },
    "required": ["seq", "eventId", "runId", "type", "timestamp", "ts", "nodeId"],
}
PAGE = {
    "type": "object",
    "properties": {
        "results": {"type": "array", "items": {"anyOf": [EVENTS.schema(), AGENT_EVENT]}},
        "last_seq": {"type": "integer", "description": "Sequence number of the newest event."},
        "next": {"type": ["string", "null"], "format": "uri-reference"},
    },
    "required": ["results", "last_seq", "next"],
}


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
    """Return rows that are JSON already, with the URL of the next page; without `next_query` there is none."""
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
        """Return events as JSON texts, their sequence numbers, and the sequence number of the run's last event."""
        rows, last_seq = events_after(self.get_project().pk, self.kwargs["run_id"], after, count)
        if not len(rows):
            last_seq = self.get_run_key().last_seq
        return rows.items, [key[0] for key in rows.keys], last_seq

    def _read_dialect(self, after: int, count: int) -> tuple[list[str], list[Any], int]:
        run_key = self.get_run_key()
        batch = log.read(run_key.pk, after=after, limit=count)
        return agent_items(run_key.pk, batch), [event.seq for event in batch], run_key.last_seq
