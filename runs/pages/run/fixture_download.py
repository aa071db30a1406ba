"""A run as a fixture, and a flow run as one for each agent node, to download."""

from __future__ import annotations

from uuid import UUID

from django.http import HttpRequest, HttpResponse

from agentops.accounts.requests import principal_of
from agentops.base.http.methods import require_safe
from runs.fixtures.fixture_files import dumps
from runs.models import FlowRun
from runs.pages.run.any_run import run_of
from runs.queries.flow_fixtures import record_flow_of_request
from runs.queries.run_fixture import record


@require_safe
def fixture(request: HttpRequest, **url: UUID) -> HttpResponse:
    """Return the conversation of a run as a fixture file; of a flow run, a ZIP archive with a file for each agent node.

    Raises `NothingRecorded` before the first answer, and `TooManyVisits`.
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
