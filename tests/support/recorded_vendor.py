"""A provider on loopback that answers model calls with recorded bodies, and the kind of each recorded body.

`FILES` names every body, and why an agent with texts and tools cannot receive some of them.
tests/runs/providers/test_recorded_bodies.py fails for a file that is missing there.
"""

from __future__ import annotations

import gzip
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

import yaml

from tests.support.recordings import recordings

#: The directory of recorded requests and answers.
RECORDED = "llm-http"
Framing = Literal["chunked", "broken", "close"]
#: Request path → protocol.
PROTOCOLS = {"/messages": "anthropic", "/chat/completions": "chat", "/responses": "responses"}
MODELS = {
    "anthropic": "anthropic:claude-sonnet-4-6",
    "chat": "openai-chat:gpt-4o",
    "responses": "openai-responses:gpt-4o",
}
#: The same protocols with models that resend their thoughts, if the protocol supports that.
THINKING_MODELS = MODELS | {"responses": "openai-responses:gpt-5"}


@dataclass(frozen=True)
class Answer:
    """The response to one request: a body, its bytes before `cut` being sent, and its ending.

    `chunked` ends like a whole body, `broken` without its last chunk, `close` with the end of the connection, as a body
    without a length does. `pauses` are the seconds to wait before the byte at a position.
    """

    body: bytes
    cut: int | None = None
    framing: Framing = "chunked"
    status: int = 200
    content_type: str = "text/event-stream"
    pauses: tuple[tuple[int, float], ...] = ()
    #: Bytes of a chunk. None: as few chunks as the pauses allow.
    piece: int | None = None

    @property
    def sent(self) -> bytes:
        return self.body[: self.cut]


@dataclass(frozen=True)
class Asked:
    path: str
    headers: dict[str, str]
    body: Any


@dataclass
class Vendor:
    url: str
    #: The answers in order; the last one repeats.
    answers: list[Answer] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    vendor: Vendor

    def log_message(self, *_: Any) -> None:
        """Print nothing to the terminal."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        vendor = self.vendor
        vendor.asked.append(Asked(self.path, dict(self.headers), body))
        answer = vendor.answers.pop(0) if len(vendor.answers) > 1 else vendor.answers[0]
        self.send_response(answer.status)
        self.send_header("content-type", answer.content_type)
        # The tests close their event loops, so no connection may be kept alive.
        self.send_header("connection", "close")
        if answer.framing != "close":
            self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        with suppress(ConnectionError):  # The client may disconnect.
            self._send(answer)
        self.close_connection = True

    def _send(self, answer: Answer) -> None:
        sent, begin = answer.sent, 0
        for position, seconds in (*answer.pauses, (len(sent), 0.0)):
            between, begin = sent[begin:position], position
            for at in range(0, len(between), answer.piece or len(between) or 1):
                piece = between[at : at + (answer.piece or len(between))]
                self.wfile.write(piece if answer.framing == "close" else b"%x\r\n%s\r\n" % (len(piece), piece))
            time.sleep(seconds)
        if answer.framing == "chunked":
            self.wfile.write(b"0\r\n\r\n")


@contextmanager
def vendor_at_work() -> Iterator[Vendor]:
    handler = type("Handler", (_Handler,), {})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    handler.vendor = vendor = Vendor(f"http://127.0.0.1:{server.server_address[1]}")  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=[0.01], daemon=True)
    thread.start()
    try:
        yield vendor
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


# --- Recorded bodies ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FixtureResult:
    """The body of a streamed answer as a provider sent it."""

    name: str
    protocol: str
    body: bytes


def streams() -> list[FixtureResult]:
    """Return every streamed answer of the recorded exchanges."""
    found = [
        FixtureResult(path.stem, "anthropic", path.read_bytes() + b"\n\n")
        for path in recordings(f"{RECORDED}/anthropic-sdk")
    ]
    for exchange in exchanges("text/event-stream"):
        if exchange.protocol and b"data: " in exchange.body:
            found.append(FixtureResult(exchange.name, exchange.protocol, exchange.body))
    return found


@dataclass(frozen=True)
class Exchange:
    """A recorded request and its response."""

    name: str
    #: Empty for requests that are not model calls: token counts, files, conversations, and retired APIs.
    protocol: str
    url: str
    status: int
    body: bytes


def exchanges(containing: str = "") -> list[Exchange]:
    """Return the recorded exchanges of all files that contain this text."""
    found = []
    for path in recordings(RECORDED):
        if path.suffix != ".yaml" or containing not in (text := path.read_text()):
            continue
        for number, recorded in enumerate(yaml.load(text, yaml.CSafeLoader)["interactions"]):
            answer, url = recorded["response"], recorded["request"]["uri"]
            status = answer["status"]["code"] if isinstance(answer["status"], dict) else answer["status"]
            found.append(Exchange(f"{path.stem}-{number}", _protocol(url), url, status, _body(answer)))
    return found


def _body(answer: dict[str, Any]) -> bytes:
    body = answer.get("body")
    body = body.get("string") if isinstance(body, dict) else body
    if body is None:
        return json.dumps(answer.get("parsed_body")).encode()
    body = body.encode() if isinstance(body, str) else body
    return gzip.decompress(body) if body.startswith(b"\x1f\x8b") else body


def _protocol(uri: str) -> str:
    path = uri.partition("?")[0]
    return next((name for end, name in PROTOCOLS.items() if path.endswith(end)), "")


def has_ended(protocol: str, sent: bytes) -> bool:
    """Return whether the bytes contain the protocol's terminal event. An independent implementation, line by line."""
    return any(_is_terminal(protocol, event) for event in _events(sent))


