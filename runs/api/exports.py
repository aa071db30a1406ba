"""`…/agent-runs/{run}/export` and `…/agent-runs/export`: a run and a list of runs as files."""

from __future__ import annotations

from typing import Any, ClassVar

from django.http import StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework.request import Request

from agentops.accounts.access import Action
from runs.api.base_views import ApiView
from runs.api.requests.bodies import Choice
from runs.api.requests.queries import QuerySerializer
from runs.api.requests.run_filter_query import ExportFilterQuery
from runs.exports.export_file import download
from runs.exports.list_files import ListFormat, export_list
from runs.exports.run_files import RunFormat, export_run
from runs.queries.run_lists.run_filters import Filters


class RunExportQuery(QuerySerializer):
    format = Choice(
        choices=[each.value for each in RunFormat],
        required=False,
        default=RunFormat.JSON.value,
        help_text="`json` (default): everything. `events`: JSONL. `messages`, `tool-calls`: CSV. `html`: a report.",
    )


class ListExportQuery(ExportFilterQuery):  # type: ignore[misc]
    format = Choice(
        choices=[each.value for each in ListFormat],
        required=False,
        default=ListFormat.JSONL.value,
        help_text="Default: `jsonl`.",
    )


#: By media type. A file of JSON is an object; all others are text.
_FILES = {
    (200, media_type): OpenApiResponse(OpenApiTypes.BINARY, "The file.")
    for media_type in ("application/x-ndjson", "text/csv", "text/html")
}


class _FileView(ApiView):
    """A view that sends a file while it is made."""

    accepts_any_type = True


@extend_schema(responses=_FILES | {(200, "application/json"): OpenApiResponse(OpenApiTypes.OBJECT, "The file.")})
class RunExport(_FileView):
    """Get a run as a file. Secrets are masked."""

    query_class: ClassVar = RunExportQuery

    def get(self, request: Request, **_: Any) -> StreamingHttpResponse:
        return download(export_run(self.get_run(Action.EXPORT), RunFormat(self.query["format"])))


@extend_schema(responses=_FILES)
class ListExport(_FileView):
    """Get all matching runs as a file, newest first, with the filters of the run list on the site."""

    query_class: ClassVar = ListExportQuery

    def get(self, request: Request, **_: Any) -> StreamingHttpResponse:
        project = self.get_project(Action.EXPORT)
        return download(export_list(project, Filters.parse(request.query_params), ListFormat(self.query["format"])))
