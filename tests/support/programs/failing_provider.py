"""A model provider that can be down, overloaded or cut off: Anthropic Messages and OpenAI Chat on one port.

A separate process, started with the port of a previous process or 0. It reads orders from standard input, one per line:
`calm`, `storm`, `away`, `back`, `stats`; it answers each with one line of JSON. Its model answers depend only on the
request: the program that the prompt names, and the number of answers in the conversation.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

#: In a storm, the percentage of requests that get each status, and of streams that are cut.
REFUSED = {429: 8, 529: 8, 503: 4}
CUT = 30
#: Length of a burst: the number of consecutive requests with the same refusal.
BURST = 3
STEPS = 3
Json = dict[str, Any]


@dataclass
class Provider:
    port: int
    mode: str = "calm"
    random: random.Random = field(default_factory=lambda: random.Random(5))
    counts: Counter[str] = field(default_factory=Counter)
    server: asyncio.Server | None = None
    burst: list[int] = field(default_factory=list)

    async def open(self) -> None:
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", self.port)
        self.port = self.server.sockets[0].getsockname()[1]

    async def obey(self, order: str) -> Json:
        if order == "away" and self.server is not None:
            self.server.close()
            self.server = None
        elif order == "back" and self.server is None:
            await self.open()
            order = "calm"
        if order != "stats":
            self.mode = order
        return {"port": self.port, "mode": self.mode, **self.counts}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._answer(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request. Return False if the connection then closes."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        size = next(int(line.split(":")[1]) for line in head.splitlines() if line.startswith("content-length:"))
        request = json.loads(await reader.readexactly(size))
        speaks = anthropic if "/messages" in head.splitlines()[0] else openai
        self.counts["requests"] += 1
        if self.mode == "away":
            self.counts["away"] += 1
            writer.transport.abort()
            return False
        status = self._refusal()
        if status:
            self.counts[str(status)] += 1
            writer.write(refusal(status))
            await writer.drain()
            return True
        whole = stream(speaks(*place(request), str(request["model"])))
        if self.mode == "storm" and self.random.randrange(100) < CUT:
            self.counts["cut"] += 1
            writer.write(self._cut(whole))
            await writer.drain()
            return False
        self.counts["answered"] += 1
        writer.write(whole)
        await writer.drain()
        return True

    def _refusal(self) -> int:
        if self.mode != "storm":
            return 0
        if not self.burst:
            drawn = self.random.randrange(100)
            for status, share in REFUSED.items():
                drawn -= share
                if drawn < 0:
                    self.burst = [status] * self.random.randint(1, BURST)
                    break
        return self.burst.pop() if self.burst else 0

    def _cut(self, whole: bytes) -> bytes:
        """Return the answer up to a random byte. Half of the cut answers end as if they were complete."""
        head, body = whole.split(b"\r\n\r\n", 1)
        if self.random.random() < 0.5:
            return whole[: self.random.randrange(len(whole))]
        text = b"".join(pieces_of(body))
        kept = text[: self.random.randrange(len(text))]
        return head + b"\r\n\r\n" + chunked([kept] if kept else [])


def place(request: Json) -> tuple[str, int]:
    """Return the program of the conversation, and the number of its answers."""
    prompt = next(text_of(m["content"]) for m in request["messages"] if m["role"] == "user")
    return prompt, sum(m["role"] == "assistant" for m in request["messages"])


def text_of(content: Any) -> str:
    return content if isinstance(content, str) else str(content[0]["text"])


def said(program: str, answers: int) -> tuple[list[str], Json | None]:
    """Return the streamed words of an answer, and the call that it requests; the last answer requests none."""
    words = [f"{program}, answer {answers + 1}: "] + [f"word {n} of it — é. " for n in range(12)]
    if answers + 1 >= STEPS:
        return [*words, "That is all."], None
    return words, {"id": f"call_{answers}_{abs(hash_of(program))}", "name": "ledger_read", "n": answers}


def hash_of(text: str) -> int:
    return sum(place * ord(character) for place, character in enumerate(text, 1))


def anthropic(program: str, answers: int, model: str) -> list[str]:
    words, call = said(program, answers)
    usage = {"input_tokens": 100, "output_tokens": 1}
    message = {
        "id": f"msg_{hash_of(program)}_{answers}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }
    events: list[Json] = [{"type": "message_start", "message": message}]
    events += block(0, {"type": "text", "text": ""}, [{"type": "text_delta", "text": word} for word in words])
    if call is not None:
        given = [{"type": "input_json_delta", "partial_json": part} for part in ('{"n":', f" {call['n']}}}")]
        opened = {"type": "tool_use", "id": call["id"], "name": call["name"], "input": {}}
        events += block(1, opened, given)
    stop = {"stop_reason": "tool_use" if call else "end_turn", "stop_sequence": None}
    events += [{"type": "message_delta", "delta": stop, "usage": {"output_tokens": 20}}, {"type": "message_stop"}]
    return [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events]


def block(index: int, opened: Json, deltas: list[Json]) -> list[Json]:
    return [
        {"type": "content_block_start", "index": index, "content_block": opened},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def openai(program: str, answers: int, model: str) -> list[str]:
    words, call = said(program, answers)
    deltas: list[Json] = [{"role": "assistant", "content": ""}, *({"content": word} for word in words)]
    if call is not None:
        named = {"name": call["name"], "arguments": '{"n":'}
        deltas.append({"tool_calls": [{"index": 0, "id": call["id"], "type": "function", "function": named}]})
        deltas.append({"tool_calls": [{"index": 0, "function": {"arguments": f" {call['n']}}}"}}]})
    frame = {
        "id": f"chatcmpl-{hash_of(program)}-{answers}",
        "object": "chat.completion.chunk",
        "model": model,
        "created": 1_700_000_000,
    }
    chunks = [{**frame, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    reason = "tool_calls" if call else "stop"
    chunks.append({**frame, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
    used = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
    chunks.append({**frame, "choices": [], "usage": used})
    return [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks] + ["data: [DONE]\n\n"]


def stream(events: list[str]) -> bytes:
    head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head.encode() + chunked([event.encode() for event in events])


def chunked(pieces: list[bytes]) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def pieces_of(body: bytes) -> list[bytes]:
    pieces = []
    while True:
        size, rest = body.split(b"\r\n", 1)
        if not int(size, 16):
            return pieces
        pieces.append(rest[: int(size, 16)])
        body = rest[int(size, 16) + 2 :]


def refusal(status: int) -> bytes:
    kinds = {429: "rate_limit_error", 529: "overloaded_error"}
    error = {"type": kinds.get(status, "api_error"), "message": f"number {status}"}
    body = json.dumps({"type": "error", "error": error}).encode()
    head = f"HTTP/1.1 {status} No\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def main() -> None:
    provider = Provider(port=int(sys.argv[1]))
    await provider.open()
    loop = asyncio.get_running_loop()
    print(json.dumps(await provider.obey("stats")), flush=True)
    while order := (await loop.run_in_executor(None, sys.stdin.readline)).strip():
        print(json.dumps(await provider.obey(order)), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
