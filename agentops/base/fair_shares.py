"""Fair shares of a process for all projects: work budgets, turns in queues, and limits of concurrent requests.

Code that applies a definition of a project (a schema, an expression, a compressed file) counts its work, and ends when
it exceeds its budget. A backlog delays only its own project. Requests are limited per credential: an API key, a runner
secret, or the session of a browser.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from enum import Enum
from threading import Event
from typing import Any, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from django.conf import settings
from django.http import parse_cookie

#: How many times a budget checks the clock, and calls `watch`, before it is used up.
CHECKS = 256
#: Is set when the work of this context must end, because its process ends. None: the work is not ended.
process_ends: ContextVar[Event | None] = ContextVar("the end of the process", default=None)


class WorkExceeded(Exception):
    """The work exceeded its budget, or its process ends. The message says which, and follows the word "it"."""


class WorkBudget:
    """The budget of one computation in one thread: `limit` units of work, and `cpu_s` seconds of CPU time.

    Normally the units run out first, so that every machine refuses the same input. The CPU time limits work that the
    units underestimate. It is that of the calling thread, so that load on the machine causes no refusals. `watch` is
    called with each check of the clock, and may raise to end the work.
    """

    def __init__(
        self, limit: int, unit: str, *, cpu_s: float | None = None, watch: Callable[[], None] | None = None
    ) -> None:
        self.limit, self.unit = limit, unit
        #: The units spent so far; more than `limit` once the budget is exceeded.
        self.spent = 0
        self._cpu_s, self._watch, self._process_ends = cpu_s, watch, process_ends.get()
        self._cpu_end = None if cpu_s is None else time.thread_time() + cpu_s
        self._every = max(1, limit // CHECKS)
        self._next_check = min(self._every, limit)

    @property
    def left(self) -> int:
        """The units left."""
        return max(self.limit - self.spent, 0)

    def spend(self, units: int = 1) -> None:
        """Count work before doing it. Raises `WorkExceeded`; so does every later call."""
        self.spent += units
        if self.spent > self._next_check:
            self.check()

    def check(self) -> None:
        """Check the clock, and call `watch`. Called directly after work that has no units. Raises `WorkExceeded`."""
        if self.spent > self.limit:
            raise WorkExceeded(f"takes more than {self.limit} {self.unit}")
        if self._cpu_end is not None and time.thread_time() > self._cpu_end:
            # So that every later call of `spend` raises too.
            self._next_check = -1
            raise WorkExceeded(f"takes more than {self._cpu_s:g} s of CPU time")
        if self._process_ends is not None and self._process_ends.is_set():
            self._next_check = -1
            raise WorkExceeded("was ended, because the server stops")
        self._next_check = min(self.spent + self._every, self.limit)
        if self._watch is not None:
            self._watch()


T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


def rounds(waiting: Callable[[], Iterable[K]]) -> Iterator[K]:
    """Yield each project that `waiting()` returns, then call `waiting` again, until it returns none.

    So a project waits at most for one turn of each other project.
    """
    while projects := list(waiting()):
        yield from projects


def in_turns(items: Iterable[T], project: Callable[[T], Hashable]) -> list[T]:
    """Return the first item of each project, then the second of each, and so on, each time in the given order."""
    counts: Counter[Hashable] = Counter()
    numbered = []
    for item in items:
        numbered.append((counts[project(item)], item))
        counts[project(item)] += 1
    return [item for _, item in sorted(numbered, key=lambda pair: pair[0])]


Message = dict[str, Any]
#: Maximum number of credentials whose project or user is remembered.
MAX_KNOWN = 10_000
#: The project of a request's key, and the user of its session. Set by authentication.
sender_project: ContextVar[Hashable] = ContextVar("sender_project", default=None)
sender_user: ContextVar[Hashable] = ContextVar("sender_user", default=None)


class CredentialKind(Enum):
    """The header of a credential. Requests enter lanes in this order, so that two never wait for each other."""

    KEY = b"authorization"
    SECRET = b"x-agent-runner-secret"
    SESSION = b"cookie"


class Credential(NamedTuple):
    """A credential of a request, which may be invalid."""

    kind: CredentialKind
    #: SHA-256, because the credential itself may be long.
    digest: bytes


class Lanes:
    """Limits concurrent requests per credential, and per project or user. Further requests wait in order.

    Each of these has a lane, with a number of places. The project or user of a credential is known after its first
    request. Until then, all unknown keys share one lane, and all unknown sessions another one. For one event loop.
    """

    def __init__(self, per_credential: int, per_project: int) -> None:
        self._per_credential, self._per_project = per_credential, per_project
        #: A lane exists as long as requests run or wait in it.
        self._lanes: WeakValueDictionary[Hashable, asyncio.Semaphore] = WeakValueDictionary()
        #: The project or user of each credential, in the order of last use.
        self._owners: OrderedDict[Credential, Hashable] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of lanes with running or waiting requests."""
        return len(self._lanes)

    @asynccontextmanager
    async def enter(self, scope: Message) -> AsyncIterator[Sequence[Credential]]:
        """Wait until the request may run, and yield its credentials. A request without credentials does not wait.

        A request with several credentials needs a place in the lanes of each. Otherwise an additional header could
        bypass the limit.
        """
        credentials = list(_credentials(scope))
        async with AsyncExitStack() as places:
            for credential in credentials:
                await places.enter_async_context(self._lane(credential, self._per_credential))
            for credential in credentials:
                # Read only now, because the owner may have become known during the wait for the first lanes.
                name = (credential.kind, self._owners.get(credential))
                await places.enter_async_context(self._lane(name, self._per_project))
            yield credentials

    def learn(self, credentials: Sequence[Credential], *, project: Hashable = None, user: Hashable = None) -> None:
        """Remember the project of a request's key or runner secret, and the user of its session.

        Each is None if it is not known, for example because the credential is invalid.
        """
        for credential in credentials:
            owner = user if credential.kind is CredentialKind.SESSION else project
            if owner is None:
                continue
            self._owners[credential] = owner
            self._owners.move_to_end(credential)
            if len(self._owners) > MAX_KNOWN:
                self._owners.popitem(last=False)

    def _lane(self, name: Hashable, places: int) -> asyncio.Semaphore:
        return self._lanes.setdefault(name, asyncio.Semaphore(places))


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
