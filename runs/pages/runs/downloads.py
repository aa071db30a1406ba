"""Files to download: a run, and the list of runs."""

from __future__ import annotations

from uuid import UUID

from django.http import HttpRequest, StreamingHttpResponse

from agentops.accounts.access import Action, project_for
from agentops.accounts.requests import principal_of
from agentops.base.http.methods import require_safe
from agentops.base.refusals import InvalidQuery
from runs.access import run_for
from runs.exports.export_file import download
from runs.exports.list_files import ListFormat, export_list
from runs.exports.run_files import RunFormat, export_run
from runs.models import AgentRun
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
