"""A server on loopback with the protocol of Anthropic's Messages API, which plays a script."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any, ClassVar

#: The content of an answer: blocks, or its text.
Content = str | list[dict[str, Any]]
USAGE = {"input_tokens": 10, "output_tokens": 7, "cache_read_input_tokens": 3, "cache_creation_input_tokens": 5}
_numbers = count(1)


def call(call_id: str, name: str, **arguments: Any) -> dict[str, Any]:
    """Return a block that requests a tool call."""
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


@dataclass
class ClaudeModel:
    """A model that answers a conversation with N answers by the answer N of its script."""

    script: Sequence[Content]
    url: str = ""
    #: The bodies of the requests, for this model.
    requests: list[dict[str, Any]] = field(default_factory=list)
    #: The number of the answer that is not sent before `release`.
    held: int | None = None
    release: threading.Event = field(default_factory=threading.Event)
    #: By the number of an answer: the status with which its requests are refused.
    refusals: dict[int, int] = field(default_factory=dict)

    def answer(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Return the status and the document of the answer to a request."""
        self.requests.append(body)
        number = sum(message["role"] == "assistant" for message in body["messages"])
        if (status := self.refusals.get(number)) is not None:
            return status, {
                "type": "error",
                "error": {"type": "invalid_request_error", "message": "refused by the script"},
            }
        if number == self.held:
            self.release.wait(60)
        content = self.script[min(number, len(self.script) - 1)]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        uses_tools = any(block["type"] == "tool_use" for block in blocks)
        return 200, {
            "id": f"msg_{next(_numbers):06}",
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "content": blocks,
            "stop_reason": "tool_use" if uses_tools else "end_turn",
            "stop_sequence": None,
            "usage": USAGE,
        }

    @property
    def conversation(self) -> list[tuple[str, list[str]]]:
        """The roles of the last request's messages, with the texts, calls and results in each."""
        messages = self.requests[-1]["messages"]
        return [(message["role"], _parts(message["content"])) for message in messages]


def _parts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    parts = [_part(block) for block in content]
    return [part for part in parts if part and not part.startswith("<system-reminder>")]


def _part(block: dict[str, Any]) -> str:
    match block["type"]:
        case "text":
            return str(block["text"])
        case "tool_use":
            return f"{block['name']}({json.dumps(block['input'], sort_keys=True)})"
        case "tool_result":
            content = block.get("content")
            texts = [content] if isinstance(content, str) else [one.get("text", "") for one in content or ()]
            # The program appends reminders to results.
            return "=" + "".join(text.partition("<system-reminder>")[0].rstrip() for text in texts)
    return ""


class _MessagesHandler(BaseHTTPRequestHandler):
    model: ClassVar[ClaudeModel]
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.path.partition("?")[0].endswith("/v1/messages"):
            self._send(404, "application/json", b"{}")
            return
        status, document = self.model.answer(body)
        if status == 200 and body.get("stream"):
            self._send(200, "text/event-stream", _events(document))
        else:
            self._send(status, "application/json", json.dumps(document).encode())

    def do_GET(self) -> None:
        self._send(404, "application/json", b"{}")

    do_HEAD = do_GET

    def _send(self, status: int, kind: str, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Write nothing."""


def _events(document: dict[str, Any]) -> bytes:
    """Return an answer as the bytes of a stream."""
    begun = {**document, "content": [], "stop_reason": None}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": begun}]
    for index, block in enumerate(document["content"]):
        is_text = block["type"] == "text"
        empty = {**block, "text": ""} if is_text else {**block, "input": {}}
        delta = (
            {"type": "text_delta", "text": block["text"]}
            if is_text
            else {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        )
        events.append({"type": "content_block_start", "index": index, "content_block": empty})
        events.append({"type": "content_block_delta", "index": index, "delta": delta})
        events.append({"type": "content_block_stop", "index": index})
    ended = {"stop_reason": document["stop_reason"], "stop_sequence": None}
    events += [{"type": "message_delta", "delta": ended, "usage": document["usage"]}, {"type": "message_stop"}]
    return "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events).encode()


@contextmanager
def serving(model: ClaudeModel) -> Iterator[ClaudeModel]:
    """Serve a model on a free port of loopback until the end of the block."""

    class Handler(_MessagesHandler):
        pass

    Handler.model = model
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    model.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield model
    finally:
        model.release.set()
        server.shutdown()
        server.server_close()
        thread.join()
