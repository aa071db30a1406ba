"""Renews the leases of all runs of a process, in a thread, so that a blocked event loop does not lose them."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import httpx

from agentops.client.connection import document_of, unreachable
from agentops.client.errors import AgentopsError
from agentops.durable.wire import WorkSite, encoded

log = logging.getLogger("agentops.durable")

#: Seconds of a request, and the longest pause after a failed one.
_TIMEOUT_S, _PAUSE_S = 10.0, 1.0
#: Seconds during which hints are collected.
_HINT_PAUSE_S = 0.05
#: Seconds without a turn of the event loop after which leases are no longer renewed: its functions hang.
_HANGS_S = 300.0


class Heartbeat(threading.Thread):
    """Sends a heartbeat every `renew_s` seconds, and at once after `hurry`."""

    def __init__(
        self,
        site: WorkSite,
        http_options: Mapping[str, Any],
        body: Callable[[], Mapping[str, Any]],
        receive: Callable[[Mapping[str, Any], Mapping[str, Any], float], None],
    ) -> None:
        """Prepare the thread. `body` returns the next request, in this thread.

        `receive` gets, in the event loop, each response with its request and the `time.monotonic()` before it was sent.
        """
        super().__init__(name="agentops-heartbeat", daemon=True)
        self._site = site
        self._http_options = http_options
        self._body = body
        self._receive = receive
        self._loop = asyncio.get_running_loop()
        self._wake = threading.Event()
        self._is_ended = False
        self._renew_s = 5.0
        self._last_turn = time.monotonic()
        self._is_failing = False

    def hurry(self) -> None:
        """Send the next heartbeat at once."""
        self._wake.set()

    def end(self) -> None:
        """End the thread after a request in progress. Does not wait."""
        self._is_ended = True
        self._wake.set()

    def run(self) -> None:
        """Send heartbeats until the end."""
        with httpx.Client(**self._http_options) as http:
            while not self._is_ended:
                self._wake.clear()
                pause = self._beat(http)
                if self._wake.wait(pause):
                    time.sleep(_HINT_PAUSE_S)

    def _beat(self, http: httpx.Client) -> float:
        """Send a heartbeat, and return the seconds until the next one."""
        began = time.monotonic()
        try:
            self._loop.call_soon_threadsafe(self._note_turn)
            if began - self._last_turn > _HANGS_S:
                raise AgentopsError(f"the event loop has been blocked for {began - self._last_turn:.0f} s")
            body = self._body()
            answer = self._post(http, body)
            self._loop.call_soon_threadsafe(self._receive, answer, body, began)
        except AgentopsError as error:
            if not self._is_failing:
                log.warning("agentops: leases cannot be renewed: %s", error)
            self._is_failing = True
            return min(_PAUSE_S, self._renew_s)
        except RuntimeError:  # the event loop is closed
            self._is_ended = True
            return 0.0
        self._is_failing = False
        self._renew_s = float(answer["renew_s"])
        return self._renew_s

    def _post(self, http: httpx.Client, body: Mapping[str, Any]) -> dict[str, Any]:
        headers = {**self._site.headers, "Content-Type": "application/json"}
        try:
            response = http.post(
                f"{self._site.base}/heartbeat", content=encoded(body), headers=headers, timeout=_TIMEOUT_S
            )
        except httpx.HTTPError as error:
            raise unreachable(error) from error
        return document_of(response)

    def _note_turn(self) -> None:
        self._last_turn = time.monotonic()
