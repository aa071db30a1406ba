"""A limit on concurrent requests per credential and per project or user, so that one sender cannot block the others.

A credential is an API key, a runner secret, or the session of a browser.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Hashable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from enum import Enum
from typing import Any, NamedTuple

from django.conf import settings
from django.http import parse_cookie

Message = dict[str, Any]
#: Number of credentials whose projects and users are remembered.
MAX_KNOWN = 10_000
#: The project of a request's key, and the user of its session. Set by authentication.
sender_project: ContextVar[Hashable] = ContextVar("sender_project", default=None)
sender_user: ContextVar[Hashable] = ContextVar("sender_user", default=None)


class CredentialKind(Enum):
    """The header of a credential. Lanes are entered in this order, so that two requests never wait for each other."""

    KEY = b"authorization"
    SECRET = b"x-agent-runner-secret"
    SESSION = b"cookie"


class Credential(NamedTuple):
    """A credential of a request, which may be invalid."""

    kind: CredentialKind
    #: SHA-256, because the credential itself may be long.
    digest: bytes


class Lanes:
    """Limit concurrent requests per credential, and per project or user; further requests wait in order.

    Whether a credential is valid, and for which project or user, is known after its first request. Until then, all
    unknown keys share one lane, and all unknown sessions another one. Used on one event loop only.
    """

    def __init__(self, per_credential: int, per_project: int) -> None:
        self._per_credential, self._per_project = per_credential, per_project
        self._lanes: dict[Hashable, _Lane] = {}
        #: The project or user of each credential, in the order of last use.
        self._owners: OrderedDict[Credential, Hashable] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of lanes with running or waiting requests."""
        return len(self._lanes)

    @asynccontextmanager
    async def enter(self, scope: Message) -> AsyncIterator[Sequence[Credential]]:
        """Wait until the request may run. Yields its credentials; a request without any never waits.

        A request with several credentials needs a place in the lanes of each, so another header cannot bypass the
        limit.
        """
        credentials = list(_credentials(scope))
        async with AsyncExitStack() as places:
            for credential in credentials:
                await places.enter_async_context(self._lane(credential, self._per_credential))
            for credential in credentials:
                # Read after waiting for the first lane: the owner may be known by then.
                name = (credential.kind, self._owners.get(credential))
                await places.enter_async_context(self._lane(name, self._per_project))
            yield credentials

    def learn(self, credentials: Sequence[Credential], *, project: Hashable = None, user: Hashable = None) -> None:
        """Store the project of a key and the user of a session; None if the credential was invalid."""
        for credential in credentials:
            owner = user if credential.kind is CredentialKind.SESSION else project
            if owner is None:
                continue
            self._owners[credential] = owner
            self._owners.move_to_end(credential)
            if len(self._owners) > MAX_KNOWN:
                self._owners.popitem(last=False)

    @asynccontextmanager
    async def _lane(self, name: Hashable, width: int) -> AsyncIterator[None]:
        lane = self._lanes.setdefault(name, _Lane(width))
        lane.requests += 1
        try:
            async with lane.places:
                yield
        finally:
            lane.requests -= 1
            if not lane.requests:
                del self._lanes[name]


class _Lane:
    def __init__(self, width: int) -> None:
        self.places = asyncio.Semaphore(width)
        #: Running and waiting requests.
        self.requests = 0


def _credentials(scope: Message) -> Iterator[Credential]:
    """Yield the credentials of a request in the order of their kinds."""
    headers: Sequence[tuple[bytes, bytes]] = scope["headers"]
    for kind in CredentialKind:
        # Joined and parsed as in Django, so that the lane belongs to the session that Django uses.
        value = b",".join(value for name, value in headers if name == kind.value)
        if kind is CredentialKind.SESSION:
            value = parse_cookie(value.decode("latin1")).get(settings.SESSION_COOKIE_NAME, "").encode()
        if value:
            yield Credential(kind, hashlib.sha256(value).digest())
