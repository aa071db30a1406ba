"""`…/agent-runs/{run}/events/stream`: the events of a run, or a flow run, as server-sent events.

The view authorises and parses; timeline.live serves the stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar
from uuid import UUID

from django.http import HttpResponse
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework.request import Request

from agentops.base.http.foreign_origin import refuse_foreign
from runs.api.ag_ui import AG_UI
from runs.api.base_views import ApiView
from runs.api.requests.bodies import StringField
from runs.api.requests.queries import Dialect, QuerySerializer
from runs.queries.agent_dialect import agent_texts
from timeline.access import Permit
from timeline.live.cursor import cursor_of
from timeline.live.rendering import JSON, Piece, Rendering
from timeline.live.response import log_stream
from timeline.models import Event

ONE_EACH = {"type": "string", "description": "Server-sent events, one JSON object each."}
STREAM: dict[Any, Any] = {
    (200, "text/event-stream"): OpenApiResponse(ONE_EACH, "Success."),
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


#: The agent dialect, one message per event, and one per failure.
AGENT = Rendering("agent", _in_agent_dialect)
_RENDERINGS = {None: JSON, "agent": AGENT, "ag-ui": AG_UI}


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
    #: Clients that open a stream manually send no Accept header, or another type.
    accepts_any_type = True

    def get(self, request: Request, **_: Any) -> HttpResponse:
        refuse_foreign(request)
        run = self.get_any_run()
        session_key = request.session.session_key if self.principal.user_id is not None else None
        permit = Permit(self.principal, run.project_id, session_key)
        rendering = _RENDERINGS[self.query.get("dialect")]
        return log_stream(run.log, cursor_of(request), rendering, permit, ended=run.state.terminal)
