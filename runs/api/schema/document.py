"""The OpenAPI document: what each view says of itself, in drf-spectacular's frame.

Nothing is described twice: parameters, bodies and rows describe themselves where they are parsed and read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import Direction

from agentops.projects.rate_limits import limits
from runs.api.base_views import JSON, ApiView
from runs.api.problems import MAX_FAULTS
from runs.api.requests.idempotency import HEADER, REPLAYED
from runs.api.schema.examples import example_of

PROBLEM = "application/problem+json"
EVENT_STREAM = "text/event-stream"
SECURITY: list[dict[str, list[str]]] = [{"key": []}, {"session": []}]

_IDEMPOTENCY_KEY = {
    "name": HEADER,
    "in": "header",
    "description": "Chosen by the caller for this request. A repeat with the same key gets the first answer again "
    f"(with `{REPLAYED}: true`), and nothing is done twice. Kept for a day.",
    "schema": {"type": "string", "pattern": r"^[!-~]([ -~]{0,253}[!-~])?$"},
    "example": "resume-01a1f9cd-1",
}
_IF_NONE_MATCH = {
    "name": "If-None-Match",
    "in": "header",
    "description": "ETag of an earlier answer. If nothing changed, the answer is 304 without a body.",
    "schema": {"type": "string"},
}
_LAST_EVENT_ID = {
    "name": "Last-Event-ID",
    "in": "header",
    "description": "`id` of the last event received. Takes precedence over `afterSeq`.",
    "schema": {"type": "string", "pattern": r"^[0-9]{1,18}(\.[0-9]{1,6})?$"},
}
_TEXT_HEADER = {"schema": {"type": "string"}}
_LINK = {"Link": {"description": "The next and the previous page, as in the body.", **_TEXT_HEADER}}
_ETAG = {"ETag": {"description": "Of this answer, for If-None-Match.", **_TEXT_HEADER}}
_WHOLE_HEADER = {"schema": {"type": "integer", "minimum": 0}}
_RATES = {
    limits.LIMIT: {"description": "Requests per minute of the limit that is closest to being used up: that of the API "
    "key, the user or the address. Without these headers there is no limit.", **_WHOLE_HEADER},
    limits.REMAINING: {"description": "Requests that are left.", **_WHOLE_HEADER},
    limits.RESET: {"description": "Seconds until the limit is reset.", **_WHOLE_HEADER},
}  # fmt: skip
_RATE_HEADERS = {name: {"$ref": f"#/components/headers/{name}"} for name in _RATES}
_RETRY_AFTER = {"Retry-After": {"description": "Seconds to wait.", **_WHOLE_HEADER}}
_LOCATION = {"Location": {"description": "The new run's address.", **_TEXT_HEADER}}

#: Status → what it means here. Which of them a view gives follows from what it is.
REFUSALS = {
    400: "The query, a header or the body cannot be read.",
    401: "The credential is missing, invalid, revoked or expired.",
    403: "The caller's role or scope does not allow it, or a session's request has no CSRF token.",
    404: "Not found, or not visible to the caller.",
    406: "The Accept header excludes JSON.",
    408: "The body did not arrive within 30 seconds.",
    409: "The state of the run does not allow it, or the first request with this key is still in progress.",
    410: "The run was deleted by retention; the answer says when.",
    413: "The body, or a part of it, is too large.",
    415: "The body is not JSON in UTF-8, or has an encoding other than gzip.",
    422: "The body is invalid; `errors` points to the fields at fault.",
    429: "Too many requests per minute (`rate_limited`), or too many streams. See Retry-After.",
    503: "The database does not answer, or the server is full. Nothing was changed. See Retry-After.",
}
PROBLEM_SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "A refusal (RFC 9457).",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "code": {"type": "string", "description": "Machine-readable code."},
        "detail": {"type": "string", "description": "Explanation for people."},
        "request_id": {"type": "string", "description": "ID of the request in the server's log."},
        "errors": {
            "type": "array",
            "maxItems": MAX_FAULTS,
            "items": {
                "type": "object",
                "properties": {
                    "pointer": {"type": "string", "description": "A JSON pointer into the body, or a name."},
                    "code": {"type": "string"},
                    "detail": {"type": "string"},
                },
                "required": ["pointer", "code", "detail"],
            },
        },
    },
    "required": ["type", "title", "status", "code", "detail", "request_id"],
}
COMPONENTS = {
    "schemas": {"Problem": PROBLEM_SCHEMA},
    "headers": _RATES,
    "securitySchemes": {
        "key": {"type": "http", "scheme": "bearer", "description": "An API key: `Authorization: Bearer aok_…`."},
        "session": {"type": "apiKey", "in": "cookie", "name": "sessionid", "description": "Whoever is signed in."},
    },
}


class Described(AutoSchema):
    """An operation as its ApiView declares it."""

    view: ApiView
    #: Words of a path's parameters that are no ids.
    PATH_WORDS: ClassVar[Mapping[str, str]] = {
        "project": "A project's ID or slug.",
        "agent": "The agent's name.",
    }

    def is_excluded(self) -> bool:
        return not isinstance(self.view, ApiView) or not self.view.documented

    def get_operation_id(self) -> str:
        name = type(self.view).__name__
        return name[0].lower() + name[1:] + ("" if self.method == "GET" else self.method.capitalize())

    def get_summary(self) -> str:
        said = (type(self.view).summaries or {}).get(self.verb) or (type(self.view).__doc__ or "")
        return said.strip().partition("\n")[0]

    def get_description(self) -> str:
        return "\n".join(line.strip() for line in (type(self.view).__doc__ or "").strip().splitlines()[1:]).strip()

    def get_tags(self) -> list[str]:
        words = [word for word in self.path.split("/") if word and not word.startswith("{")][1:]
        return [words[1] if len(words) > 1 else words[0]]

    def get_auth(self) -> list[dict[str, list[str]]]:
        return SECURITY

    @property
    def verb(self) -> str:
        return str(self.method).lower()

    def _get_parameters(self) -> list[dict[str, Any]]:
        shown = [self._of_path(name) for name in self.path.replace("}", "{").split("{")[1::2]]
        shown += [parameter.openapi() for parameter in self.view.parameters.get(self.verb, ())]
        if self.verb == "post":
            shown.append(_IDEMPOTENCY_KEY)
        if self._is_tagged():
            shown.append(_IF_NONE_MATCH)
        if self._is_stream():
            shown.append(_LAST_EVENT_ID)
        return shown

    def _of_path(self, name: str) -> dict[str, Any]:
        word = self.PATH_WORDS.get(name)
        schema = {"type": "string", "maxLength": 63} if word else {"type": "string", "format": "uuid"}
        described = {"description": word or f"The {name.removesuffix('_id').replace('_', ' ')}'s id."}
        return {"name": name, "in": "path", "required": True, **described, "schema": schema}

    def _get_request_body(self, direction: Direction = "request") -> dict[str, Any] | None:
        body = self.view.takes.get(self.verb)
        if body is None:
            return None
        component = self.resolve_serializer(body, direction)
        schema = component.ref if component else {"type": "object", "additionalProperties": False}
        optional = not (component and component.schema.get("required"))
        return {"content": {JSON: {"schema": schema}}, **({} if optional else {"required": True})}

    def _map_serializer(self, serializer: Any, direction: str, bypass_extensions: bool = False) -> dict[str, Any]:
        mapped: dict[str, Any] = super()._map_serializer(serializer, direction, bypass_extensions)  # type: ignore[no-untyped-call]
        kind = serializer if isinstance(serializer, type) else type(serializer)
        # A docstring of its own; drf-spectacular takes an inherited one too.
        mapped.pop("description", None)
        described = {"description": kind.__doc__} if "__doc__" in vars(kind) and kind.__doc__ else {}
        # Unknown fields are refused.
        return {**mapped, **described, "additionalProperties": False}

    def _get_response_bodies(self, direction: str = "response") -> dict[str, Any]:
        answers = {str(status): self._answer(status, text) for status, text in self._statuses().items()}
        if self._is_tagged():
            answers["304"] = {"description": "Unchanged.", "headers": _ETAG}
        if self._is_stream():
            answers["204"] = {"description": "The run has ended and there are no further events."}
        problem = {"schema": {"$ref": "#/components/schemas/Problem"}}
        for status in self._refusals():
            answers[str(status)] = {"description": REFUSALS[status], "content": {PROBLEM: problem}}
        for name, described in answers.items():
            waits = _RETRY_AFTER if name in ("429", "503") else {}
            described["headers"] = {**described.get("headers", {}), **_RATE_HEADERS, **waits}
        return answers

    def _answer(self, status: int, text: str) -> dict[str, Any]:
        schema = self.view.answers[self.verb]
        if self._is_stream():
            return {"description": text, "content": {EVENT_STREAM: {"schema": schema}}}
        headers = {**(_ETAG if self._is_tagged() else {}), **(_LINK if self._is_list() else {})}
        headers |= _LOCATION if status == 201 else {}
        content = {JSON: {"schema": schema, "example": example_of(schema)}}
        return {"description": text, "content": content, **({"headers": headers} if headers else {})}

    def _statuses(self) -> Mapping[int, str]:
        return self.view.statuses.get(self.verb) or {200: "Success."}

    def _refusals(self) -> Sequence[int]:
        found = [400, 401, 403, 404, 406]
        if self.path.endswith("/projects"):
            found = [400, 401, 406]
        if "{run_id}" in self.path:
            found.append(410)
        if self.verb == "post":
            found += [408, 409, 413, 415, 422]
        if self._is_stream():
            found = [status for status in found if status != 406]
        return sorted([*found, 429, 503])

    def _is_list(self) -> bool:
        return self.verb == "get" and "next" in self.view.answers.get("get", {}).get("properties", {})

    def _is_stream(self) -> bool:
        return self.path.endswith("/stream")

    def _is_tagged(self) -> bool:
        return self.verb == "get" and not self._is_list() and not self._is_stream()
