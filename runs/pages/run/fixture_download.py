"""A run as a fixture, to download."""

from __future__ import annotations

from uuid import UUID

from django.http import HttpRequest, HttpResponse

from agentops.accounts.requests import principal_of
from agentops.base.http.methods import require_safe
from runs.access import run_for
from runs.fixtures.fixture_files import dumps
from runs.queries.run_fixture import record


@require_safe
def fixture(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """Return the conversation of a run as a fixture file. Raises `NothingRecorded` before the first answer."""
    run = run_for(principal_of(request), run_id)
    response = HttpResponse(dumps(record(run).fixture), content_type="application/json")
    response.headers["Content-Disposition"] = f'attachment; filename="run-{run.pk}.fixture.json"'
    return response
