"""The first words of an answer: the time from the provider's first chunk to the run page in Chromium.

The provider runs on the loopback interface and speaks Anthropic's protocol. The site runs in embedded mode with default
settings.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from bench.page_reader import RUN_PAGE, PageReader, chromium, reading
from bench.report import Row, heading, mid, note, percentile, show
from bench.stacks import PROJECT, embedded
from bench.workspace import Workspace

LIMIT_MS = 300
AGENT = {"agent_id": "talker", "provider": "llm", "model": "anthropic:claude-opus-4-8", "max_steps": 2}
FIRST = "I will look at the list first, and then say what is in it. "
REST = "It holds three entries."
#: Longer than the work of a worker or a page after a request.
SETTLED_S = 1.0
PATIENCE_S = 15.0


def run(workspace: Workspace, *, steps: int, quick: bool, with_peers: bool) -> None:
    heading("words: the first words of an answer in Chromium, on an idle machine")
    if chromium() is None:
        show(Row("first words", "-", "Chromium is not installed"))
        return
    samples = 2 if steps < 1000 else 5 if quick else 20
    with _provider() as provider, embedded(workspace, AGENT) as stack, reading(stack) as reader:
        _measure_answer(reader, stack.url, provider, -1)  # Warm-up: one-time work of the process and the browser.
        measurements = [_measure_answer(reader, stack.url, provider, number) for number in range(samples)]
    in_page, painted = ([each[index] for each in measurements] for index in (0, 1))
    median = mid(painted)
    limit = f"limit: {LIMIT_MS} ms"
    show(Row("first words: chunk to page, median", f"{median:.0f} ms", limit, median / LIMIT_MS, at_most=1))
    note(f"p95 {percentile(painted, 95):.0f} ms, longest {max(painted):.0f} ms, {samples} answers")
    note(f"in the document after {mid(in_page):.0f} ms; the rest is the time until the browser paints the frame")


def _measure_answer(reader: PageReader, url: str, provider: ScriptedProvider, number: int) -> tuple[float, float]:
    """Return the milliseconds from the first chunk to the words in the document, and to the frame that shows them."""
    page = reader.page
    page.goto(f"{url}/p/{PROJECT}/runs/new?agent={AGENT['agent_id']}")
    page.fill("#start-prompt", "What is in the list?")
    page.click("main form[method=post] button[type=submit]")
    page.wait_for_url(RUN_PAGE, wait_until="commit")
    page.wait_for_selector("#connection[data-state=live]", state="attached")
    provider.wait_for_request()
    # Not a divisor of any interval, so that each answer meets the worker and the page at another moment.
    page.wait_for_timeout(SETTLED_S * 1000 + 37 * number)
    sent_at = provider.say_first()
    page.wait_for_selector("html[data-bench-words]", state="attached")
    times = page.evaluate("() => [bench.words, bench.wordsSeen]")
    provider.say_rest()
    page.wait_for_selector("#head .status-completed")
    return times[0] - sent_at * 1000, times[1] - sent_at * 1000


class ScriptedProvider:
    """Responds to each request in two parts. The benchmark decides when each part is sent."""

    def __init__(self) -> None:
        self._requests, self._first, self._rest = (threading.Semaphore(0) for _ in range(3))
        self._sent_at: float | None = None
        self._first_sent = threading.Semaphore(0)

    def wait_for_request(self) -> None:
        self._wait(self._requests)

    def say_first(self) -> float:
        """Send the first words, and return the time in seconds since the epoch."""
        self._first.release()
        self._wait(self._first_sent)
        assert self._sent_at is not None
        return self._sent_at

    def say_rest(self) -> None:
        self._rest.release()

    def answer(self, write: Any) -> None:
        usage = {"input_tokens": 20, "output_tokens": 1}
        message = {
            "id": "msg_1", "type": "message", "role": "assistant", "content": [], "model": "claude-opus-4-8",
            "stop_reason": None, "stop_sequence": None, "usage": usage,
        }  # fmt: skip
        self._requests.release()
        write(_event(type="message_start", message=message))
        write(_event(type="content_block_start", index=0, content_block={"type": "text", "text": ""}))
        self._wait(self._first)
        self._sent_at = time.time()
        write(_text_event(FIRST))
        self._first_sent.release()
        self._wait(self._rest)
        write(_text_event(REST))
        write(_event(type="content_block_stop", index=0))
        write(_event(type="message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 20}))
        write(_event(type="message_stop"))

    def _wait(self, moment: threading.Semaphore) -> None:
        if not moment.acquire(timeout=PATIENCE_S):
            raise RuntimeError("the provider on loopback was not asked, or the page did not follow")


def _text_event(text: str) -> bytes:
    return _event(type="content_block_delta", index=0, delta={"type": "text_delta", "text": text})


def _event(**event: Any) -> bytes:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


class _Handler(BaseHTTPRequestHandler):
    provider: ScriptedProvider

    def log_message(self, *_: Any) -> None:
        """Log nothing, because only the table is printed."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self.provider.answer(self.wfile.write)


@contextmanager
def _provider() -> Iterator[ScriptedProvider]:
    """Start the provider, and point ANTHROPIC_BASE_URL of the product's processes to it."""
    provider = ScriptedProvider()
    handler = type("Handler", (_Handler,), {"provider": provider})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        os.environ["ANTHROPIC_BASE_URL"] = f"http://127.0.0.1:{server.server_address[1]}"
        os.environ["ANTHROPIC_API_KEY"] = "a key for a provider on loopback"
        try:
            yield provider
        finally:
            server.shutdown()
