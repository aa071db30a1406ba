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
from agentops.base.http.asgi_response import Application, AsgiResponse
from agentops.base.http.foreign_origin import refuse_foreign
from agentops.base.http.methods import require_POST
from agentops.mcp_server.api_access import RelayedApi
from runs.api.callers import KeyAuthentication


# Session cookies are not accepted, so a page of another site has no credential. GET is refused: streams of messages
# from the server require sessions.
@csrf_exempt
@require_POST
def endpoint(request: HttpRequest) -> HttpResponse:
    """Answer a request of an MCP client.

    `?allow_writes=true` offers the tools that control runs; the key's scopes decide whether they work. Raises
    `foreign_origin`, `Refusal`.
    """
    refuse_foreign(request)
    rate_limits.count_address(request)
    # Here, so that a client learns of an invalid key at once.
    caller = KeyAuthentication().authenticate(cast("Request", request))
    if caller is None:
        raise AuthRequired("send an API key with the scope read as a Bearer token")
    rate_limits.count_principal(request, caller[0])
    return AsgiResponse(request.body, partial(_answer, allows_writes=request.GET.get("allow_writes") == "true"))


async def _answer(django: Application, scope: Any, receive: Any, send: Any, *, allows_writes: bool) -> None:
    # On the first request, and in a thread: loading the SDK takes a second, which would block streams.
    http = await asyncio.to_thread(import_module, "agentops.mcp_server.streamable_http")
    await http.answer(RelayedApi(django, scope), scope, receive, send, allows_writes=allows_writes)
