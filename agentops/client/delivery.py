"""Delivers the recorded events of this process, with one thread for each site and key."""

from __future__ import annotations

import atexit
import codecs
import logging
import os
import sys
import threading
import time
import weakref
from typing import Any

import httpx

from agentops.client import connection
from agentops.client.errors import AgentopsError, ApiError, InvalidRequest
from agentops.client.outbox import BATCH_EVENTS, Outbox

log = logging.getLogger("agentops.client")
#: Maximum number and total bytes of undelivered events.
MAX_EVENTS, MAX_BYTES = 10_000, 64 * 1024 * 1024
#: Seconds in which events are collected into a batch.
INTERVAL_S = 0.25
#: Timeout of a request in seconds.
TIMEOUT_S = 20.0
#: Maximum seconds by which the delivery delays the end of the process.
EXIT_S = 5.0
#: The longest pause between two attempts, in seconds.
_LONGEST_PAUSE_S = 15.0


class EventDelivery:
    """Sends events in the background, in order, each at least once; by its ID, the site stores each once.

    After a fork, the child starts with an empty queue, because the parent delivers the events that it recorded.
    """

    def __init__(
        self, url: str, key: str, *, max_events: int = MAX_EVENTS, max_bytes: int = MAX_BYTES, exit_s: float = EXIT_S
    ) -> None:
        self.url = f"{connection.site_url(url)}/api/internal/agent-events"
        self._headers = {**connection.request_headers(key), "Content-Type": "application/json"}
        self._bounds = (max_events, max_bytes)
        self._exit_s = exit_s
        self._begin()
        # Not in the thread: httpx imports modules for its first client, and socket the codec of host names for its
        # first connection. A fork during an import would leave the child with a half-imported module.
        self._http: httpx.Client | None = self._new_http()
        codecs.lookup("idna")
        _deliveries.add(self)

    def _begin(self) -> None:
        """Start with an empty queue, also in a new process."""
        self._outbox = Outbox(*self._bounds)
        self._thread: threading.Thread | None = None
        # Re-entrant, like the lock of the outbox.
        self._starting = threading.RLock()
        self._sending = threading.Lock()
        self._batch_limit = BATCH_EVENTS
        self._failures = 0
        #: The kinds of problems that were logged.
        self._reported: set[str] = set()
        #: Number of events that were dropped, because the queue was full or they could not be encoded.
        self.dropped = 0
        #: Number of events that the site refused.
        self.rejected = 0

    def begin_in_child(self) -> None:
        """Start again in a forked process. The connections belong to its parent."""
        self._begin()
        self._http = None

    def _new_http(self) -> httpx.Client:
        return httpx.Client(headers=self._headers, timeout=TIMEOUT_S)

    @property
    def waiting(self) -> int:
        """Return the number of undelivered events."""
        return len(self._outbox)

    def put(self, text: str, *, is_essential: bool) -> None:
        """Queue an event; neither waits nor raises."""
        outbox = self._outbox
        while not outbox.put(text, is_essential=is_essential):
            if not outbox.is_closed:
                self.drop(f"{self.waiting} events wait for the site already")
                break
            outbox = self._outbox  # another thread has closed and replaced the old one
        self._ensure_thread()

    def drop(self, why: str, count: int = 1) -> None:
        """Count events that are not delivered, and log the first reason."""
        self.dropped += count
        self._report("dropped", f"events are dropped, because {why}")

    def flush(self, timeout_s: float) -> bool:
        """Wait until all events that were put so far were delivered, and return whether they were."""
        deadline = time.monotonic() + timeout_s
        count = self._outbox.hurry()
        if self._ensure_thread():
            return self._outbox.wait_until_removed(count, timeout_s)
        # The interpreter ends, so that no thread can be started.
        while self._outbox.removed_count < count and time.monotonic() < deadline:
            self._outbox.wait_before_retry(self._send_batch(self._outbox))
        return self._outbox.removed_count >= count

    def close(self, timeout_s: float = EXIT_S) -> None:
        """Flush, end the thread and close the connections. A later event starts again.

        Events that could not be delivered within `timeout_s` are dropped and counted.
        """
        self.flush(timeout_s)
        with self._starting:
            thread, self._thread = self._thread, None
            outbox, self._outbox = self._outbox, Outbox(*self._bounds)
            outbox.close()
        if thread is not None:
            thread.join(timeout_s)
        if left := outbox.abandon():
            self.drop(f"{left} of them were not delivered before the recording was closed", left)
        http, self._http = self._http, None
        if http is not None:
            http.close()

    # --- The thread ---

    def _ensure_thread(self) -> bool:
        """Start the thread unless it is running. Return False if no thread can be started."""
        if self._thread is not None:
            return True
        with self._starting:
            if self._thread is not None:
                return True
            thread = threading.Thread(target=self._run, args=[self._outbox], name="agentops-events", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                return False
            self._thread = thread
            _finish_with_multiprocessing()
            return True

    def _run(self, outbox: Outbox) -> None:
        while True:
            outbox.wait_for_batch(INTERVAL_S)
            if outbox.is_over:
                return
            pause = self._send_batch(outbox)
            if pause:
                outbox.wait_before_retry(pause)

    def _send_batch(self, outbox: Outbox) -> float:
        """Send the oldest events. Return the seconds until the next attempt; 0 after success."""
        with self._sending:
            batch = outbox.batch(self._batch_limit)
            if not batch:
                return 0.0
            try:
                self._settle(self._post(batch))
            except InvalidRequest as error:
                if len(batch) > 1:
                    # Use smaller batches to find the event because of which the whole request is refused.
                    self._batch_limit = len(batch) // 2
                    return 0.0
                self._reject(str(error))
            except Exception as error:
                return self._pause_after(error)
            outbox.remove(len(batch))
            return 0.0

    def _post(self, batch: list[str]) -> list[dict[str, Any]]:
        """Send events, and return the result of each. Raises `AgentopsError` if the site refuses the whole request."""
        self._http = self._http or self._new_http()
        try:
            response = self._http.post(self.url, content=f'{{"events":[{",".join(batch)}]}}')
        except httpx.HTTPError as error:
            raise connection.unreachable(error) from error
        # If the site refused every event, the status is 422, but the body has the results.
        if response.status_code == 422 and "results" in response.text[:20]:
            return list(response.json()["results"])
        return list(connection.document_of(response)["results"])

    def _settle(self, results: list[dict[str, Any]]) -> None:
        """Count the refused events of a request, and end the state of failure."""
        if self._failures:
            log.info("agentops: the site answers again")
        self._failures, self._batch_limit = 0, min(self._batch_limit * 2, BATCH_EVENTS)
        self._reported.discard("unreachable")
        for result in results:
            if result["status"] == "rejected":
                self._reject(f"{result.get('code')}: {result.get('detail')}")

    def _reject(self, why: str) -> None:
        self.rejected += 1
        self._report("rejected", f"the site refuses events, the first one because of {why}")

    def _pause_after(self, error: Exception) -> float:
        """Log an error, and return the seconds until the next attempt.

        The events are kept after any error, because the site may be replaced or its key restored.
        """
        why = str(error) if isinstance(error, AgentopsError) else repr(error)
        self._report("unreachable", f"{self.waiting} events wait: {why}")
        self._failures += 1
        requested = error.retry_after_s if isinstance(error, ApiError) else None
        return min(connection.pause_s(self._failures) if requested is None else requested, _LONGEST_PAUSE_S)

    def _report(self, kind: str, text: str) -> None:
        """Log the first problem of each kind."""
        if kind not in self._reported:
            self._reported.add(kind)
            log.warning("agentops: %s", text)

    # --- The end of the process ---

    def finish(self) -> None:
        """Deliver as many events as possible at the end of the process."""
        if not self._outbox:
            return
        if not self.flush(self._exit_s):
            log.warning("agentops: %d events were not delivered before the process ended", self.waiting)


_deliveries: weakref.WeakSet[EventDelivery] = weakref.WeakSet()
_shared: dict[tuple[str, str], EventDelivery] = {}
_sharing = threading.Lock()


def shared_delivery(url: str, key: str) -> EventDelivery:
    """Return the delivery of this process to a site with a key."""
    with _sharing:
        target = (url.rstrip("/"), key)
        if target not in _shared:
            _shared[target] = EventDelivery(url, key)
        return _shared[target]


def _finish_all() -> None:
    for delivery in list(_deliveries):
        delivery.finish()


def _finish_with_multiprocessing() -> None:
    """Deliver at the end of this process if it is a child of multiprocessing, which runs no atexit functions."""
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing is not None and multiprocessing.parent_process() is not None:
        from multiprocessing.util import Finalize

        Finalize(None, _finish_all, exitpriority=0)


def _after_fork() -> None:
    global _sharing
    _sharing = threading.Lock()
    for delivery in list(_deliveries):
        delivery.begin_in_child()


os.register_at_fork(after_in_child=_after_fork)
# Functions that are registered later run earlier, so the events that they record are delivered too.
atexit.register(_finish_all)
