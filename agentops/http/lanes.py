"""A share of the threads for each credential and each project, so that nobody who sends a lot holds up the others."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

Message = dict[str, Any]
#: Headers of programs, which may send many requests at once. Browsers open six connections at most.
CREDENTIALS = (b"authorization", b"x-agent-runner-secret")
#: Credentials whose projects are remembered.
MAX_KNOWN = 10_000
#: The project of a request's credential. Set where it is authenticated.
sender_project: ContextVar[Hashable] = ContextVar("sender_project", default=None)


class Lanes:
    """Let so many requests with one credential, and of one project, pass at once; the others wait, in their order.

    Whether a credential is valid, and for which project, is known after its first request. Until then, all unknown ones
    share one lane. Used on one event loop only.
    """

    def __init__(self, per_credential: int, per_project: int) -> None:
        self._per_credential, self._per_project = per_credential, per_project
        self._lanes: dict[Hashable, _Lane] = {}
        #: By the digest of their credential, the one that was used last at the end.
        self._projects: OrderedDict[bytes, Hashable] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of credentials and projects with requests that pass or wait."""
        return len(self._lanes)

    @asynccontextmanager
    async def enter(self, scope: Message) -> AsyncIterator[bytes | None]:
        """Wait until the request may pass. Yields the digest of its credential; None, at once, without one."""
        credential = _credential(scope)
        if credential is None:
            yield None
            return
        async with (
            self._lane(credential, self._per_credential),
            # Asked after the wait for the first lane, in which the project may have become known.
            self._lane(self._projects.get(credential), self._per_project),
        ):
            yield credential

    def learn(self, credential: bytes | None, project: Hashable) -> None:
        """Note the project of a credential; None if it has turned out to be valid for none."""
        if credential is None or project is None:
            return
        self._projects[credential] = project
        self._projects.move_to_end(credential)
        if len(self._projects) > MAX_KNOWN:
            self._projects.popitem(last=False)

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
        #: Those that pass and those that wait.
        self.requests = 0


def _credential(scope: Message) -> bytes | None:
    """Return a digest of the credential, since it may be long; None without one."""
    for name, value in scope["headers"]:
        if name in CREDENTIALS:
            return hashlib.sha256(value).digest()
    return None
