"""Access of the tools to the API: over HTTP to another site, through this process's web application, or as an operator.

Tools only send API requests, so the permissions, redaction, limits and audit of the API apply.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from io import BytesIO
from typing import Any, Protocol
from urllib.parse import quote, urlencode

import httpx
from django.core.handlers.wsgi import WSGIRequest
from django.db import close_old_connections
from django.http import HttpResponse
from django.urls import resolve

from agentops.accounts.access import SYSTEM
from agentops.accounts.command_base import operator
from agentops.accounts.models import Door
from agentops.base.http.middleware import Refusals
from agentops.base.redaction import project_scope

TIMEOUT_S = 30
#: Headers of a client's request that the API requests of a tool repeat. Without the last one, which a proxy sets, an
#: HTTPS-only site would redirect.
RELAYED_HEADERS = (b"authorization", b"host", b"x-forwarded-proto")
JSON = "application/json"
Query = Mapping[str, str | int | Sequence[str] | None]


class ApiRefusal(Exception):
    """The API refused a request, or is unreachable. `facts` are further members of the problem details."""

    def __init__(self, code: str, detail: str, **facts: Any) -> None:
        super().__init__(detail)
        self.code = code
        self.facts = facts


@dataclass(frozen=True, slots=True)
class ApiAnswer:
    """A response of the API."""

    status: int
    body: bytes

    def document(self) -> Any:
        """Return the JSON value. Raises `ApiRefusal` for problem details, and for a body that is not JSON."""
        try:
            document = json.loads(self.body)
        except ValueError:
            raise ApiRefusal("no_json", f"the site answered with status {self.status} and no JSON") from None
        if self.status < 400:
            return document
        facts = document if isinstance(document, dict) else {}
        code, detail = facts.pop("code", "refused"), facts.pop("detail", f"status {self.status}")
        raise ApiRefusal(
            code, detail, **{name: facts[name] for name in ("status", "errors", "run_status") if name in facts}
        )


class Api(Protocol):
    """The API of a site."""

    async def send(self, method: str, target: str, body: bytes) -> ApiAnswer:
        """Send a request, and return the response. `target`: the path with the query."""


async def get(api: Api, path: str, query: Query | None = None) -> Any:
    """Send a GET, and return the JSON of the response. Empty parameters are omitted. Raises `ApiRefusal`."""
    pairs = [(name, value) for name, value in (query or {}).items() if value not in (None, "", [])]
    text = urlencode(pairs, doseq=True)
    return (await api.send("GET", f"/api/{quote(path)}" + (f"?{text}" if text else ""), b"")).document()


async def post(api: Api, path: str, body: Mapping[str, Any]) -> Any:
    """Send a POST, and return the JSON of the response. Fields that are None are omitted. Raises `ApiRefusal`."""
    fields = {name: value for name, value in body.items() if value is not None}
    return (await api.send("POST", f"/api/{quote(path)}", json.dumps(fields).encode())).document()


class SiteApi:
    """Another site, by its URL and an API key."""

    def __init__(self, url: str, key: str) -> None:
        """Prepare a connection. Raises `ValueError` for a URL that is not HTTP."""
        base = httpx.URL(url.rstrip("/"))
        if base.scheme not in ("http", "https") or not base.host:
            raise ValueError("the URL must begin with https:// or http://")
        self._base = str(base)
        headers = {"Authorization": f"Bearer {key}", "Accept": JSON}
        self._client = httpx.AsyncClient(timeout=TIMEOUT_S, headers=headers)

    async def send(self, method: str, target: str, body: bytes) -> ApiAnswer:
        headers = {"Content-Type": JSON} if body else {}
        try:
            response = await self._client.request(method, self._base + target, content=body or None, headers=headers)
        except httpx.HTTPError as error:
            raise ApiRefusal("unreachable", f"the site cannot be reached: {type(error).__name__}") from None
        return ApiAnswer(response.status_code, response.content)


@dataclass
class LocalApi:
    """The API of this machine's database, without a key: an operator has full access, as with commands."""

    #: One thread, which keeps one connection to the database.
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="mcp"))

    async def send(self, method: str, target: str, body: bytes) -> ApiAnswer:
        # In a thread, because views are synchronous.
        context = copy_context()
        return await asyncio.get_running_loop().run_in_executor(
            self._thread, context.run, self._answer, method, target, body
        )

    def _answer(self, method: str, target: str, body: bytes) -> ApiAnswer:
        """Call the view of a path, and return its response."""
        close_old_connections()
        project_scope.clear()
        path, _, query = target.partition("?")
        request = WSGIRequest(
            {
                "REQUEST_METHOD": method,
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "CONTENT_TYPE": JSON,
                "CONTENT_LENGTH": str(len(body)),
                "SERVER_NAME": "localhost",
                "SERVER_PORT": "80",
                "wsgi.url_scheme": "http",
                "wsgi.input": BytesIO(body),
            }
        )
        # Django REST framework takes this as the authenticated caller, and checks no credential.
        request._force_auth_user = replace(SYSTEM, actor=operator(), door=Door.COMMAND)  # type: ignore[attr-defined]
        match = resolve(path)
        request.resolver_match = match
        # The view is called without the middleware, except for the one that turns refusals into responses.
        try:
            response = match.func(request, *match.args, **match.kwargs)
            response = response.render() if hasattr(response, "render") else response
        except Exception as error:
            response = Refusals(lambda _: HttpResponse()).process_exception(request, error)
            if response is None:
                raise
        return ApiAnswer(response.status_code, response.content)


@dataclass
class RelayedApi:
    """The web application of this process, with the credential, the address and the scheme of a client's request."""

    django: Callable[[Any, Any, Any], Awaitable[None]]
    scope: Mapping[str, Any]

    async def send(self, method: str, target: str, body: bytes) -> ApiAnswer:
        path, _, query = target.partition("?")
        relayed = [(name, value) for name, value in self.scope["headers"] if name in RELAYED_HEADERS]
        length = str(len(body)).encode()
        headers = [*relayed, (b"accept", JSON.encode()), (b"content-type", JSON.encode()), (b"content-length", length)]
        scope = {
            **self.scope,
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": headers,
        }
        messages: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            messages.append(message)

        await self.django(scope, receive, send)
        start, *parts = messages
        return ApiAnswer(start["status"], b"".join(part.get("body", b"") for part in parts))
