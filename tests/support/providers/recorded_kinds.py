"""The kind of each recorded body: whether an agent with texts and tools can receive it, and if not, why.

`FILES` names every file. tests/runs/providers/test_recorded_bodies.py fails for a file that is missing there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.support.providers.recorded_vendor import RECORDED, blocks_of, usages_of
from tests.support.recordings.recorded_files import recordings

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
    "thinking": "thinking", "redacted_thinking": "thinking", "reasoning": "thinking", "tool_use": "calls",
    "function_call": "calls", "tool_calls": "calls", "compaction": "compaction", "mcp_list_tools": "vendor_mcp",
    "server_tool_use": "vendor_tool", "web_search_call": "vendor_tool",
}  # fmt: skip
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
