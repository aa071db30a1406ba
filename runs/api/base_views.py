"""The base classes of the API's views: DRF's classes with validated query parameters, and with access checks."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from uuid import UUID

from django.http import HttpResponse
from django.utils.http import parse_etags
from rest_framework.generics import GenericAPIView, ListAPIView
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request

from agentops.accounts import rate_limits
from agentops.accounts.access import Action, Principal, project_for, project_of_key
from agentops.accounts.models import Project
from agentops.base.http.api_version import Deprecation
from runs.access import flow_run_in, run_in
from runs.api.callers import MaskedJSONRenderer
from runs.api.problems import JSON
from runs.api.requests.pagination import Fetch
from runs.api.requests.queries import PageQuery, QuerySerializer, query_of
from runs.models import AgentRun, FlowRun
from runs.queries.json_lists import Listing, Rows, RowSpan, Where
from runs.queries.record_columns import RunKey, find_run_key, of_run_in

#: The `security_schemes` of views that do not accept API keys.
SESSION_ONLY = ("session",)


class ApiView(GenericAPIView):  # type: ignore[misc]
    """A view of the API, with the default classes of the setting REST_FRAMEWORK.

    Errors are raised as `Refusal`, which agentops.base.http.middleware.Refusals turns into an answer.
    """

    http_method_names = ["get", "head", "post", "put", "patch", "delete"]
    #: The query parameters of GET and HEAD.
    query_class: ClassVar[type[QuerySerializer]] = QuerySerializer
    #: The query parameters of other methods, which usually have none.
    write_query_class: ClassVar[type[QuerySerializer]] = QuerySerializer
    #: Whether the Accept header is ignored, because the view has only one media type.
    accepts_any_type: ClassVar[bool] = False
    #: The names of the accepted credentials in the OpenAPI document.
    security_schemes: ClassVar[Sequence[str]] = ("key", "session")
    #: Whether a repeated POST with the same `Idempotency-Key` gets the first answer again.
    takes_idempotency_key: ClassVar[bool] = True
    #: Method → the announcement that the operation will be removed.
    deprecations: ClassVar[Mapping[str, Deprecation]] = {}
    #: The validated query parameters.
    query: dict[str, Any]
    #: The project of the URL, after `get_project`. Cursors of lists are bound to it.
    project_id: UUID | None = None

    @property
    def principal(self) -> Principal:
        principal: Principal = self.request.user
        return principal

    def get_security_schemes(self, method: str) -> Sequence[str]:
        """Return the names of the credentials that a method accepts, for the OpenAPI document."""
        return self.security_schemes

    @property
    def default_response_headers(self) -> dict[str, str]:
        """No headers: unlike DRF's views, these send the Allow header with 405 only."""
        return {}

    def perform_content_negotiation(self, request: Request, force: bool = False) -> Any:
        return super().perform_content_negotiation(request, force or self.accepts_any_type)

    def perform_authentication(self, request: Request) -> None:
        # Counted before the authentication, so that attempts to guess API keys are limited.
        rate_limits.count_address(request._request)
        super().perform_authentication(request)

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        self.query = query_of(self.get_query_class(request.method), request.query_params)

    def get_query_class(self, method: str) -> type[QuerySerializer]:
        """Return the serializer of the query parameters of a method."""
        return self.query_class if method in ("GET", "HEAD") else self.write_query_class

    def get_project(self, action: Action = Action.READ) -> Project:
        """Return the project of the URL, if the caller may do `action` in it. Raises `Refusal`.

        A project that the caller may not see gets the same refusal as an unknown one, after the same queries.
        """
        name, key = self.kwargs["project"], self.request.auth
        # If the URL names the project of the API key, no query is needed: it was loaded together with the key.
        project = (key and project_of_key(key, name, action)) or project_for(self.principal, name, action)
        self.project_id = project.pk
        return project

    def get_run(self, action: Action = Action.READ) -> AgentRun:
        """Return the run of the URL, with its project and log. Raises `Refusal`.

        A run of another project is refused like an unknown one, even if the caller may see it in that project.
        """
        project = self.get_project(action)
        return run_in(project, self.kwargs["run_id"], among=AgentRun.objects.select_related("log"))

    def get_flow_run(self, action: Action = Action.READ) -> FlowRun:
        """Return the flow run of the URL, with its project and log. Raises what `get_run` raises."""
        return flow_run_in(self.get_project(action), self.kwargs["flow_run_id"])

    def get_any_run(self, action: Action = Action.READ) -> AgentRun | FlowRun:
        """Return the run or flow run of the URL."""
        return self.get_flow_run(action) if "flow_run_id" in self.kwargs else self.get_run(action)

    def get_run_key(self) -> RunKey:
        """Return the columns of the URL's run that list views need. Raises what `get_run` raises."""
        project, run_id = self.get_project(), self.kwargs["run_id"]
        run_key = find_run_key(project.pk, run_id)
        if run_key is None:
            # Raises the error for an unknown run, unless the run was created in the meantime.
            run = run_in(project, run_id, among=AgentRun.objects.select_related("log"))
            run_key = RunKey(run.pk, project.pk, run.log.last_seq)
        return run_key

    def etag_response(self, text: str, content_type: str = JSON) -> HttpResponse:
        """Return a text, by default JSON, with its ETag, or 304 if the client has this text.

        An invalid If-None-Match is ignored.
        """
        tag = f'"{hashlib.sha256(text.encode()).hexdigest()[:32]}"'
        client_tags = parse_etags(self.request.headers.get("If-None-Match", ""))
        # The middleware that compresses answers adds the prefix of weak tags.
        if "*" in client_tags or tag in {each.removeprefix("W/") for each in client_tags}:
            return HttpResponse(status=304, headers={"ETag": tag})
        return HttpResponse(text, content_type=content_type, headers={"ETag": tag})

    def masked_response(self, data: Any) -> HttpResponse:
        """Return the data of a serializer as JSON with its ETag, with secrets masked."""
        return self.etag_response(MaskedJSONRenderer().render(data).decode())


