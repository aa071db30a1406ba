"""`…/agents/{agent}/ag-ui`: an AG-UI request, answered with the events of its run.

The stream is served by timeline.live, as that of `…/agent-runs/{run}/events/stream?dialect=ag-ui`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID

from django.http import HttpResponse
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework.request import Request

from agentops.projects import incarnations
from agentops.projects.access import Action
from runs.actions import ag_ui_runs
from runs.api.ag_ui.run_input import RunAgentInput, request_of
from runs.api.agent_views import agent_in
from runs.api.base_views import ApiView
from runs.api.requests.bodies import LongTextParser, document_of
from runs.models import AgentRun
from runs.queries.ag_ui_dialect import ag_ui_texts
from runs.queries.json_columns import to_json
from timeline.access import Permit
from timeline.dialects.ag_ui_blocks import ends_run
from timeline.live.cursor import StreamCursor, cursor_of
from timeline.live.rendering import Piece, Rendering
from timeline.live.response import log_stream
from timeline.models import Event

#: What a stream that cannot continue says of it, as AG-UI has no events for streams.
_NOTICES = {
    "stream-reset": "the position in the stream is no longer valid: send the request again",
    "auth-revoked": "access to the run has ended",
}


def _in_ag_ui(log_id: UUID, batch: Sequence[Event], *, has_snapshots: bool = False) -> list[Piece]:
    of_events = ag_ui_texts(log_id, batch, has_snapshots=has_snapshots)
    return [{"message": texts} if texts else {} for texts in of_events]


def _notice(name: str, data: str, cursor: StreamCursor | None) -> bytes:
    """Return a notice as an error of the AG-UI run. The end of a log needs none: AG-UI has said that the run ended."""
    if name not in _NOTICES:
        return b""
    error = {"type": "RUN_ERROR", "message": _NOTICES[name], "code": name.replace("-", "_")}
    return f"data: {to_json(error)}\n\n".encode()


#: AG-UI. A stream has one AG-UI run: its clients wait for the end of the stream, and do not reopen it by themselves.
AG_UI = Rendering("ag-ui", _in_ag_ui, closes_after=ends_run, notice=_notice, is_reopened=False)
#: For a client that does not have the conversation of its thread.
AG_UI_WITH_SNAPSHOTS = replace(AG_UI, name="ag-ui-with-snapshots", render=partial(_in_ag_ui, has_snapshots=True))
_LAST_EVENT_ID = OpenApiParameter(
    "Last-Event-ID", str, OpenApiParameter.HEADER, description="Continue after the event with this `id`."
)
_EVENTS = {"type": "string", "description": "Server-sent events, an AG-UI event each."}


class AgUiRunView(ApiView):
    """Run an agent for an AG-UI client."""

    http_method_names = ["post"]
    serializer_class = RunAgentInput
    parser_classes = [LongTextParser]
    accepts_any_type = True
    #: The client's `runId` is the key.
    takes_idempotency_key = False

    @extend_schema(
        parameters=[_LAST_EVENT_ID],
        responses={(200, "text/event-stream"): OpenApiResponse(_EVENTS, "The events of the run.")},
    )
    def post(self, request: Request, **_: Any) -> HttpResponse:
        """Start or continue the run of an AG-UI thread, and stream its events.

        The stream ends with `RUN_FINISHED` or `RUN_ERROR`. The run itself does not depend on it: after a lost
        connection, send the same request again. It does nothing twice, and streams the events from their beginning,
        or after `Last-Event-ID`.
        """
        project = self.get_project(Action.OPERATE)
        agent = agent_in(project, self.kwargs["agent"])
        body = self.get_serializer(data=document_of(request))
        body.is_valid(raise_exception=True)
        if body.validated_data["resume"]:
            self.get_project(Action.APPROVE)
        started = ag_ui_runs.start(self.principal, project, agent, request_of(body.validated_data))
        run = AgentRun.objects.select_related("log").get(pk=started.run_id)
        session_key = request.session.session_key if self.principal.user_id is not None else None
        permit = Permit(self.principal, project.pk, session_key)
        after = cursor_of(request)
        if after.seq < started.after_seq:
            after = StreamCursor(started.after_seq, incarnations.current())
        rendering = AG_UI if body.validated_data["has_conversation"] else AG_UI_WITH_SNAPSHOTS
        return log_stream(run.log, after, rendering, permit, ended=run.state.terminal)
