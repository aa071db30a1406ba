"""Stores watched sessions on another site, through its API."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import httpx

from runs.external.event_input import IncomingEvent
from runs.external.importers.base import ImportedRun, Item
from runs.external.live_sessions import KnownEvents
from runs.external.session_items import MAX_RUNS, dump_event, dump_head
from runs.external.watching.watch_sinks import SinkRefused, SinkUnavailable

#: Timeout of a request in seconds.
TIMEOUT_S = 30.0
#: Bytes and events of a request, and event IDs of a lookup.
BATCH_BYTES, BATCH_EVENTS, ASKED = 2 * 1024 * 1024, 500, 5_000
#: Bytes of the largest event. A site accepts a body of 5 MiB.
MAX_EVENT = 5 * 1024 * 1024 - 256 * 1024
#: Minimum bytes of a compressed body.
COMPRESSED = 2_048


class BadKey(Exception):
    """The site does not accept the API key."""


class RemoteSink:
    """Another site. Its API key has the scope `ingest`, and names the project."""

    def __init__(self, url: str, key: str, *, transport: httpx.BaseTransport | None = None) -> None:
        """Create it. `transport` replaces the network. Raises `ValueError` for a URL that cannot be a site."""
        base = httpx.URL(url.rstrip("/"))
        if base.scheme not in ("http", "https") or not base.host or base.userinfo:
            raise ValueError(f"{url!r} is not the URL of a site: http:// or https://, and a host")
        self._base = str(base)
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        self._client = httpx.Client(timeout=TIMEOUT_S, headers=headers, transport=transport)

    def known(self, run_ref: str, event_ids: Sequence[str]) -> KnownEvents:
        """Return which of these events are stored."""
        stored: set[str] = set()
        open_id = None
        for start in range(0, len(event_ids), ASKED):
            asked = list(event_ids[start : start + ASKED])
            answer = self._post("sessions/known", {"runId": run_ref, "event_ids": asked})
            stored.update(answer["event_ids"])
            open_id = answer["open_id"] or open_id
        return KnownEvents(frozenset(stored), open_id)

    def store(self, items: Sequence[Item]) -> None:
        """Store runs and events. If a later request fails, the results of earlier requests remain stored."""
        heads = {item.run_ref: item for item in items if isinstance(item, ImportedRun)}
        events = [item for item in items if isinstance(item, IncomingEvent)]
        # A run must not end before its last event.
        opening = [replace(head, ended=None) for head in heads.values()]
        by_ref = {head.run_ref: head for head in opening}
        if len(opening) > MAX_RUNS or not events:
            self._send(opening, [])
            opening = []
        for batch in _batches(events):
            self._send(opening or [by_ref[ref] for ref in dict.fromkeys(event["runId"] for event in batch)], batch)
        self._send([head for head in heads.values() if head.ended is not None], [])

    def let_wait(self, run_ref: str, *, with_open_calls: bool) -> bool:
        """Set a running session to waiting. Return False if it still runs."""
        answer = self._post("sessions/wait", {"runId": run_ref, "with_open_calls": with_open_calls})
        return bool(answer["settled"])

    def _send(self, heads: Sequence[ImportedRun], events: Sequence[dict[str, Any]]) -> None:
        for start in range(0, len(heads), MAX_RUNS):
            runs = [dump_head(head) for head in heads[start : start + MAX_RUNS]]
            self._post("sessions", {"runs": runs, "events": list(events)})

    def _post(self, path: str, document: dict[str, Any]) -> dict[str, Any]:
        body = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
        headers = {}
        if len(body) >= COMPRESSED:
            body, headers = gzip.compress(body, 1), {"Content-Encoding": "gzip"}
        try:
            response = self._client.post(f"{self._base}/api/internal/{path}", content=body, headers=headers)
        except httpx.HTTPError as error:
            raise SinkUnavailable(f"{self._base} cannot be reached: {error}") from error
        return _answer_of(response)


def _answer_of(response: httpx.Response) -> dict[str, Any]:
    """Return the JSON object of an answer. Raises `BadKey`, `SinkUnavailable` or `SinkRefused`."""
    site = f"{response.url.scheme}://{response.url.netloc.decode()}"
    try:
        answer = response.json()
    except ValueError:
        answer = None
    if response.is_success and isinstance(answer, dict):
        return answer
    detail = answer.get("detail") if isinstance(answer, dict) else None
    text = f"{site} answers {response.status_code}{f': {detail}' if isinstance(detail, str) else ''}"
    if response.status_code in (401, 403):
        raise BadKey(text)
    if response.status_code in (408, 425, 429) or response.status_code >= 500:
        raise SinkUnavailable(text, retry_after=_seconds(response.headers.get("Retry-After", "")))
    raise SinkRefused(text)


def _seconds(text: str) -> float:
    return float(text) if text.isdecimal() and len(text) < 5 else 0.0


def _batches(events: Sequence[IncomingEvent]) -> Iterator[list[dict[str, Any]]]:
    """Yield the JSON forms of the events, in batches that fit a request."""
    batch: list[dict[str, Any]] = []
    size = 0
    for event in events:
        document = dump_event(event)
        length = len(json.dumps(document, ensure_ascii=False).encode(errors="replace"))
        if length > MAX_EVENT:
            text = f"the event {event.event_id} has {length:,} bytes, more than a site accepts: import the file there"
            raise SinkRefused(text)
        if batch and (size + length > BATCH_BYTES or len(batch) == BATCH_EVENTS):
            yield batch
            batch, size = [], 0
        batch.append(document)
        size += length
    if batch:
        yield batch
