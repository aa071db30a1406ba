"""`…/agent-runs/{run}/events`: pages of a run's log. The stream is in stream_views."""

from __future__ import annotations

import json
from typing import Any, ClassVar
from urllib.parse import urlencode

from django.http import HttpResponse
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request

from runs.api.base_views import ApiView
from runs.api.problems import JSON
from runs.api.requests.queries import MAX_INTEGER, Limit, QuerySerializer, WholeParameter
from runs.queries.record_columns import EVENTS, events_after

PAGE = {
    "type": "object",
    "properties": {
        "results": {"type": "array", "items": EVENTS.schema()},
        "last_seq": {"type": "integer", "description": "Sequence number of the newest event."},
        "next": {"type": ["string", "null"], "format": "uri-reference"},
    },
    "required": ["results", "last_seq", "next"],
}


class EventsQuery(QuerySerializer):
    afterSeq = WholeParameter(
        0,
        MAX_INTEGER,
        default=0,
        help_text="Start after this sequence number (default 0: from the first event). "
        "Beyond the end of the log, `results` is empty, and `last_seq` is the number of the last event.",
        style={"example": 50},
    )
    limit = Limit()


@extend_schema(responses={200: PAGE})
class Events(ApiView):
    """List the events of a run in order. To poll, pass the last `seq` as `afterSeq`."""

    query_class: ClassVar = EventsQuery

    def get(self, request: Request, **_: Any) -> HttpResponse:
        limit, after, run_id = self.query["limit"], self.query["afterSeq"], self.kwargs["run_id"]
        batch, last_seq = events_after(self.get_project().pk, run_id, after, limit + 1)
        rows, url = batch.first(limit), None
        if not len(rows):
            last_seq = self.get_run_key().last_seq
        if len(batch) > limit:
            params = {**request.query_params.dict(), "afterSeq": rows.position_of(-1)[0]}
            url = f"{request.path}?{urlencode(sorted(params.items()))}"
        tail = f'"last_seq":{last_seq},"next":{json.dumps(url)}'
        headers = {"Link": f'<{url}>; rel="next"'} if url else {}
        return HttpResponse(f'{{"results":[{",".join(rows.items)}],{tail}}}', content_type=JSON, headers=headers)
