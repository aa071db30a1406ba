"""The permits of open streams, which are revoked when their readers lose access.

Readers are checked at once when their permissions change, and all readers every 3 seconds. The checks run on their own
thread and database connection, so that streams cannot delay them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from uuid import UUID

from django.db import Error, connections

from agentops.accounts.access import Action, Principal, allowed_pairs
from agentops.accounts.login import sessions
from timeline import notify


@dataclass(frozen=True, slots=True)
class Permit:
    """The permission behind an open stream: who reads which project."""

    principal: Principal
    project_id: UUID
    #: The browser session; None if the stream was opened with an API key.
    session_key: str | None = None
    #: What the reader has to be allowed to do in the project.
    action: Action = Action.READ


def revoked_permits(permits: Collection[Permit]) -> set[Permit]:
    """Return the permits that no longer hold, because a role, API key, account or session has ended.

    Takes a constant number of queries for every 500 permits.
    """
    readers = {action: allowed_pairs(_pairs(permits, action), action) for action in {p.action for p in permits}}
    signed_in = sessions.users_by_session({permit.session_key for permit in permits if permit.session_key is not None})

    def holds(permit: Permit) -> bool:
        if (permit.principal, permit.project_id) not in readers[permit.action]:
            return False
        return permit.session_key is None or signed_in.get(permit.session_key) == permit.principal.user_id

    return {permit for permit in permits if not holds(permit)}


def _pairs(permits: Collection[Permit], action: Action) -> set[tuple[Principal, UUID]]:
    return {(permit.principal, permit.project_id) for permit in permits if permit.action is action}


log = logging.getLogger(__name__)
#: Seconds between checks of all readers. Without notifications, such as without Redis, access ends after at most 5 s,
#: as the documentation says.
CHECK_INTERVAL_S = 3.0
#: Seconds until the next check after a failed one.
RETRY_INTERVAL_S = 1.0
#: Seconds for which a change of permissions is remembered. A stream of the same reader that opens in this time is
#: checked again, because its view may have checked the permissions before the change.
RECENT_S = 60.0
#: Maximum number of remembered changes. Redis is not trusted: anyone who can write to it can send any number.
MAX_RECENT = 10_000


class AccessWatch:
    """The access checks of one hub. All methods are thread-safe."""

    def __init__(self, on_revoked: Callable[[set[Permit]], None]) -> None:
        #: Called on the thread of the watch.
        self._on_revoked = on_revoked
        self._open: Counter[Permit] = Counter()
        self._changed: set[str] = set()
        self._changed_at: dict[str, float] = {}
        self._check_at = time.monotonic() + CHECK_INTERVAL_S
        self._closed = False
        self._wake = threading.Condition()
        self._unsubscribe = notify.subscribe(self._receive)
        threading.Thread(target=self._run, name="stream-access", daemon=True).start()

    def add(self, permit: Permit) -> None:
        """Register an open stream."""
        holder = permit.principal.holder
        with self._wake:
            self._open[permit] += 1
            if self._changed_at.get(holder, -RECENT_S) > time.monotonic() - RECENT_S:
                self._changed.add(holder)
                self._wake.notify()

    def remove(self, permit: Permit) -> None:
        """Remove a closed stream."""
        with self._wake:
            self._open[permit] -= 1
            if not self._open[permit]:
                del self._open[permit]

    def check_holder(self, holder: str) -> None:
        """Check the streams of a user or API key whose permissions changed."""
        now = time.monotonic()
        with self._wake:
            self._changed_at.pop(holder, None)
            self._changed_at[holder] = now
            self._forget_old(now)
            self._changed.add(holder)
            self._wake.notify()

    def _forget_old(self, now: float) -> None:
        """Forget old changes, and the oldest beyond the maximum. Changes are in the order of their times."""
        while len(self._changed_at) > MAX_RECENT or next(iter(self._changed_at.values()), now) <= now - RECENT_S:
            del self._changed_at[next(iter(self._changed_at))]

    def check_all(self) -> None:
        """Check all streams now, because notifications may have been missed."""
        with self._wake:
            self._check_at = time.monotonic()
            self._wake.notify()

    def close(self) -> None:
        """End the thread."""
        self._unsubscribe()
        with self._wake:
            self._closed = True
            self._wake.notify()

    def _receive(self, channel: str, value: str) -> None:
        if channel == notify.ACCESS:
            self.check_holder(value)

    def _run(self) -> None:
        while (permits := self._next()) is not None:
            try:
                if permits and (revoked := revoked_permits(permits)):
                    self._on_revoked(revoked)
            except Error as error:
                # Without the database, streams cannot read events either.
                log.warning("live: cannot check access (%s); trying again", type(error).__name__)
                self._retry_soon()
            except Exception:
                log.exception("live: the access check failed; trying again")
                self._retry_soon()
            finally:
                connections.close_all()

    def _next(self) -> set[Permit] | None:
        """Wait for the next check, and return the permits to check. Return None when closed."""
        with self._wake:
            self._wake.wait_for(self._is_due, timeout=max(0.0, self._check_at - time.monotonic()))
            if self._closed:
                return None
            now = time.monotonic()
            is_check_of_all = now >= self._check_at
            if is_check_of_all:
                self._check_at = now + CHECK_INTERVAL_S
            holders, self._changed = self._changed, set()
            return {permit for permit in self._open if is_check_of_all or permit.principal.holder in holders}

    def _is_due(self) -> bool:
        return self._closed or bool(self._changed) or time.monotonic() >= self._check_at

    def _retry_soon(self) -> None:
        with self._wake:
            self._check_at = min(self._check_at, time.monotonic() + RETRY_INTERVAL_S)
