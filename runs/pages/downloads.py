"""Files of runs: exports of a run and of the list of runs, fixtures of runs and flow runs, and pictures of messages."""

from __future__ import annotations

from uuid import UUID

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse

from agentops.accounts.access import Action, project_for
from agentops.accounts.requests import principal_of
from agentops.base.http.methods import require_safe
from agentops.base.refusals import InvalidQuery
from runs.access import run_for
from runs.errors import RunNotFound
from runs.exports.list_files import ListFormat, download, export_list
from runs.exports.run_files import RunFormat, export_run
from runs.fixtures.fixture_files import dumps
from runs.models import AgentRun, AgentRunMessage, FlowRun
from runs.pages.content.images import picture
from runs.pages.run.any_run import run_of
from runs.queries.flow_fixtures import record_flow_of_request
from runs.queries.run_fixture import record
from runs.queries.run_lists.run_filters import Filters


@require_safe
def run(request: HttpRequest, run_id: UUID, file_format: str) -> StreamingHttpResponse:
    """Send a run as a file."""
    if file_format not in list(RunFormat):
        raise InvalidQuery(f"the format must be one of {', '.join(RunFormat)}, not {file_format[:64]!r}")
    runs = AgentRun.objects.select_related("project", "log")
    exported = run_for(principal_of(request), run_id, Action.EXPORT, among=runs)
    return download(export_run(exported, RunFormat(file_format)))


@require_safe
def index(request: HttpRequest, project: str, file_format: str) -> StreamingHttpResponse:
    """Send the runs that match the list's filters as a file."""
    if file_format not in list(ListFormat):
        raise InvalidQuery(f"the format must be one of {', '.join(ListFormat)}, not {file_format[:64]!r}")
    owner = project_for(principal_of(request), project, Action.EXPORT)
    return download(export_list(owner, Filters.parse(request.GET), ListFormat(file_format)))


@require_safe
def fixture(request: HttpRequest, **url: UUID) -> HttpResponse:
    """Return the conversation of a run as a fixture; for a flow run, a ZIP archive with a fixture of each agent node.

    Raises NothingRecorded before the first response of the model, and TooManyVisits.
    """
    run = run_of(principal_of(request), url)
    if isinstance(run, FlowRun):
        archive, name = record_flow_of_request(run).as_zip(), f"flow-run-{run.pk}.fixtures.zip"
        response = HttpResponse(archive, content_type="application/zip")
    else:
        text, name = dumps(record(run).fixture), f"run-{run.pk}.fixture.json"
        response = HttpResponse(text, content_type="application/json")
    response.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    return response


#: If a browser treated the bytes as a document, this policy would keep it from running or loading anything.
POLICY = "default-src 'none'; sandbox"


@require_safe
def media(request: HttpRequest, run_id: UUID, message_id: UUID, index: int) -> HttpResponse:
    """Return a picture of a message. `index` counts its stored media, from 0. Raises RunNotFound."""
    run = run_for(principal_of(request), run_id)
    message = AgentRunMessage.objects.filter(run=run, pk=message_id).only("content").first()
    medium = picture(message.content, index) if message is not None else None
    if medium is None:
        raise RunNotFound("picture not found")
    media_type, data = medium
    response = HttpResponse(data, content_type=media_type)
    response.headers["Content-Security-Policy"] = POLICY
    response.headers["X-Content-Type-Options"] = "nosniff"
    name = f"picture-{index}.{media_type.partition('/')[2]}"
    response.headers["Content-Disposition"] = f'inline; filename="{name}"'
    return response
