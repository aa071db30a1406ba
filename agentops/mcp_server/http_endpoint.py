"""`POST /mcp`: the MCP server over streamable HTTP, with an API key. Stateless: there are no sessions."""

from __future__ import annotations

import asyncio
from functools import partial
from importlib import import_module
from typing import Any, cast

from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt
from rest_framework.request import Request

from agentops.accounts import rate_limits
from agentops.accounts.errors import AuthRequired
from agentops.base.http.methods import require_POST
from agentops.base.http.request_origins import refuse_foreign
from agentops.base.http.threaded import Application, AsgiResponse
from agentops.mcp_server.api_access import RelayedApi
from runs.api.callers import KeyAuthentication


# Exempt from CSRF checks, because session cookies are not accepted, so that pages of other sites have no credential.
# GET, with which clients open a stream of messages from the server, is refused, because there are no sessions.
@csrf_exempt
@require_POST
def endpoint(request: HttpRequest) -> HttpResponse:
    """Answer a request of an MCP client.

    With `?allow_writes=true`, it offers the tools that control runs; the API checks the key's scopes. Raises `Refusal`.
    """
    refuse_foreign(request)
    rate_limits.count_address(request)
    # The API checks the key again. Checked here, an invalid key is reported before the first tool is called.
    caller = KeyAuthentication().authenticate(cast("Request", request))
    if caller is None:
        raise AuthRequired("send an API key with the scope read as a Bearer token")
    rate_limits.count_principal(request, caller[0])
    return AsgiResponse(request.body, partial(_answer, allows_writes=request.GET.get("allow_writes") == "true"))


async def _answer(django: Application, scope: Any, receive: Any, send: Any, *, allows_writes: bool) -> None:
    # The MCP SDK is imported with the first request and in a thread: the import takes a second, in which the event loop
    # could serve no stream.
    tool_server = await asyncio.to_thread(import_module, "agentops.mcp_server.tool_server")
    await tool_server.answer(RelayedApi(django, scope), scope, receive, send, allows_writes=allows_writes)
