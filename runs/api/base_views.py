"""The base of the API's views: DRF's, with queries that are checked, and the way to projects and runs."""

from __future__ import annotations

import hashlib
from typing import Any, ClassVar
from uuid import UUID

from django.http import HttpResponse
from django.utils.http import parse_etags
from rest_framework.generics import GenericAPIView, ListAPIView
from rest_framework.request import Request

from agentops.projects.access import Action, Principal, project_for, project_of_key
from agentops.projects.models import Project
from agentops.projects.rate_limits import limits
from runs.access import run_in
from runs.api.problems import JSON
from runs.api.requests.pagination import Fetch
from runs.api.requests.queries import PageQuery, QuerySerializer, query_of
from runs.models import AgentRun
from runs.queries.record_columns import Holder, holder


class ApiView(GenericAPIView):  # type: ignore[misc]
    """A view of the API. What it is made of is said by REST_FRAMEWORK in the settings.

    What it refuses is raised with a `code` and a `status`, and answered by agentops.http.middleware.Refusals.
    """

    http_method_names = ["get", "head", "post", "put", "patch", "delete"]
    #: The parameters of GET and HEAD; other methods have none.
    query_class: ClassVar[type[QuerySerializer]] = QuerySerializer
    #: Whether its answer has one form, whatever an Accept header says.
    any_type: ClassVar[bool] = False
    #: The values of the parameters, by name.
    query: dict[str, Any]
    #: Of the address, once it was looked up.
    project_id: UUID | None = None

    @property
    def principal(self) -> Principal:
        found: Principal = self.request.user
        return found

    @property
    def default_response_headers(self) -> dict[str, str]:
        """None: Allow is said where a method is refused."""
        return {}

    def perform_content_negotiation(self, request: Request, force: bool = False) -> Any:
        return super().perform_content_negotiation(request, force or self.any_type)

    def perform_authentication(self, request: Request) -> None:
        # Whoever guesses keys is counted too.
        limits.count_address(request._request)
        super().perform_authentication(request)

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        kind = self.query_class if request.method in ("GET", "HEAD") else QuerySerializer
        self.query = query_of(kind, request.query_params)

    def get_project(self, action: Action = Action.READ) -> Project:
        """The project of the address. A foreign one is refused as an unknown one is, after the same queries."""
        named, key = self.kwargs["project"], self.request.auth
        # The row of the key was read a moment ago, and says it all where it is the right one.
        project = (key and project_of_key(key, named, action)) or project_for(self.principal, named, action)
        self.project_id = project.pk
        return project

    def get_run(self, action: Action = Action.READ) -> AgentRun:
        """The run of the address, with its project and log.

        A run of another project is refused as an unknown one is, whether the caller might see it there or not.
        """
        project = self.get_project(action)
        run = run_in(project, self.kwargs["run_id"], among=AgentRun.objects.select_related("log"))
        run.project = project
        return run

    def look_up_run(self) -> Holder:
        """The run of the address for what it holds; refused as get_run refuses."""
        project, run_id = self.get_project(), self.kwargs["run_id"]
        found = holder(project.pk, run_id)
        if found is None:
            # Says why, unless the run was opened just now.
            run = run_in(project, run_id, among=AgentRun.objects.select_related("log"))
            found = Holder(run.pk, project.pk, run.log.last_seq)
        return found

    def tagged(self, text: str) -> HttpResponse:
        """JSON text with its ETag, or 304 where the caller has it. An If-None-Match that is none changes nothing."""
        tag = f'"{hashlib.sha256(text.encode()).hexdigest()[:32]}"'
        known = parse_etags(self.request.headers.get("If-None-Match", ""))
        # The server compresses after us, and makes a tag weak by that.
        if "*" in known or tag in {one.removeprefix("W/") for one in known}:
            return HttpResponse(status=304, headers={"ETag": tag})
        return HttpResponse(text, content_type=JSON, headers={"ETag": tag})


class ListView(ListAPIView, ApiView):  # type: ignore[misc]
    """A list of a model's rows, each written by a serializer."""

    query_class: ClassVar = PageQuery


class HotListView(ApiView):
    """A list that may be long and is asked for often: its rows are JSON of the database's own making."""

    query_class: ClassVar = PageQuery

    def get(self, request: Request, **_: Any) -> HttpResponse:
        rows = self.paginate_queryset(self.get_rows())
        response: HttpResponse = self.paginator.text_response(rows)
        return response

    def get_rows(self) -> Fetch:
        """What reads the rows."""
        raise NotImplementedError
