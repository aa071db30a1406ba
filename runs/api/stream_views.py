"""`…/agent-runs/{run}/events/stream`: a run's events as they come, as JSON.

A door: authorises, parses, and answers with a stream, which timeline.live serves.
"""

from __future__ import annotations

from typing import Any, ClassVar

from django.http import HttpRequest, HttpResponse

from runs.api.base_views import ApiView
from runs.api.requests.parameters import Parameter
from timeline.access import Permit
from timeline.live.cursor import cursor_of
from timeline.live.rendering import JSON
from timeline.live.response import log_stream, refuse_foreign

AFTER_SEQ = Parameter(
    name="afterSeq",
    code="invalid_after_seq",
    description="Events after the one with this number. A `Last-Event-ID` header wins: only it is fresh when a "
    "browser reconnects.",
    example="50",
)


class EventStreamView(ApiView):
    """Replay after `Last-Event-ID` or `?afterSeq=`, then whatever comes, until the run has ended.

    Every event is sent once, in the order of `seq`, up to the terminal one (`run.completed`, `run.failed`,
    `run.stopped` or `run.resumed`). Then comes an event named `end`, and the stream closes. An event that is stored
    after the terminal one, such as the output of a tool that answered late, is not sent to a stream that has ended: it
    has a higher `seq`, and is given by `…/events?afterSeq=` or by opening the stream again with the last id, which
    sends what was added and `end` again. Whoever has everything of an ended run is answered 204. A stream may also
    close without `end`, after ten minutes at most: open it again with the last id. `stream-reset` says that the events
    before are not those of this run any more: begin anew. `auth-revoked` says that access has ended.
    """

    http_method_names = ["get"]
    parameters: ClassVar = {"get": (AFTER_SEQ,)}
    answers: ClassVar = {"get": {"type": "string", "description": "Server-sent events, one JSON object each."}}
    #: Whoever opens a stream by hand asks for no type, or for another.
    media_type = None

    def get(self, request: HttpRequest, **_: Any) -> HttpResponse:
        refuse_foreign(request)
        run = self.get_run()
        session_key = request.session.session_key if self.principal.user_id is not None else None
        permit = Permit(self.principal, run.project_id, session_key)
        return log_stream(run.log, cursor_of(request), JSON, permit, ended=run.state.terminal)
