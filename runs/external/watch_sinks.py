"""Stores watched sessions in the database of this site, or on another site through its API."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

import httpx
from django.db import DataError, Error, close_old_connections

from agentops.accounts.models import Project
from runs.external import live_sessions
from runs.external.event_input import IncomingEvent, RejectedEvent
from runs.external.import_runs import ImportHindered, NotImported
from runs.external.importers.base import ImportedRun, Item
from runs.external.live_sessions import KnownEvents
from runs.external.session_items import MAX_RUNS, dump_event, dump_head


class SinkUnavailable(Exception):
    """The sink is temporarily unavailable. Retry after at least `retry_after` seconds."""

    def __init__(self, text: str, *, retry_after: float = 0.0) -> None:
        super().__init__(text)
        self.retry_after = retry_after


class SinkRefused(Exception):
    """The items cannot be stored. A retry will fail too."""


class WatchSink(Protocol):
    """Stores sessions. Each method raises `SinkUnavailable` or `SinkRefused`."""

    def known(self, run_ref: str, event_ids: Sequence[str]) -> KnownEvents:
        """Return which of these events are stored."""
        ...

    def store(self, items: Sequence[Item]) -> None:
        """Store runs and events, all or nothing."""
        ...

    def let_wait(self, run_ref: str, *, with_open_calls: bool) -> bool:
        """Set a running session to waiting. Return False if it still runs."""
        ...


@contextmanager
def _storing() -> Iterator[None]:
    """Raise errors as `SinkRefused` or `SinkUnavailable`. After a database error, the next query reconnects."""
    try:
        yield
    except DataError as error:
        # The items are invalid, the connection is not: other items can be stored.
        raise SinkRefused(f"the database refuses it: {error}") from error
    except Error as error:
        close_old_connections()
        raise SinkUnavailable(f"the database cannot be used: {error}") from error
    except ImportHindered as error:
        raise SinkUnavailable(str(error)) from error
    except (RejectedEvent, NotImported) as error:
        raise SinkRefused(str(error)) from error


class LocalSink:
    """The database of this site."""

    def __init__(self, project: Project, *, by: str) -> None:
        self._project, self._by = project, by

    @_storing()
    def known(self, run_ref: str, event_ids: Sequence[str]) -> KnownEvents:
        return live_sessions.known_events(self._project, run_ref, event_ids)

    @_storing()
    def store(self, items: Sequence[Item]) -> None:
        live_sessions.store(self._project, items, by=self._by)

    @_storing()
    def let_wait(self, run_ref: str, *, with_open_calls: bool) -> bool:
        return live_sessions.let_wait(self._project, run_ref, with_open_calls=with_open_calls)


#: Timeout of a request in seconds.
TIMEOUT_S = 30.0
#: Maximum bytes and events of one request.
BATCH_BYTES, BATCH_EVENTS = 2 * 1024 * 1024, 500
#: Maximum event IDs that are looked up in one request.
BATCH_IDS = 5_000
#: Maximum bytes of an event. A site accepts a body of 5 MiB.
MAX_EVENT = 5 * 1024 * 1024 - 256 * 1024
#: Minimum bytes of a body that is sent compressed.
MIN_COMPRESSED = 2_048


class BadKey(Exception):
    """The site does not accept the API key."""


class RemoteSink:
    """Another site. Its API key has the scope `ingest`, and names the project."""

    def __init__(self, url: str, key: str, *, transport: httpx.BaseTransport | None = None) -> None:
        """`transport` replaces the network. Raises `ValueError` if `url` cannot be the URL of a site."""
        base = httpx.URL(url.rstrip("/"))
        if base.scheme not in ("http", "https") or not base.host or base.userinfo:
            raise ValueError(f"{url!r} is not the URL of a site: http:// or https://, and a host")
        self._base = str(base)
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        self._client = httpx.Client(timeout=TIMEOUT_S, headers=headers, transport=transport)

    def known(self, run_ref: str, event_ids: Sequence[str]) -> KnownEvents:
        stored: set[str] = set()
        open_id = None
        for start in range(0, len(event_ids), BATCH_IDS):
            some = list(event_ids[start : start + BATCH_IDS])
            answer = self._post("sessions/known", {"runId": run_ref, "event_ids": some})
            stored.update(answer["event_ids"])
            open_id = answer["open_id"] or open_id
        return KnownEvents(frozenset(stored), open_id)

    def store(self, items: Sequence[Item]) -> None:
        """Store runs and events, in several requests: if one fails, those before it remain stored."""
        heads = {item.run_ref: item for item in items if isinstance(item, ImportedRun)}
        events = [item for item in items if isinstance(item, IncomingEvent)]
        # A run must not end before its last event, so the ends are sent last.
        open_heads = [replace(head, ended=None) for head in heads.values()]
        by_ref = {head.run_ref: head for head in open_heads}
        if len(open_heads) > MAX_RUNS or not events:
            self._send(open_heads, [])
            open_heads = []
        for batch in _batches(events):
            # Each request names the runs of its events; if possible, all runs.
            self._send(open_heads or [by_ref[ref] for ref in dict.fromkeys(event["runId"] for event in batch)], batch)
        self._send([head for head in heads.values() if head.ended is not None], [])

    def let_wait(self, run_ref: str, *, with_open_calls: bool) -> bool:
        answer = self._post("sessions/wait", {"runId": run_ref, "with_open_calls": with_open_calls})
        return bool(answer["settled"])

    def _send(self, heads: Sequence[ImportedRun], events: Sequence[dict[str, Any]]) -> None:
        for start in range(0, len(heads), MAX_RUNS):
            runs = [dump_head(head) for head in heads[start : start + MAX_RUNS]]
            self._post("sessions", {"runs": runs, "events": list(events)})

    def _post(self, path: str, document: dict[str, Any]) -> dict[str, Any]:
        body = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
        headers = {}
        if len(body) >= MIN_COMPRESSED:
            body, headers = gzip.compress(body, 1), {"Content-Encoding": "gzip"}
        try:
            response = self._client.post(f"{self._base}/api/internal/{path}", content=body, headers=headers)
        except httpx.HTTPError as error:
            raise SinkUnavailable(f"{self._base} cannot be reached: {error}") from error
        return _answer_of(response)


def _answer_of(response: httpx.Response) -> dict[str, Any]:
    """Return the JSON object in a response. Raises `BadKey`, `SinkUnavailable` or `SinkRefused`."""
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
    """Return the seconds in a `Retry-After` header; 0 for a missing or unusual one."""
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
