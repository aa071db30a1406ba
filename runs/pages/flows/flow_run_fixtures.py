"""A flow run as fixtures, to download."""

from __future__ import annotations

from uuid import UUID

from django.http import HttpRequest, HttpResponse

from agentops.accounts.requests import principal_of
from agentops.base.http.methods import require_safe
from runs.access import flow_run_for
from runs.queries.flow_fixtures import record_flow_of_request


@require_safe
def fixtures(request: HttpRequest, flow_run_id: UUID) -> HttpResponse:
    """Return a ZIP archive with a fixture for each agent node.

    Raises `NothingRecorded` before the first answer, and `too_many_visits`.
    """
    flow_run = flow_run_for(principal_of(request), flow_run_id)
    response = HttpResponse(record_flow_of_request(flow_run).as_zip(), content_type="application/zip")
    response.headers["Content-Disposition"] = f'attachment; filename="flow-run-{flow_run.pk}.fixtures.zip"'
    return response
