"""Recorded exchanges of a client with a site: a proxy that records them, a server that replays them, and a comparison.

A file has a JSON value in each line: first the IDs of the rows that existed before, by name, then each exchange in
order. Streams are recorded as the list of their frames.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import httpx

from agentops.client.event_stream import FrameParser

#: Request headers with a meaning for the site, except the key.
HEADERS = ("Agentops-Version", "Content-Type", "Idempotency-Key", "Last-Event-ID")
INGEST = "/api/internal/agent-events"
STREAM = "text/event-stream"
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")
#: Fields whose values differ between two runs of the same requests, or are for people.
VOLATILE = frozenset(
    {"clock_skew", "detail", "duration", "duration_ms", "request_id", "retry_after_ms", "seq", "last_seq"}
)


@dataclass
class Exchange:
    """A request and its response. `answer`: the JSON value, or the frames of a stream."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any
    status: int
    content_type: str
    answer: Any


@dataclass
class Conversation:
    """The exchanges of a client with a site, and the IDs of the rows that existed before, by name."""

    ids: dict[str, str]
    exchanges: list[Exchange] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> Conversation:
        ids, *exchanges = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        return cls(ids, [Exchange(**each) for each in exchanges])

    def write(self, path: Path) -> None:
        values = [self.ids, *map(asdict, self.exchanges)]
        path.write_text("".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values), encoding="utf-8")


def frames_of(response: httpx.Response) -> list[Any]:
    """Read a stream up to its end, or to the pause of its run, and return its frames with their data parsed."""
    frames: list[Any] = []
    parser = FrameParser()
    for chunk in response.iter_bytes():
        for frame in parser.feed(chunk):
            frames.append({"event": frame.name, "id": frame.id, "data": json.loads(frame.data or "null")})
            if frame.name == "end" or '"run.paused"' in frame.data:
                return frames
    return frames


def exchange(base_url: str, key: str, request: Exchange) -> Exchange:
    """Send a request to a site, and return it with the response of this site."""
    headers = {**request.headers, "Authorization": key}
    content = None if request.body is None else json.dumps(request.body)
    url = f"{base_url}{request.path}"
    options: Any = {"params": request.query, "headers": headers, "content": content, "timeout": 30}
    with httpx.stream(request.method, url, **options) as response:
        kind = response.headers.get("Content-Type", "").partition(";")[0]
        answer = frames_of(response) if kind == STREAM else json.loads(response.read() or b"null")
        return Exchange(**asdict(request) | {"status": response.status_code, "content_type": kind, "answer": answer})


Respond = Callable[[Exchange, str], Exchange]