class SecretOnce(ApiView):
    """A view whose answers to changes contain a new secret, which is not masked."""

    def get_renderers(self) -> list[Any]:
        is_read = self.request is None or self.request.method in ("GET", "HEAD")
        return list(super().get_renderers()) if is_read else [JSONRenderer()]


class LinksShown(ApiView):
    """A view whose answers contain links with secret tokens, which are not masked."""

    def get_renderers(self) -> list[Any]:
        return [JSONRenderer()]


class ListView(ListAPIView, ApiView):  # type: ignore[misc]
    """A list of rows of a model, which a serializer writes as JSON."""

    query_class: ClassVar = PageQuery


class HotListView(ApiView):
    """A long list that is requested often: the database writes its rows as JSON."""

    query_class: ClassVar = PageQuery

    def get(self, request: Request, **_: Any) -> HttpResponse:
        rows = self.paginate_queryset(self.get_rows())
        response: HttpResponse = self.paginator.text_response(rows)
        return response

    def get_rows(self) -> Fetch:
        """Return the function that reads the rows of a page."""
        raise NotImplementedError


class RecordListView(HotListView):
    """A long list of records that belong to the run of the URL."""

    listing: ClassVar[Listing]
    #: The listing's column with the ID of the run.
    run_column: ClassVar[str]

    def get_where(self) -> Where:
        """Return the conditions of the rows."""
        return of_run_in(self.get_project().pk, self.kwargs["run_id"], self.run_column)

    def get_rows(self) -> Fetch:
        where = self.get_where()

        def fetch(span: RowSpan) -> Rows:
            rows = self.listing.page(where, span)
            if not len(rows):
                self.get_run_key()  # raises the error for an unknown run
            return rows

        return fetch
