"""A local model provider for the vendors' libraries. It answers first with two tool calls, then with a text."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

#: Input and output tokens of every answer.
TOKENS = (120, 34)
CALLS = (("call_a", "get_weather", {"city": "Zürich"}), ("call_b", "get_time", {"tz": "Europe/Zurich"}))
TEXT = "Sunny, and 12 o'clock."


class ModelHandler(BaseHTTPRequestHandler):
    """Answers the first request with calls, and later requests with a text."""

    protocol_version = "HTTP/1.1"
    count = 0

    def do_POST(self) -> None:
        document = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        ModelHandler.count += 1
        is_first = len(document["messages"]) == 1
        answer = _anthropic(is_first) if self.path.endswith("/messages") else _openai(is_first)
        content = json.dumps(
            {**answer, "id": f"{answer['id']}{ModelHandler.count}", "model": document["model"]}
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Write nothing."""


def serve() -> str:
    """Start the server on a thread, and return its URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), ModelHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


def _anthropic(is_first: bool) -> dict[str, object]:
    calls = [{"type": "tool_use", "id": i, "name": name, "input": arguments} for i, name, arguments in CALLS]
    return {
        "id": "msg_", "type": "message", "role": "assistant", "stop_sequence": None,
        "content": calls if is_first else [{"type": "text", "text": TEXT}],
        "stop_reason": "tool_use" if is_first else "end_turn",
        "usage": {"input_tokens": TOKENS[0], "output_tokens": TOKENS[1]},
    }  # fmt: skip


def _openai(is_first: bool) -> dict[str, object]:
    calls = [
        {"id": i, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for i, name, arguments in CALLS
    ]
    message = (
        {"role": "assistant", "content": None, "tool_calls": calls}
        if is_first
        else {"role": "assistant", "content": TEXT}
    )
    return {
        "id": "chatcmpl-", "object": "chat.completion", "created": 1_795_000_000,
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if is_first else "stop"}],
        "usage": {"prompt_tokens": TOKENS[0], "completion_tokens": TOKENS[1], "total_tokens": sum(TOKENS)},
    }  # fmt: skip
