"""The attribute names of spans by meaning: of three generations of the GenAI conventions, and of other vocabularies.

In each list, the first attribute that a span has is used. The other vocabularies are OpenInference (`llm.`,
`openinference.`), Langfuse (`langfuse.`), Vercel's AI SDK (`ai.`), OpenLLMetry (`traceloop.`), LangSmith
(`langsmith.`), the client library of Anthropic (`anthropic.`), and version 1 of Google's ADK (`gcp.vertex.agent.`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

#: The kinds of spans, by the work that they report.
AGENT, MODEL_CALL, TOOL_CALL, EMBEDDING, OTHER = "agent", "model", "tool", "embedding", "other"
#: An agent hands its conversation to another one.
HANDOFF = "handoff"


def _others(*values: str) -> dict[str, str]:
    """Return entries for values that name work outside of the conversation."""
    return dict.fromkeys(values, OTHER)


#: The attributes that name the work of a span, and the kinds for their known values.
KINDS: Mapping[str, Mapping[str, str]] = {
    "langfuse.observation.type": {
        "agent": AGENT,
        "generation": MODEL_CALL,
        "embedding": EMBEDDING,
        "tool": TOOL_CALL,
        **_others("span", "event", "chain", "retriever", "evaluator", "guardrail"),
    },
    "openinference.span.kind": {
        "AGENT": AGENT,
        "LLM": MODEL_CALL,
        "EMBEDDING": EMBEDDING,
        "TOOL": TOOL_CALL,
        **_others("CHAIN", "RETRIEVER", "RERANKER", "GUARDRAIL", "EVALUATOR", "PROMPT"),
    },
    "gen_ai.operation.name": {
        "invoke_agent": AGENT,
        "chat": MODEL_CALL,
        "text_completion": MODEL_CALL,
        "generate_content": MODEL_CALL,
        "embeddings": EMBEDDING,
        "execute_tool": TOOL_CALL,
        "handoff": HANDOFF,
        **_others("create_agent", "invoke_workflow", "plan", "retrieval"),
    },
    "ai.operationId": {
        "ai.generateText.doGenerate": MODEL_CALL,
        "ai.streamText.doStream": MODEL_CALL,
        "ai.generateObject.doGenerate": MODEL_CALL,
        "ai.streamObject.doStream": MODEL_CALL,
        "ai.embed.doEmbed": EMBEDDING,
        "ai.embedMany.doEmbed": EMBEDDING,
        "ai.toolCall": TOOL_CALL,
        # These spans enclose the calls.
        **_others(
            "ai.generateText", "ai.streamText", "ai.generateObject", "ai.streamObject", "ai.embed", "ai.embedMany"
        ),
    },
    "traceloop.span.kind": {"agent": AGENT, "tool": TOOL_CALL, "handoff": HANDOFF, **_others("workflow", "task")},
    "llm.request.type": {"chat": MODEL_CALL, "completion": MODEL_CALL, "embedding": EMBEDDING, "rerank": OTHER},
}
#: The kinds for suffixes of unknown values of these attributes; the first match is used. For example, LiteLLM has
#: `acompletion`, `anthropic_messages`, `aresponses`, `aembedding` and `amoderation`.
ENDINGS: Mapping[str, Sequence[str]] = {
    EMBEDDING: ("embed", "embedding", "embeddings"),
    OTHER: ("moderation", "rerank", "transcription", "speech", "image_generation", "image_edit", "image_variation"),
    MODEL_CALL: (
        *("completion", "completions", "responses", "messages", "generate_content", "generate_content_stream"),
        *("chat", "converse", "converse_stream", ".doGenerate", ".doStream"),
    ),
}
#: Attributes that only spans of one kind have. They decide if a span does not name its work.
SIGNS: Mapping[str, Sequence[str]] = {
    TOOL_CALL: ("gen_ai.tool.name", "tool.name", "ai.toolCall.name"),
    MODEL_CALL: ("gen_ai.response.id", "gen_ai.response.model", "gen_ai.request.model", "llm.model_name"),
    AGENT: ("gen_ai.agent.name", "agent_name"),
}
MODEL = (
    *("gen_ai.response.model", "llm.response.model_name", "llm.model_name", "langfuse.observation.model.name"),
    *("ai.response.model", "gen_ai.request.model", "llm.request.model_name", "ai.model.id", "model_name"),
)
AGENT_NAME = (
    *("gen_ai.agent.name", "agent.name", "agent_name", "graph.node.id", "langsmith.metadata.lc_agent_name"),
    *("traceloop.entity.name", "gen_ai.agent.id"),
)
#: The name of the agent, on the spans of its model and tool calls.
AGENT_OF_CALL = ("gen_ai.agent.name", "langsmith.metadata.lc_agent_name", "agent_name", "traceloop.workflow.name")
TOOL_NAME = ("gen_ai.tool.name", "tool.name", "ai.toolCall.name", "tool_call.function.name", "traceloop.entity.name")
CALL_ID = ("gen_ai.tool.call.id", "tool_call.id", "ai.toolCall.id", "tool.id")
ARGUMENTS = (
    *("gen_ai.tool.call.arguments", "tool_call.function.arguments", "ai.toolCall.args", "tool.parameters"),
    *("tool_arguments", "langfuse.observation.input", "input.value", "traceloop.entity.input", "gen_ai.prompt"),
    "gcp.vertex.agent.tool_call_args",
)
RESULT = (
    *("gen_ai.tool.call.result", "ai.toolCall.result", "tool_response", "langfuse.observation.output"),
    *("output.value", "traceloop.entity.output", "gen_ai.completion", "gcp.vertex.agent.tool_response"),
)
SESSION = (
    *("gen_ai.conversation.id", "session.id", "langfuse.session.id", "ai.telemetry.metadata.sessionId"),
    "traceloop.association.properties.session_id",
)
RESPONSE_ID = ("gen_ai.response.id", "ai.response.id")
FINISH_REASON = (
    *("gen_ai.response.finish_reasons", "ai.response.finishReason", "llm.response.finish_reason"),
    *("llm.response.stop_reason", "gen_ai.completion.0.finish_reason", "llm.finish_reason", "ai.finishReason"),
)
TITLE = ("langfuse.trace.name",)
PROVIDER = ("gen_ai.provider.name", "gen_ai.system", "llm.provider", "ai.model.provider")
INPUT = (
    *("gen_ai.input.messages", "ai.prompt.messages", "langfuse.observation.input", "gen_ai.prompt"),
    *("input.value", "ai.prompt", "traceloop.entity.input", "gcp.vertex.agent.llm_request"),
)
OUTPUT = (
    *("gen_ai.output.messages", "langfuse.observation.output", "gen_ai.completion"),
    *("output.value", "ai.response.object", "final_result", "traceloop.entity.output"),
    "gcp.vertex.agent.llm_response",
)
INSTRUCTIONS = ("gen_ai.system_instructions",)
COST = ("gen_ai.usage.cost", "llm.cost.total", "operation.cost", "gen_ai.usage.total_cost")
USAGE: Mapping[str, Sequence[str]] = {
    "input_tokens": (
        *("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.usage.prompt_tokens"),
        *("llm.token_count.prompt", "ai.usage.inputTokens", "ai.usage.promptTokens", "ai.usage.tokens"),
    ),
    "output_tokens": (
        *("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.usage.completion_tokens"),
        *("llm.token_count.completion", "ai.usage.outputTokens", "ai.usage.completionTokens"),
    ),
    "total_tokens": (
        *("gen_ai.usage.total_tokens", "llm.usage.total_tokens", "llm.token_count.total", "ai.usage.totalTokens"),
    ),
    "cache_read_tokens": (
        *("gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cache_read_input_tokens"),
        *("gen_ai.usage.input_tokens.cached", "gen_ai.usage.input_tokens.cache_read"),
        *("gen_ai.usage.details.cache_read_tokens", "llm.token_count.prompt_details.cache_read"),
        *("llm.usage.cache_read_input_tokens", "ai.usage.inputTokenDetails.cacheReadTokens"),
        "ai.usage.cachedInputTokens",
    ),
    "cache_write_tokens": (
        *("gen_ai.usage.cache_creation.input_tokens", "gen_ai.usage.cache_creation_input_tokens"),
        *("gen_ai.usage.cache_write.input_tokens", "gen_ai.usage.cache_write_input_tokens"),
        *("gen_ai.usage.input_tokens.cache_write", "gen_ai.usage.input_tokens.cache_creation"),
        *("gen_ai.usage.details.cache_write_tokens", "llm.token_count.prompt_details.cache_write"),
        *("llm.usage.cache_creation_input_tokens", "ai.usage.inputTokenDetails.cacheWriteTokens"),
    ),
    "cache_write_1h_tokens": (
        *("gen_ai.usage.details.ephemeral_1h_input_tokens", "gen_ai.usage.cache_creation.ephemeral_1h_input_tokens"),
        "anthropic.usage.cache_creation.ephemeral_1h_input_tokens",
    ),
    #: Input tokens that were neither read from a cache nor written to it.
    "uncached_tokens": ("ai.usage.inputTokenDetails.noCacheTokens",),
    "reasoning_tokens": (
        *("gen_ai.usage.reasoning.output_tokens", "gen_ai.usage.reasoning_tokens", "llm.usage.reasoning_tokens"),
        *("gen_ai.usage.output_tokens.reasoning", "llm.token_count.completion_details.reasoning"),
        *("ai.usage.outputTokenDetails.reasoningTokens", "ai.usage.reasoningTokens"),
        "gen_ai.usage.details.reasoning_tokens",
    ),
}
#: Attributes that affect the price of a call (runs.providers.price_tiers). The answer's values have precedence over the
#: request's.
TIERS: Mapping[str, Sequence[str]] = {
    "service_tier": (
        *("openai.response.service_tier", "gen_ai.openai.response.service_tier", "gen_ai.response.service_tier"),
        *("anthropic.response.service_tier", "openai.request.service_tier", "gen_ai.openai.request.service_tier"),
        *("gen_ai.request.service_tier", "anthropic.request.service_tier"),
    ),
    "speed": ("gen_ai.response.speed", "gen_ai.request.speed"),
    "inference_geo": ("gen_ai.response.inference_geo", "gen_ai.request.inference_geo"),
}
#: The provider's own fields of the answer in Vercel's AI SDK, as JSON.
PROVIDER_METADATA = "ai.response.providerMetadata"
#: The provider's own usage, as JSON: of Logfire, and in LangChain's names, of LangSmith.
OWN_USAGE = ("gen_ai.usage.raw", "langsmith.metadata.usage_metadata")
#: Attributes with the provider's whole response, as JSON: of OpenInference, and of LangSmith.
RESPONSE = ("output.value", "gen_ai.completion")
#: Names of tools that are no tools: Google's ADK reports the joined results of parallel calls as a call.
NO_TOOLS = ("(merged tools)",)
#: The agents of a handoff: of OpenInference, and of Logfire and OpenLLMetry.
HANDOFF_FROM = ("from_agent", "gen_ai.handoff.from_agent", "input.value")
HANDOFF_TO = ("to_agent", "gen_ai.handoff.to_agent", "output.value")
LANGFUSE_USAGE, LANGFUSE_COST = "langfuse.observation.usage_details", "langfuse.observation.cost_details"
LANGFUSE_LEVEL, LANGFUSE_STATUS = "langfuse.observation.level", "langfuse.observation.status_message"
#: Our own attribute: see runs/telemetry/otlp_encoding.py.
RUN_STATUS = "agentops.run.status"


def first(attributes: Mapping[str, Any], names: Sequence[str]) -> Any:
    """Return the value of the first of these attributes that is not null; None without any."""
    return next((attributes[name] for name in names if attributes.get(name) is not None), None)


def label(attributes: Mapping[str, Any], names: Sequence[str], limit: int = 200) -> str:
    """Return the first of these attributes that is a text with printable characters, without the other characters.

    Returns at most `limit` characters; empty without such an attribute.
    """
    texts = (attributes[name] for name in names if isinstance(attributes.get(name), str))
    printed = ("".join(letter for letter in text if letter.isprintable())[:limit] for text in texts)
    return next((text for text in printed if text), "")
