"""Responses of views that an ASGI application writes, with the headers that the middleware sets for all responses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from django.http import HttpResponse

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Any, Receive, Send], Awaitable[None]]
Writer = Callable[[Application, Any, Receive, Send], Awaitable[None]]

#: The body on a WSGI server.
NOT_HERE = "Only the ASGI processes of this site answer this request. Use `agentops serve`.\n"
#: Headers of the placeholder response.
OWN = {"content-type", "content-length"}


class AsgiResponse(HttpResponse):
    """A response written by `application`, to a request that has passed all middleware."""

    def __init__(self, body: bytes, application: Writer) -> None:
        """Create a response. `application` also gets Django's application, for requests to this site."""
        super().__init__(NOT_HERE, content_type="text/plain; charset=utf-8")
        self._body = body
        self._application = application

    async def answer(self, django: Application, scope: Any, receive: Receive, send: Send) -> None:
        """Answer the request of `scope`."""
        messages = [{"type": "http.request", "body": self._body, "more_body": False}]
        common = [
            (name.lower().encode("ascii"), value.encode("latin1"))
            for name, value in self.items()
            if name.lower() not in OWN
        ]

        async def receive_body() -> Message:
            return messages.pop() if messages else await receive()

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                names = {name for name, _ in common}
                own = [(name, value) for name, value in message.get("headers", []) if name.lower() not in names]
                message = {**message, "headers": [*own, *common]}
            await send(message)

        await self._application(django, scope, receive_body, send_with_headers)
