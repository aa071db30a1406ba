"""A share of the threads for each credential, so that nobody who sends a lot keeps the others waiting."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

Message = dict[str, Any]
#: Headers of programs, which may send many requests at once. Browsers open six connections at most.
CREDENTIALS = (b"authorization", b"x-agent-runner-secret")


class Lanes:
    """Let at most `width` requests with one credential pass at once; the others wait, in their order.

    Whether the credential is valid is not known yet. Used on one event loop only.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._lanes: dict[bytes, _Lane] = {}

    def __len__(self) -> int:
        """Return the number of credentials with requests that pass or wait."""
        return len(self._lanes)

    @asynccontextmanager
    async def enter(self, scope: Message) -> AsyncIterator[None]:
        name = _credential(scope)
        if name is None:
            yield
            return
        lane = self._lanes.setdefault(name, _Lane(self._width))
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
