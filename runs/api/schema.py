"""How drf-spectacular generates the OpenAPI document from the views.

Parameters, bodies and rows are described by the serializers and columns that parse or read them; this module adds the
parts that many operations have in common.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import uritemplate
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import Direction, OpenApiExample, OpenApiParameter

from agentops.accounts import rate_limits
from agentops.base.http import api_version
from runs.api.answers import ProblemAnswer
from runs.api.base_views import ApiView
from runs.api.problems import JSON
from runs.api.requests.bodies import OpenSerializer, StrictSerializer
from runs.api.requests.idempotency import HEADER, REPLAYED

PROBLEM = "application/problem+json"

_IDEMPOTENCY_KEY = OpenApiParameter(
    HEADER,
    location="header",
    description="Chosen by the caller for this request. A repeated request with the same key has no further effect, "
    f"and gets the first answer again (with `{REPLAYED}: true`). Kept for a day.",
    pattern=r"^[!-~]([ -~]{0,253}[!-~])?$",
    examples=[OpenApiExample(HEADER, value="resume-01a1f9cd-1")],
)
_IF_NONE_MATCH = OpenApiParameter(
    "If-None-Match",
    location="header",
    description="ETag of an earlier answer. If nothing has changed, the answer is 304 without a body.",
)
_LAST_EVENT_ID = OpenApiParameter(
    "Last-Event-ID",
    location="header",
    description="`id` of the last event received. Takes precedence over `afterSeq`. An empty header is ignored.",
    pattern=r"^([0-9]{1,18}(\.[0-9]{1,6})?)?$",
)


def _header(name: str, description: str, status: int) -> OpenApiParameter:
    """Return a header of the answers with this status."""
    return OpenApiParameter(name, location="header", description=description, response=[status])


_LINK = _header("Link", "The next and the previous page, as in the body.", 200)
_ETAG = _header("ETag", "ETag of this answer, for If-None-Match.", 200)
_LOCATION = _header("Location", "URL of the new run.", 201)
_WHOLE_HEADER = {"schema": {"type": "integer", "minimum": 0}}
_RATES = {
    rate_limits.LIMIT: {
        "description": "Requests per minute: the limit of the API key, the user or the address, whichever has the "
        "fewest requests left. Without these headers there is no limit.",
        **_WHOLE_HEADER,
    },
    rate_limits.REMAINING: {"description": "Requests left.", **_WHOLE_HEADER},
    rate_limits.RESET: {"description": "Seconds until the limit is reset.", **_WHOLE_HEADER},
}
#: The headers of every answer.
_HEADERS = {
    **_RATES,
    api_version.HEADER: {
        "description": "The version of the API that the site has. A request may name the version that its program was "
        "written for in a header of the same name; versions that are further apart than one are refused with 400.",
        "schema": {"type": "integer", "minimum": 1},
    },
}
_COMMON_HEADERS = {name: {"$ref": f"#/components/headers/{name}"} for name in _HEADERS}
_RETRY_AFTER = {"Retry-After": {"description": "Seconds to wait.", **_WHOLE_HEADER}}

#: Status of a refusal → its description.
REFUSALS = {
    400: "The query, a header or the body cannot be read.",
    401: "The credential is missing, invalid, revoked or expired.",
    403: "The caller's role or scope does not allow it, or a session's request has no CSRF token.",
    404: "Not found, or not visible to the caller.",
    406: "The Accept header excludes JSON.",
    408: "The body did not arrive within 30 seconds.",
    409: "The current state does not allow it, or the first request with this key is still in progress.",
    410: "The run was deleted by retention; the answer says when.",
    413: "The body, or a part of it, is too large.",
    415: "The body is not JSON in UTF-8, or has an encoding other than gzip.",
    422: "The body is invalid; `errors` points to the invalid fields.",
    429: "Too many requests per minute (`rate_limited`), or too many streams. See Retry-After.",
    503: "The database does not answer, or the server is full. Nothing was changed. See Retry-After.",
}
COMPONENTS = {
    "headers": _HEADERS,
    "securitySchemes": {
        "key": {"type": "http", "scheme": "bearer", "description": "An API key: `Authorization: Bearer aok_…`."},
        "session": {
            "type": "apiKey",
            "in": "cookie",
            "name": "sessionid",
            "description": "The session of a logged-in user.",
        },
        "runner": {
            "type": "apiKey",
            "in": "header",
            "name": "x-agent-runner-secret",
            "description": "A secret of the setting AGENT_RUNNER_SECRET.",
        },
    },
}


class OperationSchema(AutoSchema):
    """The description of an operation: a method of an ApiView."""

    view: ApiView
    #: Path parameters that are not IDs.
    PATH_DESCRIPTIONS: ClassVar[Mapping[str, str]] = {
        "project": "A project's ID or slug.",
        "agent": "The agent's name.",
        "flow": "The flow's name.",
        "session": "A run's ID, or its runner's own ID of it.",
        "job": "A run's ID, or its runner's own ID of it.",
        "username": "The member's username.",
    }
    #: Path parameters that may be longer than 63 characters.
    PATH_LENGTHS: ClassVar[Mapping[str, int]] = {"session": 200, "job": 200, "username": 150}

    def get_operation_id(self) -> str:
        name = type(self.view).__name__
        return name[0].lower() + name[1:] + ("" if self.method == "GET" else self.method.capitalize())

    def get_summary(self) -> str:
        return super().get_description().partition("\n")[0]

    def get_description(self) -> str:
        text = super().get_description().partition("\n")[2].strip()
        announcement = self.view.deprecations.get(self.method)
        return f"{announcement.sentence}\n\n{text}".strip() if announcement else text

    def is_deprecated(self) -> bool:
        return self.method in self.view.deprecations

    def get_tags(self) -> list[str]:
        words = [word for word in self.path.split("/") if word and not word.startswith("{")][1:]
        if words[0] == "work":
            return ["work"]
        return [words[1] if len(words) > 1 else words[0]]

    def get_auth(self) -> list[dict[str, list[str]]]:
        return [{scheme: []} for scheme in self.view.get_security_schemes(self.method)]

    def get_override_parameters(self) -> list[Any]:
        """Return the parameters of the path, the query and the headers, and the headers of the answer."""
        path_parameters = [self._path_parameter(name) for name in uritemplate.variables(self.path)]
        if self.method == "POST":
            return [*path_parameters, *([_IDEMPOTENCY_KEY, _LOCATION] if self.view.takes_idempotency_key else [])]
        kind = self.view.query_class
        parameters = [*path_parameters, *([kind] if kind._declared_fields else [])]
        if self._is_stream():
            return [*parameters, _LAST_EVENT_ID]
        if self._has_etag():
            return [*parameters, _IF_NONE_MATCH, _ETAG]
        return [*parameters, _LINK]

    def get_examples(self) -> list[OpenApiExample]:
        """Return the examples of the query parameters."""
        fields = self.view.query_class._declared_fields if self.method == "GET" else {}
        return [
            OpenApiExample(name, value=field.style["example"], parameter_only=(name, "query"))
            for name, field in fields.items()
            if "example" in field.style
        ]

    def _path_parameter(self, name: str) -> OpenApiParameter:
        """Return a parameter of the path: one of PATH_DESCRIPTIONS, or the ID of an object."""
        text = self.PATH_DESCRIPTIONS.get(name)
        schema: Any = (
            {"type": "string", "maxLength": self.PATH_LENGTHS.get(name, 63)}
            if text
            else {"type": "string", "format": "uuid"}
        )
        description = text or f"The {name.removesuffix('_id').replace('_', ' ')}'s ID."
        return OpenApiParameter(name, schema, OpenApiParameter.PATH, description=description)

    def _map_serializer(self, serializer: Any, direction: str, bypass_extensions: bool = False) -> dict[str, Any]:
        """Return the JSON Schema of a serializer: whether it allows other fields, and which are required."""
        mapped: dict[str, Any] = super()._map_serializer(serializer, direction, bypass_extensions)  # type: ignore[no-untyped-call]
        kind = serializer if isinstance(serializer, type) else type(serializer)
        # drf-spectacular would also use an inherited docstring.
        mapped.pop("description", None)
        described = {"description": kind.__doc__} if "__doc__" in vars(kind) and kind.__doc__ else {}
        if issubclass(kind, StrictSerializer | OpenSerializer):
            return {**mapped, **described, "additionalProperties": issubclass(kind, OpenSerializer)}
        for field in mapped["properties"].values():
            field.pop("readOnly", None)
        # All fields of an answer are required, unless its serializer names the required ones.
        required = getattr(getattr(kind, "Meta", None), "always", mapped["properties"])
        return {**mapped, **described, "required": list(required)}

    def _get_response_bodies(self, direction: Direction = "response") -> dict[str, Any]:
        """Return the answers of the view, and add the answer 304, the refusals, and the common headers."""
        answers: dict[str, Any] = super()._get_response_bodies(direction)
        if self._has_etag():
            answers["304"] = {"description": "Unchanged.", "headers": answers["200"]["headers"]}
        problem = {"schema": self.resolve_serializer(ProblemAnswer, direction).ref}
        for status in self._refusals():
            content = answers.get(str(status), {}).get("content", {})
            answers[str(status)] = {"description": REFUSALS[status], "content": {**content, PROBLEM: problem}}
        for name, described in answers.items():
            described["description"] = described["description"] or "Success."
            waits = _RETRY_AFTER if name in ("429", "503") else {}
            described["headers"] = {**described.get("headers", {}), **_COMMON_HEADERS, **waits}
        return answers

    def _refusals(self) -> Sequence[int]:
        """Return the statuses with which the operation may be refused."""
        statuses = [400, 401, 403, 404, 406]
        if self.path.endswith("/projects"):
            statuses = [400, 401, 406] if self.method == "GET" else [400, 401, 403, 406]
        if any(name in self.path for name in ("{run_id}", "{flow_run_id}", "{session}", "{job}")):
            statuses.append(410)
        if self.method in ("POST", "PATCH", "PUT"):
            statuses += [408, 409, 413, 415, 422]
        if self.method == "DELETE":
            statuses.append(409)
        if self._is_stream():
            statuses = [status for status in statuses if status != 406]
        return sorted([*statuses, 429, 503])

    def _is_stream(self) -> bool:
        return self.path.endswith(("/stream", "/ag-ui"))

    def _has_etag(self) -> bool:
        """Return whether the answer has an ETag: single objects have one, lists have none."""
        return self.method == "GET" and not self._is_stream() and "limit" not in self.view.query_class._declared_fields


# --- Examples ---

#: Field name → an example value. Other fields have the example of their format or type.
BY_NAME: dict[str, Any] = {
    "agent_id": "reviewer",
    "flow_id": "review",
    "buckets": {
        "fresh_input": 400,
        "cache_read": 600,
        "cache_write": 0,
        "cache_write_1h": 0,
        "visible_output": 200,
        "reasoning": 100,
    },
    "call_id": "toolu_01",
    "code": "run_not_paused",
    "context": "llm_stream",
    "cost_source": "computed",
    "created_by": "user:ada",
    "effect": "read",
    "error_message": "",
    "error_type": "",
    "event_id": "~412",
    "input": {"path": "README.md"},
    "labels": ["nightly"],
    "message": "Model call started",
    "model": "claude-sonnet-5-5",
    "name": "Shop",
    "next": None,
    "nodeId": "reviewer",
    "output": "# agentops",
    "parent_run_id": None,
    "payload": {"message": "Model call started"},
    "outcome": "applied",
    "details": "status_code: 429, model_name: gpt-5, body: None",
    "phase": "running",
    "previous": None,
    "prompt": "Find the slow query.",
    "provider": "llm",
    "reason": "only paused runs can be resumed; this one is completed",
    "result": "",
    "role": "assistant",
    "run_kind": "session",
    "run_status": "running",
    "runKind": "session",
    "session_id": "",
    "slug": "shop",
    "source": "native",
    "status": "paused",
    "status_reason": "max_steps",
    "summary": "",
    "title": "Find the slow query.",
    "tool_name": "read_file",
    "tools": ["read_file"],
    "type": "llm.turn.start",
}
_ID = "01a1f9cd-b2e1-70db-8478-b8d85dac710b"
_BY_FORMAT = {
    "uuid": _ID,
    "date-time": "2026-11-20T16:45:00.000000Z",
    "decimal": "0.0123",
    "uri-reference": "/api/projects/shop/agent-runs?cursor=…",
}
_BY_TYPE: dict[str, Any] = {"string": "text", "integer": 7, "number": 12.5, "boolean": False, "object": {}, "array": []}


def add_examples(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """Add the common components, and an example to each answer. A postprocessing hook of drf-spectacular."""
    components = result["components"]
    for name, added in COMPONENTS.items():
        components[name] = components.get(name, {}) | added
    for operation in (operation for methods in result["paths"].values() for operation in methods.values()):
        for answer in operation["responses"].values():
            content = answer.get("content", {}).get(JSON)
            if content is not None:
                content["example"] = example_of(content["schema"], components["schemas"])
    return result


def example_of(schema: Mapping[str, Any], schemas: Mapping[str, Any], name: str = "") -> Any:
    """Return an example of a value that the schema allows. `name`: the name of the field."""
    if "$ref" in schema:
        return example_of(schemas[schema["$ref"].rpartition("/")[2]], schemas, name)
    # drf-spectacular writes a reference that has a description as `allOf` with one branch.
    branches = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf")
    if branches:
        return example_of(branches[0], schemas, name)
    if "enum" in schema and BY_NAME.get(name) not in schema["enum"]:
        return schema["enum"][0]
    if "properties" in schema:
        return {key: example_of(inner, schemas, key) for key, inner in schema["properties"].items()}
    kinds = schema.get("type", "string")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds[0] == "array" and "items" in schema and not isinstance(BY_NAME.get(name), list):
        return [example_of(schema["items"], schemas)]
    if name in BY_NAME and "format" not in schema:
        return BY_NAME[name]
    if BY_NAME.get(name, "") is None and "null" in kinds:
        return None
    return _BY_FORMAT.get(schema.get("format", ""), _BY_TYPE[kinds[0]])