def _events(sent: bytes) -> Iterator[dict[str, Any]]:
    for line in sent.decode(errors="replace").splitlines():
        if line.startswith("data:"):
            try:
                event = json.loads(line[5:])
            except ValueError:
                continue
            if isinstance(event, dict):
                yield event


def _is_terminal(protocol: str, event: dict[str, Any]) -> bool:
    if protocol == "anthropic":
        return event.get("type") == "message_stop"
    if protocol == "responses":
        return event.get("type") in ("response.completed", "response.incomplete", "response.failed")
    return any(choice.get("finish_reason") for choice in event.get("choices") or [])


def blocks_of(body: bytes) -> Iterator[str]:
    """Yield the types of an answer's parts, named as in its protocol."""
    whole = [json.loads(body)] if body.startswith(b"{") else []
    for event in (*whole, *_events(body)):
        parts = [*(event.get("content") or ()), *(event.get("output") or ())]
        parts += [event.get("content_block") or {}, event.get("item") or {}]
        yield from (part["type"] for part in parts if "type" in part)
        for choice in event.get("choices") or ():
            said = choice.get("message") or choice.get("delta") or {}
            yield from (name for name, value in said.items() if value)


def usages_of(body: bytes) -> Iterator[dict[str, Any]]:
    """Yield the usage objects of a body, named as in its protocol. A stream may contain several."""
    for event in [json.loads(body)] if body.startswith(b"{") else _events(body):
        for place in (event, event.get("message") or {}, event.get("response") or {}):
            if isinstance(place.get("usage"), dict):
                yield place["usage"]


