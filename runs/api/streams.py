"""`…/agent-runs/{run}/events/stream`: a run's events as they come, as JSON.

A door: authorises, parses, and answers with a stream, which timeline.live serves.
"""

from __future__ import annotations

from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET

from agentops.projects.access import Action, project_for
from runs.api.principals import principal_of
from runs.errors import RunNotFound
from runs.models import AgentRun
from timeline.access import Permit
from timeline.live.cursor import cursor_of
from timeline.live.rendering import JSON
from timeline.live.response import log_stream, refuse_foreign


# Changes nothing, so it asks for no token; otherwise a POST would be told of the token and not of the method.
@csrf_exempt
@require_GET
def events(request: HttpRequest, project: str, run_id: UUID) -> HttpResponse:
    """Replay after `Last-Event-ID` or `?afterSeq=`, then whatever comes, until the run has ended."""
    refuse_foreign(request)
    principal = principal_of(request)
    owner = project_for(principal, project, Action.READ)
    run = AgentRun.objects.select_related("log").filter(project=owner, pk=run_id).first()
    if run is None:
        raise RunNotFound("no such run")
    session_key = request.session.session_key if principal.user_id is not None else None
    permit = Permit(principal, owner.pk, session_key)
    return log_stream(run.log, cursor_of(request), JSON, permit, ended=run.state.terminal)
