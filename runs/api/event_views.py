"""`…/agent-runs/{run}/events`: a page of a run's log. The stream of what comes is in `streams`."""

from __future__ import annotations

import json
from typing import Any, ClassVar
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse

from runs.api.base_views import JSON, ApiView
from runs.api.requests.parameters import LIMIT, WholeParameter
from runs.queries.record_columns import EVENTS, events_after

AFTER_SEQ = WholeParameter(
    name="afterSeq",
    code="invalid_after_seq",
    description="Start after this sequence number (default 0: from the first event). "
    "Beyond the end of the log, `results` is empty, and `last_seq` is the number of the last event.",
    default=0,
    example=50,
)


class Events(ApiView):
    """List the events of a run in order. To poll, pass the last `seq` as `afterSeq`."""

    parameters: ClassVar = {"get": (AFTER_SEQ, LIMIT)}
    answers: ClassVar = {
        "get": {
            "type": "object",
            "properties": {
                "results": {"type": "array", "items": EVENTS.schema()},
                "last_seq": {"type": "integer", "description": "The number of the last event that there is."},
                "next": {"type": ["string", "null"], "format": "uri-reference"},
            },
            "required": ["results", "last_seq", "next"],
        }
    }

    def get(self, request: HttpRequest, **_: Any) -> HttpResponse:
        limit, after, run_id = self.query["limit"], self.query["afterSeq"], self.kwargs["run_id"]
        found, last_seq = events_after(self.get_project().pk, run_id, after, limit + 1)
        rows, url = found.first(limit), None
        if not len(rows):
            last_seq = self.look_up_run().last_seq
        if len(found) > limit:
            pairs = {name: text for name, text in self.query.sent if name != AFTER_SEQ.name}
            url = f"{request.path}?{urlencode({AFTER_SEQ.name: rows.place(-1)[0]} | pairs)}"
        tail = f'"last_seq":{last_seq},"next":{json.dumps(url)}'
        response = HttpResponse(f'{{"results":[{",".join(rows.texts)}],{tail}}}', content_type=JSON)
        if url:
            response.headers["Link"] = f'<{url}>; rel="next"'
        return response