#: Kinds that an agent with texts and tools can receive.
MET = {
    "text": "texts, also with cached input, logprobs and moderation",
    "calls": "calls of the agent's own tools, alone, after a text or several at once",
    "thinking": "thoughts: with signature, redacted, encrypted, as a summary or as plain reasoning; then a text",
    "thinking+calls": "thoughts, then calls",
    "refusal": "a text that the vendor has stopped",
    "refused": "an error in place of an answer (400)",
}
#: Kinds that it cannot receive, with the reason.
OTHERS = {
    "vendor_tool": "a web search or code that ran at the vendor: requests offer function tools only",
    "vendor_mcp": "tools of an MCP server that the vendor called: requests name no server, MCP is a matter of ours",
    "compaction": "a conversation that the vendor has shortened: requests do not ask for it, trimming is ours",
    "token_count": "an API that counts tokens: never called",
    "conversation": "OpenAI's Conversations API, which creates and deletes what it stores: never called",
    "completion": "a completion of a prompt, from the APIs before messages: never called",
    "no_model": "the echo of a request by a web server in plain text: no model answers like that",
}
#: Kinds in OTHERS that are model calls. They are parsed, stored and sent again nevertheless.
ALSO_REBUILT = frozenset({"vendor_tool", "vendor_mcp", "compaction"})
#: Block types of the three protocols → the kind of a body that contains them.
TELLING = {
    "thinking": "thinking",
    "redacted_thinking": "thinking",
    "reasoning": "thinking",
    "tool_use": "calls",
    "function_call": "calls",
    "tool_calls": "calls",
    "compaction": "compaction",
    "mcp_list_tools": "vendor_mcp",
    "server_tool_use": "vendor_tool",
    "web_search_call": "vendor_tool",
}
#: The directory whose files contain only the bodies of streams, without requests and headers.
STREAMS_ALONE = "anthropic-sdk"
#: Directory → file → the kinds of its exchanges, in order.
FILES: dict[str, dict[str, str]] = {
    "anthropic-sdk": {
        "basic_response": "text",
        "compaction_response": "compaction",
        "refusal_response": "refusal",
        "tool_use_response": "calls",
    },
    "openllmetry/anthropic": {
        "test_completion-test_anthropic_completion_legacy": "completion",
        "test_messages-test_anthropic_message_create_legacy": "text",
        "test_messages-test_anthropic_tools_history_legacy": "calls",
        "test_messages-test_anthropic_tools_legacy": "calls",
        "test_messages-test_async_anthropic_beta_message_stream_manager_legacy": "text",
        "test_messages-test_async_anthropic_message_create_legacy": "text",
        "test_messages-test_with_asyncio_run_legacy": "text",
        "test_prompt_caching-test_anthropic_prompt_caching_async_legacy": "text text",
    },
    "openllmetry/openai": {
        "test_chat-test_chat_context_propagation": "text",
        "test_chat-test_chat_with_messages_attributes": "text",
        "test_completions-test_completion_with_messages_attributes": "completion",
    },
    "pydantic-ai/anthropic": {
        "test_anthropic_always_on_capability_toolset_is_visible": "text",
        "test_anthropic_code_execution_tool_stream": "vendor_tool",
        "test_anthropic_count_tokens_with_adaptive_thinking_and_output_tools": "token_count calls",
        "test_anthropic_count_tokens_with_native_tools": "token_count",
        "test_anthropic_count_tokens_with_tool_search_replay": "token_count",
        "test_anthropic_deferred_capability_tool_callable_without_tool_search": "calls calls text",
        "test_anthropic_deferred_capability_without_tool_search_across_models[claude-fable-5]": "calls calls text",
        "test_anthropic_deferred_capability_without_tool_search_across_models[claude-sonnet-4-6]": "calls calls text",
        "test_anthropic_lazy_advertisement_live": "calls calls text",
        "test_anthropic_memory_tool": "calls text",
        "test_anthropic_model_instructions": "text",
        "test_anthropic_model_thinking_part_redacted_stream": "thinking",
        "test_anthropic_model_thinking_part_stream": "thinking",
        "test_anthropic_model_usage_limit_exceeded": "token_count",
        "test_anthropic_model_usage_limit_not_exceeded": "token_count text",
        "test_anthropic_model_web_search_tool_stream": "vendor_tool",
        "test_anthropic_opus_46_adaptive_thinking_accepts_tool_output[provider_specific]": "calls",
        "test_anthropic_opus_46_features[effort]": "text",
        "test_anthropic_opus_47_features": "text",
        "test_anthropic_opus_48_features": "text",
        "test_anthropic_prompted_output_multiple": "text",
        "test_anthropic_task_budget_adds_output_config_and_beta": "text",
        "test_anthropic_web_search_tool_stream": "vendor_tool",
        "test_extra_headers": "text",
        "test_image_url_input_invalid_mime_type": "text",
    },
    "pydantic-ai/openai": {
        "test_document_as_binary_content_input": "text",
        "test_document_as_binary_content_input_with_tool": "calls text",
        "test_openai_instructions": "text",
        "test_openai_instructions_with_responses_logprobs_streaming": "text",
        "test_openai_model_cerebras_provider_harmony": "thinking",
        "test_openai_moderation_stream": "text",
        "test_openai_o1_mini_system_role[system]": "refused",
        "test_openai_responses_native_output_decimal_strict": "text",
        "test_openai_web_search_tool_with_user_location": "text",
        "test_run_stream_sync_streams_real_model": "calls text",
        "test_text_document_as_binary_content_input": "text",
        "test_text_response": "no_model",
        "test_user_id": "text",
    },
    "pydantic-ai/openai_responses": {
        "test_azure_responses_reasoning_context_default_wire_contract[gpt-5.4]": "text",
        "test_azure_responses_reasoning_context_default_wire_contract[gpt-5.5]": "thinking",
        "test_azure_responses_reasoning_context_default_wire_contract[gpt-5.6-sol]": "text",
        "test_background_mode_streaming_vcr": "text",
        "test_openai_conversation_id_auto_respects_pydantic_ai_conversation_id": "conversation text text conversation",
        "test_openai_conversation_id_auto_without_history": "text",
        "test_openai_conversation_id_preserves_mismatched_history": "conversation text conversation",
        "test_openai_conversation_id_streaming_provider_details": "conversation text conversation",
        "test_openai_include_raw_annotations_non_streaming": "vendor_tool vendor_tool",
        "test_openai_responses_document_url_input": "text",
        "test_openai_responses_gpt_5_6_minimal_thinking_uses_low_effort": "text",
        "test_openai_responses_image_url_input": "text",
        "test_openai_responses_model_builtin_tools_web_search": "vendor_tool",
        "test_openai_responses_model_mcp_list_tools_stream_backfills_missing_results": "vendor_mcp",
        "test_openai_responses_model_simple_response": "text",
        "test_openai_responses_model_web_search_tool_with_user_location": "vendor_tool",
        "test_openai_responses_model_web_search_tool_without_external_access": "vendor_tool",
        "test_openai_responses_moderation_block_policy": "thinking",
        "test_openai_responses_output_type": "calls",
        "test_openai_responses_phase_streamed_on_part_start": "thinking+calls text",
        "test_openai_responses_raw_cot_stream_openrouter": "thinking",
        "test_openai_responses_reasoning_context_default_wire_contract[default-supported]": "text",
        "test_openai_responses_reasoning_generate_summary": "text",
        "test_openai_responses_runs_with_instructions_only": "text",
        "test_openai_responses_streaming_usage": "thinking+calls",
        "test_reasoning_model_with_temperature": "thinking",
        "test_reasoning_summary_auto": "thinking",
        "test_responses_count_tokens_with_tools": "token_count",
    },
}


