"""Runs as files and as fixtures: `…/export`, `…/fixture`, `…/fixtures`, and the JSON Schema of fixtures."""

from __future__ import annotations

from typing import Any, ClassVar

from django.http import HttpResponse, StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework.request import Request

from agentops.accounts.access import Action
from runs.api.base_views import ApiView
from runs.api.requests.bodies import Choice
from runs.api.requests.pagination import map_of, object_of
from runs.api.requests.queries import ExportFilterQuery, QuerySerializer
from runs.exports.list_files import ListFormat, download, export_list
from runs.exports.run_files import RunFormat, export_run
from runs.fixtures.fixture_files import dumps, json_schema
from runs.queries.flow_fixtures import record_flow_of_request
from runs.queries.json_columns import to_json
from runs.queries.run_fixture import record
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


#: The answers of the exports, except JSON.
_FILES = {
    (200, media_type): OpenApiResponse(OpenApiTypes.BINARY, "The file.")
    for media_type in ("application/x-ndjson", "text/csv", "text/html")
}


class _FileView(ApiView):
    """A view that sends a file while the file is generated."""

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


_ABOUT = {
    "type": "object",
    "properties": {
        "title": {"type": "string"},
        "origin": {"type": "string", "description": "The run that was recorded."},
        "notes": {
            "type": "string",
            "description": "Parts of the run that the fixture omits. Absent if there are none.",
        },
    },
    "required": ["title"],
}
FIXTURE = object_of(
    {
        "about": _ABOUT,
        "calls": {
            "type": "array",
            "items": {"type": "object", "additionalProperties": True},
            "description": "The model calls in order, as `/api/schema/fixtures` describes them.",
        },
    }
)
_RECORDING = object_of(
    {
        "flow_id": {"type": "string"},
        "fixtures": map_of(FIXTURE) | {"description": "The fixtures by node."},
        "answers": {
            "type": "object",
            "additionalProperties": {"type": "array", "items": {}},
            "description": "The answers of people, by human node, in the order of its visits.",
        },
        "notes": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Parts of the flow run that the fixtures omit. Notes about a node are in its fixture.",
        },
    }
)


@extend_schema(responses={200: FIXTURE})
class FixtureView(ApiView):
    """Get the conversation of a run as a fixture, which the provider `fixture` plays. Secrets are masked.

    409 `nothing_recorded` if the run has no answer of a model yet.
    """

    def get(self, request: Request, **_: Any) -> HttpResponse:
        return self.etag_response(dumps(record(self.get_run()).fixture))


@extend_schema(responses={200: _RECORDING})
class FlowRunFixtures(ApiView):
    """Get a fixture for each agent node of a flow run, which the provider `fixture` plays. Secrets are masked.

    409 `nothing_recorded` if no agent node has an answer of a model yet, and `too_many_visits` if there were more than
    200 visits of agent nodes: `agentops record_fixtures` has no such limit.
    """

    def get(self, request: Request, **_: Any) -> HttpResponse:
        return self.etag_response(to_json(record_flow_of_request(self.get_flow_run()).as_json()))


class FixtureSchema(ApiView):
    """The JSON Schema of fixture files, for every authenticated caller."""

    schema = None
    accepts_any_type = True

    def get(self, request: Request) -> HttpResponse:
        return self.etag_response(to_json(json_schema()))
