"""The base of the API's views: who calls, by which method, with which parameters; and the way to projects and runs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.http.response import HttpResponseBase
from django.utils.http import parse_etags
from rest_framework.authentication import CSRFCheck
from rest_framework.exceptions import APIException
from rest_framework.parsers import JSONParser
from rest_framework.renderers import JSONRenderer
from rest_framework.views import APIView

from agentops.projects.access import ANONYMOUS, Action, Principal, project_for, project_of_key
from agentops.projects.errors import AuthRequired
from agentops.projects.models import Project
from agentops.projects.rate_limits import limits
from runs.access import run_in
from runs.api.principals import Caller, caller_of
from runs.api.problems import CsrfFailed, MethodNotAllowed, NotAcceptable, problem_of
from runs.api.requests.parameters import Parameter, Query, parsed
from runs.models import AgentRun
from runs.queries.record_columns import Holder, holder

SAFE = ("GET", "HEAD")
JSON = "application/json"


class ApiView(APIView):  # type: ignore[misc]
    """A view of the API: one method a verb, as in DRF, given Django's own request.

    DRF describes it (for the OpenAPI document) and lends its serializers; the way of a request is short and ours:
    method, Accept, credential, rate, CSRF token, parameters, verb. What any of them refuses, and what the floors below
    raise with a `code` and a `status`, is answered by agentops.http.middleware.Refusals.
    """

    http_method_names = ["get", "head", "post", "put", "patch", "delete"]
    renderer_classes = (JSONRenderer,)
    parser_classes = (JSONParser,)
    authentication_classes = ()
    permission_classes = ()
    metadata_class = None

    #: Verb (in lower case) → the parameters that its query may have. HEAD has those of GET.
    parameters: ClassVar[Mapping[str, Sequence[Parameter]]] = {}
    #: Verb → the JSON schema of what it answers, for the OpenAPI document.
    answers: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    #: Verb → the body that it takes (a class of runs.api.requests.bodies).
    takes: ClassVar[Mapping[str, Any]] = {}
    #: Verb → the statuses of what it answers, and what each says; 200 alone where there is nothing to tell.
    statuses: ClassVar[Mapping[str, Mapping[int, str]]] = {}
    #: Verb → what it does, in a line; where it is not the class that says it.
    summaries: ClassVar[Mapping[str, str]] = {}
    #: Whether the OpenAPI document speaks of it.
    documented: ClassVar[bool] = True
    #: What an Accept header must not exclude; None where it is not asked.
    media_type: ClassVar[str | None] = JSON

    request: HttpRequest
    caller: Caller
    principal: Principal
    #: The parameters by name: `self.query["limit"]`.
    query: Query

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        verb = (request.method or "").lower()
        handler = getattr(self, verb, None) if verb in self.http_method_names else None
        if handler is None:
            raise MethodNotAllowed(request.method, self.allowed_methods)
        if self.media_type and not accepts(request.headers.get("Accept"), self.media_type):
            raise NotAcceptable
        limits.count_address(request)
        self.caller = caller_of(request)
        self.principal = self.caller.principal
        limits.count_principal(request, self.principal)
        if self.principal == ANONYMOUS:
            raise AuthRequired
        # A key is no ambient credential: no other site can make a browser send one.
        if request.method not in SAFE and self.principal.key_id is None:
            _require_csrf_token(request)
        self.query = parsed(request.GET, self.parameters.get("get" if verb == "head" else verb, ()))
        try:
            answer: HttpResponseBase = handler(request, *args, **kwargs)
        except APIException as error:
            raise problem_of(error) from error
        return answer

    def get_project(self, action: Action = Action.READ) -> Project:
        """The project of the address. A foreign one is refused as an unknown one is, after the same queries."""
        named, key = self.kwargs["project"], self.caller.key
        # The row of the key was read a moment ago, and says it all where it is the right one.
        return (key and project_of_key(key, named, action)) or project_for(self.principal, named, action)

    def get_run(self, action: Action = Action.READ, *, among: QuerySet[AgentRun] | None = None) -> AgentRun:
        """The run of the address, with its project and log, or `among` the rows as the view wants them loaded.

        A run of another project is refused as an unknown one is, whether the caller might see it there or not.
        """
        project = self.get_project(action)
        runs = AgentRun.objects.select_related("log") if among is None else among
        run = run_in(project, self.kwargs["run_id"], among=runs)
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

    def answer(
        self, data: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None
    ) -> HttpResponse:
        """JSON, in UTF-8 as it is: half of what agents write is not ASCII."""
        dumps = {"ensure_ascii": False, "separators": (",", ":")}
        return JsonResponse(data, status=status, headers=dict(headers or {}), json_dumps_params=dumps)


def accepts(header: str | None, media_type: str) -> bool:
    """Whether an Accept header lets us answer in this type; without one everything is fine."""
    if header is None or header.strip() in ("", "*/*", media_type):
        return True
    # The most exact word for it counts: `text/html, */*;q=0` wants no JSON, `application/json, */*;q=0` does.
    words = (media_type, media_type.partition("/")[0] + "/*", "*/*")
    found = {kind: quality for kind, quality in map(_accepted, header.split(",")) if kind in words}
    return next((found[word] > 0 for word in words if word in found), False)


def _accepted(item: str) -> tuple[str, float]:
    kind, *parameters = (part.strip().lower() for part in item.split(";"))
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return kind, float(value)
            except ValueError:
                break
    return kind, 1.0


def _require_csrf_token(request: HttpRequest) -> None:
    check = CSRFCheck(lambda request: None)
    check.process_request(request)
    if check.process_view(request, None, (), {}):
        raise CsrfFailed