def kinds() -> dict[str, str]:
    """Return the kind of each recorded body, by the name that recorded_vendor.py gives it."""
    return dict(_kinds())


def _kinds() -> Iterator[tuple[str, str]]:
    for directory, files in FILES.items():
        for name, words in files.items():
            for number, kind in enumerate(words.split()):
                yield (name if directory == STREAMS_ALONE else f"{name}-{number}"), kind


def files_there() -> dict[str, set[str]]:
    """Return the existing files by directory, named as in `FILES`."""
    found: dict[str, set[str]] = {}
    for path in recordings(RECORDED):
        directory = str(path.parent).partition(f"/{RECORDED}/")[2]
        is_usual = path.suffix == (".txt" if directory == STREAMS_ALONE else ".yaml")
        found.setdefault(directory, set()).add(path.stem if is_usual else path.name)
    return found


def told_by(body: bytes) -> str:
    """Return the kind of a body, derived from its blocks; "text" if it has no other blocks."""
    told = {TELLING[block] for block in blocks_of(body) if block in TELLING}
    alone = [kind for kind in ("vendor_mcp", "vendor_tool", "compaction") if kind in told]
    return alone[0] if alone else "+".join(sorted(told, reverse=True)) or "text"


def buckets_in(body: bytes) -> tuple[int, ...]:
    """Return the tokens that a body reports: fresh input, cache read, cache write for five minutes and for one hour,
    output without reasoning, reasoning.

    Anthropic counts cached input separately, OpenAI within the input. Both count reasoning within the output.
    """
    used: dict[str, Any] = {}
    for reported in usages_of(body):
        used |= reported
    details = used.get("output_tokens_details") or used.get("completion_tokens_details") or {}
    reasoning = details.get("reasoning_tokens") or details.get("thinking_tokens") or 0
    output = used.get("output_tokens", used.get("completion_tokens", 0)) - reasoning
    cached_of = used.get("input_tokens_details") or used.get("prompt_tokens_details")
    read = used.get("cache_read_input_tokens") or (cached_of or {}).get("cached_tokens") or 0
    total = used.get("input_tokens", used.get("prompt_tokens", 0))
    fresh = total - read if cached_of else total
    written_1h = (used.get("cache_creation") or {}).get("ephemeral_1h_input_tokens") or 0
    written = used.get("cache_creation_input_tokens") or 0
    return fresh, read, written - written_1h, written_1h, output, reasoning
