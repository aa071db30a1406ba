"""Whether open streams may go on: asked at once of whoever's rights have changed, and of everyone every few seconds.

It has a thread, and while it asks a connection, of its own: nothing that
the streams read or send can hold it up.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable

from django.db import Error, connections

from timeline import access, notify
from timeline.access import Permit

log = logging.getLogger(__name__)
#: Everyone is asked about so often, counted from the beginning of a look to that of the next one: five seconds are
#: promised where no message comes, such as without Redis.
LOOK_S = 3.0
#: After a look that failed.
AGAIN_S = 1.0
#: A stream that is opened so long after a message about its reader is checked once more: its view may have asked
#: before the change.
RECENT_S = 60.0


class AccessWatch:
    """One per hub; its methods may be called from any thread."""

    def __init__(self, on_ended: Callable[[set[Permit]], None]) -> None:
        #: Called on the watch's thread.
        self._on_ended = on_ended
        self._open: Counter[Permit] = Counter()
        self._changed: set[str] = set()
        self._changed_at: dict[str, float] = {}
        self._look_at = time.monotonic() + LOOK_S
        self._closed = False
        self._wake = threading.Condition()
        self._unsubscribe = notify.subscribe(self._hear)
        threading.Thread(target=self._run, name="stream-access", daemon=True).start()

    def add(self, permit: Permit) -> None:
        """A stream was opened by this permit."""
        holder = permit.principal.holder
        with self._wake:
            self._open[permit] += 1
            if self._changed_at.get(holder, -RECENT_S) > time.monotonic() - RECENT_S:
                self._changed.add(holder)
                self._wake.notify()

    def remove(self, permit: Permit) -> None:
        with self._wake:
            self._open[permit] -= 1
            if not self._open[permit]:
                del self._open[permit]

    def changed(self, holder: str) -> None:
        """The rights of this user or key have changed."""
        now = time.monotonic()
        with self._wake:
            self._changed_at = {name: at for name, at in self._changed_at.items() if at > now - RECENT_S}
            self._changed_at[holder] = now
            self._changed.add(holder)
            self._wake.notify()

    def look(self) -> None:
        """Ask about everyone now: messages may have been missed."""
        with self._wake:
            self._look_at = time.monotonic()
            self._wake.notify()

    def close(self) -> None:
        self._unsubscribe()
        with self._wake:
            self._closed = True
            self._wake.notify()

    def _hear(self, channel: str, value: str) -> None:
        if channel == notify.ACCESS:
            self.changed(value)

    def _run(self) -> None:
        while (permits := self._next()) is not None:
            try:
                if permits and (ended := access.ended(permits)):
                    self._on_ended(ended)
            except Error as error:
                # Nothing can be read from a database that does not answer, so nothing is given away meanwhile.
                log.warning("live: cannot check access (%s)", type(error).__name__)
                self._look_again()
            except Exception:
                log.exception("live: access to the streams could not be checked")
                self._look_again()
            finally:
                connections.close_all()

    def _next(self) -> set[Permit] | None:
        """Wait until somebody is to be asked about, and say who; None when it is over."""
        with self._wake:
            self._wake.wait_for(self._is_due, timeout=max(0.0, self._look_at - time.monotonic()))
            if self._closed:
                return None
            now = time.monotonic()
            everyone = now >= self._look_at
            if everyone:
                self._look_at = now + LOOK_S
            holders, self._changed = self._changed, set()
            return {permit for permit in self._open if everyone or permit.principal.holder in holders}

    def _is_due(self) -> bool:
        return self._closed or bool(self._changed) or time.monotonic() >= self._look_at

    def _look_again(self) -> None:
        with self._wake:
            self._look_at = min(self._look_at, time.monotonic() + AGAIN_S)