@contextmanager
def serving(respond: Respond) -> Iterator[str]:
    """Serve on loopback, and yield the URL. `respond` gets each request, without a response, and its Authorization."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            body = json.loads(self.rfile.read(length)) if length else None
            address = urlsplit(self.path)
            headers = {name: self.headers[name] for name in HEADERS if name in self.headers}
            query = dict(parse_qsl(address.query))
            request = Exchange(self.command, address.path, query, headers, body, 0, "", None)
            answered = respond(request, self.headers.get("Authorization", ""))
            content = _content(answered)
            self.send_response(answered.status)
            self.send_header("Content-Type", answered.content_type)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_PATCH = do_GET

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _content(answered: Exchange) -> bytes:
    if answered.content_type != STREAM:
        return json.dumps(answered.answer).encode()
    return "".join(
        f"id: {frame['id']}\nevent: {frame['event']}\ndata: {json.dumps(frame['data'])}\n\n"
        for frame in answered.answer
    ).encode()


@contextmanager
def recording_proxy(site_url: str, conversation: Conversation) -> Iterator[str]:
    """Yield the URL of a proxy that appends each exchange with the site to a conversation."""

    def forward(request: Exchange, key: str) -> Exchange:
        answered = exchange(site_url, key, request)
        conversation.exchanges.append(answered)
        return answered

    with serving(forward) as url:
        yield url


@contextmanager
def replaying_site(conversation: Conversation) -> Iterator[tuple[str, list[str]]]:
    """Yield the URL of a server that gives the recorded responses, and the faults of the requests that it gets.

    Every request must be the next recorded one, because the recorded site refuses what it does not know. Only events
    of a recorder may come in batches of any size.
    """
    waiting = [each for each in conversation.exchanges if each.path != INGEST]
    posts = [each for each in conversation.exchanges if each.path == INGEST]
    events = [event for post in posts for event in post.body["events"]]
    results = [result for post in posts for result in post.answer["results"]]
    faults: list[str] = []

    def respond(request: Exchange, _: str) -> Exchange:
        if request.path == INGEST:
            count = len(request.body["events"])
            sent, answers = [events[:count], results[:count]]
            del events[:count], results[:count]
            faults.extend(_event_faults(sent, request.body["events"]))
            return Exchange(**asdict(posts[0]) | {"answer": {"results": answers}})
        recorded = waiting.pop(0) if waiting else request
        if _key_of(request) != _key_of(recorded):
            faults.append(f"sent {_key_of(request)} instead of {_key_of(recorded)}")
        return recorded

    with serving(respond) as url:
        yield url, faults
    faults.extend(f"not sent: {_key_of(each)}" for each in waiting)
    faults.extend(f"not sent: an event {each['type']}" for each in events)


def _key_of(request: Exchange) -> str:
    query = urlencode(sorted(request.query.items()))
    return f"{request.method} {request.path}?{query} {json.dumps(request.body, sort_keys=True)}"


def _event_faults(recorded: list[Any], sent: list[Any]) -> Iterator[str]:
    """Yield the differences of events in their type and fields. IDs, times and durations differ."""
    for old, new in zip(recorded, sent, strict=False):
        if (old["type"], old.keys(), old["payload"].keys()) != (new["type"], new.keys(), new["payload"].keys()):
            yield f"sent an event {new} instead of {old}"
    if len(sent) > len(recorded):
        yield f"sent {len(sent) - len(recorded)} events too many"


class Comparison:
    """Compares the responses of two sites to the same requests. The rules are those of docs/guides/api.md#versions."""

    def __init__(self, ids: Mapping[str, str]) -> None:
        #: Recorded texts, such as IDs and cursors → the texts of the other site.
        self.texts = dict(ids)

    def translate(self, text: str) -> str:
        """Replace the IDs and cursors in a text by those of the other site."""
        for old, new in self.texts.items():
            text = text.replace(old, new)
        return text

    def translated(self, request: Exchange) -> Exchange:
        """Return a recorded request with the IDs and cursors of the other site."""
        return Exchange(**json.loads(self.translate(json.dumps(asdict(request)))))

    def faults(self, recorded: Exchange, live: Exchange) -> list[str]:
        """Return what a program that was written for the recorded response would miss in the live one."""
        place = f"{recorded.method} {recorded.path}"
        if (recorded.status, recorded.content_type) != (live.status, live.content_type):
            return [f"{place}: {live.status} {live.content_type} {live.answer}, not {recorded.status}"]
        return [f"{place}: {fault}" for fault in self._faults(recorded.answer, live.answer, "")]

    def _faults(self, old: Any, new: Any, place: str) -> Iterator[str]:
        name = place.rpartition("/")[2]
        if isinstance(old, dict) and isinstance(new, dict):
            for key, value in old.items():
                if key == "id" and "data" in old:
                    continue  # of a frame: the seq of its event
                if key in new:
                    yield from self._faults(value, new[key], f"{place}/{key}")
                else:
                    yield f"{place}/{key} is missing"
        elif isinstance(old, list) and isinstance(new, list):
            yield from self._list_faults(old, new, place)
        elif old is None or (name in VOLATILE and type(old) is type(new)):
            return
        elif isinstance(old, str) and isinstance(new, str):
            if not self._is_same_text(old, new):
                yield f"{place} is {new!r}, not {old!r}"
        elif old != new or isinstance(old, bool) != isinstance(new, bool):
            yield f"{place} is {new!r}, not {old!r}"

    def _list_faults(self, old: list[Any], new: list[Any], place: str) -> Iterator[str]:
        """Match events by their type, because a site may store more of them, and all others by their place."""
        left = iter(new)
        for number, value in enumerate(old):
            kind = _type_of(value)
            matching = (each for each in left if kind is None or _type_of(each) == kind)
            if (other := next(matching, None)) is None:
                yield f"{place}/{number} is missing: {value}"
                return
            yield from self._faults(value, other, f"{place}/{number}")
        if old and _type_of(old[0]) is None and len(new) > len(old):
            yield f"{place} has {len(new)} entries, not {len(old)}"

    def _is_same_text(self, old: str, new: str) -> bool:
        if _UUID.fullmatch(old) and _UUID.fullmatch(new):
            return self.texts.setdefault(old, new) == new
        if "cursor=" in old:
            before, after = (dict(parse_qsl(urlsplit(each).query)) for each in (old, new))
            self.texts[before["cursor"]] = after.get("cursor", "")
            return before.keys() == after.keys()
        return bool(_TIME.match(old) and _TIME.match(new)) or self.translate(old) == new


def _type_of(value: Any) -> str | None:
    """Return the type of an event, or of the event in a frame of a stream."""
    if not isinstance(value, dict):
        return None
    if isinstance(value.get("data"), dict):
        return str(value["data"].get("type", value["event"]))
    return str(value["type"]) if "seq" in value and "type" in value else None
