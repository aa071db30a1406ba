"""Traces that were exported from Langfuse, with their observations. Each trace is a run.

A generation is an answer. The new messages of its input come before it. A generation within another one is the same
model call, traced by two libraries: the outer one has the message, the inner one has the counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from agentops.base.http import strict_json
from runs.external.foreign_payloads import count_of, read_usage, tokens_of
from runs.external.importers.base import ImportedRun, ImportFile, Item, read_json
from runs.external.importers.conversation import AnswerFacts, ChatMessage, ImportedConversation
from runs.external.importers.json_place import MAX_NAME, JsonPlace, looks_like, read_documents
from runs.external.importers.observed_messages import (
    answered_message,
    finish_reason_in,
    instructions_of,
    open_call,
    sent_messages,
    title_of_request,
    with_call_id,
)
from runs.external.importers.tool_outputs import read_output
from runs.lifecycle.title_limits import MAX_TITLE
from runs.providers.messages import canonical
from runs.providers.price_tiers import details_of
from runs.statuses import RunStatus

_GENERATION = "GENERATION"
_TOOL_NAMES = ("gen_ai.tool.name", "tool.name")
_CALL_ID = "gen_ai.tool.call.id"
#: Key of a tool's output in the Google ADK.
_TOOL_OUTPUT = "gcp.vertex.agent.tool_response"
_CACHE_READ = ("cache_read_input_tokens", "input_cached_tokens", "input_cache_read", "prompt_details.cache_read")
_CACHE_WRITE = (
    *("cache_creation_input_tokens", "input_cache_creation", "prompt_details.cache_write"),
    *("input_cache_write_tokens", "input_cache_write"),
)
_CACHE_WRITE_5M = ("input_cache_creation_5m", "ephemeral_5m_input_tokens", "cache_creation.ephemeral_5m_input_tokens")
_CACHE_WRITE_1H = ("input_cache_creation_1h", "ephemeral_1h_input_tokens", "cache_creation.ephemeral_1h_input_tokens")
_REASONING = ("output_reasoning_tokens", "output_reasoning", "completion_details.reasoning")
#: Names of the counts in the first versions.
_OLD_NAMES = {"promptTokens": "input", "completionTokens": "output", "totalTokens": "total"}
#: Fields with the service tier: of the request and of the answer. The later one has precedence.
_TIERS = ("modelParameters", "metadata")
#: The time of observations without a time, which come first.
_BEGINNING = datetime.min.replace(tzinfo=UTC)


class LangfuseImporter:
    name = "langfuse"
    title = "traces with observations, exported from Langfuse"

    def detect(self, file: ImportFile) -> bool:
        """Return whether the content is a trace with observations, or a list of such traces."""
        return looks_like(file, _is_export)

    def read(self, file: ImportFile) -> Iterator[Item]:
        yield from read_documents(file, self._read_all)

    def _read_all(self, place: JsonPlace) -> Iterator[Item]:
        """Yield the runs of a document: a trace, a list of traces, or a page of observations."""
        is_list = isinstance(place.value, list)
        if not is_list and "data" not in place.members():
            yield from self._read_trace(place, list(place.at("observations").items()))
            return
        by_trace: dict[str, list[JsonPlace]] = {}
        for item in (place if is_list else place.at("data")).items():
            if "observations" in item.members():
                yield from self._read_trace(item, list(item.at("observations").items()))
            else:
                by_trace.setdefault(item.at("traceId").name(), []).append(item)
        for trace_id, observations in by_trace.items():
            yield from self._read_trace(place.with_value({"id": trace_id}), observations)

    def _read_trace(self, root: JsonPlace, unordered: Sequence[JsonPlace]) -> Iterator[Item]:
        """Yield the run of a trace. `unordered`: its observations."""
        trace = root.at("trace") if "trace" in root.members() else root
        observations = sorted(unordered, key=lambda one: one.at("startTime").time() or _BEGINNING)
        roots = [one for one in observations if one.at("parentObservationId").value is None]
        has_failed = any(one.at("level").value == "ERROR" for one in roots)
        models = (one.at("model").label() for one in observations)
        generations = (one for one in observations if one.at("type").value == _GENERATION)
        titles = (title_of_request(one.at("input"), _attributes(one)) for one in generations)
        title = title_of_request(trace.at("input")) or next(filter(None, titles), "")
        head = ImportedRun(
            run_ref=root.run_reference(self.name, trace.at("id").value),
            agent=trace.at("name").label(),
            title=title[:MAX_TITLE],
            model=next((model for model in models if model), ""),
            session_id=trace.at("sessionId").label(),
            created_at=trace.at("timestamp").time() or next((one.at("startTime").time() for one in observations), None),
            labels=[tag.label()[:100] for tag in trace.at("tags").items()],
            ended=RunStatus.FAILED if has_failed else RunStatus.COMPLETED,
            error=next((one.at("statusMessage").text() for one in roots), "") if has_failed else "",
        )
        yield head
        yield from _read_observations(observations, ImportedConversation(head.run_ref, last_at=head.created_at))


def _is_export(value: Any) -> bool:
    first = (value if isinstance(value, list) else value.get("data", [value]))[0]
    observation = first["observations"][0] if "observations" in first else first
    return bool({"traceId", "type", "startTime"} <= observation.keys())


def _read_observations(observations: Sequence[JsonPlace], conversation: ImportedConversation) -> Iterator[Item]:
    """Yield the events of a trace. `observations`: in the order of their start."""
    by_id = {one.at("id").name(): one for one in observations}
    outer_ids_of = _outer_generations(by_id)
    #: The generations within each outermost generation.
    inner: dict[str, list[JsonPlace]] = {}
    for one in observations:
        outer = outer_ids_of[one.at("id").name()] if one.at("type").value == _GENERATION else None
        if outer is not None:
            inner.setdefault(outer, []).append(one)
    all_inner = {one.at("id").value for several in inner.values() for one in several}
    for one in observations:
        attributes = _attributes(one)
        tool_name = next((attributes[name] for name in _TOOL_NAMES if _is_name(attributes.get(name))), "")
        if one.at("type").value == _GENERATION:
            if one.at("id").value not in all_inner:
                within = inner.get(one.at("id").name(), [])
                parent_ids = {each.at("parentObservationId").value for each in within}
                leaves = [each for each in within if each.at("id").value not in parent_ids]
                yield from _read_generation(one, leaves or [one], attributes, conversation)
        elif one.at("type").value == "TOOL" or tool_name:
            tool_name = tool_name or one.at("name").label()[:MAX_NAME] or "tool"
            yield from _read_tool(one, tool_name, attributes, conversation)
        if one.at("level").value == "ERROR":
            text = one.at("statusMessage").text()
            yield conversation.error(one.at("name").label()[:64] or "error", text, one.at("endTime").time())
    yield from conversation.close()


def _is_name(value: object) -> bool:
    return isinstance(value, str) and value.isprintable() and len(value) <= MAX_NAME


def _outer_generations(by_id: Mapping[str, JsonPlace]) -> Mapping[str, str | None]:
    """Return the ID of the outermost generation around each observation, or None. Visits each observation once."""
    outer_ids: dict[str, str | None] = {}
    for first in by_id:
        name = first
        path = []
        while name in by_id and name not in outer_ids:
            outer_ids[name] = None  # breaks a cycle
            path.append(name)
            name = by_id[name].at("parentObservationId").text()
        for below in reversed(path):
            is_generation = name in by_id and by_id[name].at("type").value == _GENERATION
            outer_ids[below] = outer_ids.get(name) or (name if is_generation else None)
            name = below
    return outer_ids


def _read_generation(
    generation: JsonPlace,
    counted: Sequence[JsonPlace],
    attributes: Mapping[str, Any],
    conversation: ImportedConversation,
) -> Iterator[Item]:
    """Yield the events of a model call. `counted`: the generations whose tokens and costs count for it."""
    began_at = generation.at("startTime").time()
    output = generation.at("output")
    sent = [with_call_id(one, conversation.open_calls) for one in sent_messages(generation.at("input"), attributes)]
    yield from conversation.add_request([*instructions_of(output), *sent], began_at)
    message = answered_message(output, generation.at("id").name())
    costs = [cost for cost in map(_cost, counted) if cost is not None]
    usage: dict[str, int] = {}
    for one in counted:
        for name, count in _usage(one).items():
            usage[name] = usage.get(name, 0) + count
    facts = AnswerFacts(
        model=generation.at("model").label(),
        usage={**usage, **_tier(generation)},
        cost=sum(costs) if costs else None,
        began_at=began_at,
        at=generation.at("endTime").time() or began_at,
        finish_reason=finish_reason_in(output),
    )
    yield from conversation.add_checked(message, output, facts)


def _read_tool(
    tool: JsonPlace, name: str, attributes: Mapping[str, Any], conversation: ImportedConversation
) -> Iterator[Item]:
    """Yield the result of a tool, and its call, if no answer requested it."""
    facts = AnswerFacts(began_at=tool.at("startTime").time(), at=tool.at("endTime").time())
    output = read_output(tool.at("output").value or attributes.get(_TOOL_OUTPUT) or tool.at("output").value)
    call_id = attributes.get(_CALL_ID) or output.call_id
    if not isinstance(call_id, str) or call_id not in conversation.open_calls:
        call_id = open_call(name, conversation.open_calls)
    if not call_id:
        call_id = tool.at("id").name()
        yield conversation.unrequested_call(call_id, name, tool.at("input").value, facts)
    has_failed = tool.at("level").value == "ERROR" or output.has_failed
    value = output.value
    if has_failed and not value:
        value = tool.at("statusMessage").text()
    text = value if isinstance(value, str) else "" if value is None else canonical(value)
    message = ChatMessage(role="tool", content=text, call_ids=[call_id], tool_name=name, has_failed=has_failed)
    yield from conversation.add(message, facts)


def _attributes(observation: JsonPlace) -> Mapping[str, Any]:
    """Return the attributes of the observation's span."""
    attributes = _object(observation.at("metadata").value).get("attributes")
    return attributes if isinstance(attributes, dict) else {}


def _object(value: Any) -> Mapping[str, Any]:
    """Return an object, or the object in a JSON text, as some exports have it; empty for any other value."""
    if isinstance(value, str):
        try:
            value = read_json(value.encode(errors="replace"))
        except strict_json.NotJson:
            return {}
    return value if isinstance(value, dict) else {}


def _usage(observation: JsonPlace) -> dict[str, int]:
    """Return the tokens of a generation. Older exports have them without details, or as top-level fields."""
    usage = observation.at("usageDetails").members() or observation.at("usage").members()
    old = {name: value for name, value in (usage or observation.members()).items() if name in _OLD_NAMES}
    return tokens_of_details({**usage, **{_OLD_NAMES[name]: value for name, value in old.items()}})


def _tier(generation: JsonPlace) -> dict[str, str]:
    """Return the fields that name the service tier, from the answer's metadata or else from the request."""
    return details_of({name: value for field in _TIERS for name, value in _object(generation.at(field).value).items()})


def tokens_of_details(details: Mapping[str, Any]) -> dict[str, int]:
    """Return the tokens in usage details. As in Langfuse, counts whose name contains `input` or `output` are summed.

    Their parts, such as cached tokens, are not added if the total shows that `input` and `output` include them. The
    drop-in for OpenAI sends the provider's usage under its own names, with details in objects.
    """
    if "prompt_tokens" in details or any(isinstance(value, Mapping) for value in details.values()):
        return tokens_of(read_usage(details))
    counts = {name: count for name, value in details.items() if (count := count_of(value)) is not None}

    def first(names: Sequence[str]) -> int:
        return next((counts[name] for name in names if name in counts), 0)

    def sum_of(word: str) -> int:
        return sum(count for name, count in counts.items() if word in name)

    sent, received, written = sum_of("input"), sum_of("output"), first(_CACHE_WRITE)
    written_5m, written_1h = first(_CACHE_WRITE_5M), first(_CACHE_WRITE_1H)
    if written and (written == written_5m + written_1h or _has_parts(counts)):
        sent -= written_5m + written_1h  # the same tokens under two names
    else:
        written += written_5m + written_1h
    if {"input", "output"} <= counts.keys() and counts.get("total") == counts["input"] + counts["output"]:
        sent, received = counts["input"], counts["output"]
    return {
        "input_tokens": sent,
        "output_tokens": received,
        "cache_read_tokens": first(_CACHE_READ),
        "cache_write_tokens": written,
        "cache_write_1h_tokens": written_1h,
        "reasoning_tokens": first(_REASONING),
    }


def _has_parts(counts: Mapping[str, int]) -> bool:
    """Return whether the details have the sum of the cache writes and its parts, both under Anthropic's names."""
    return "cache_creation_input_tokens" in counts and any("ephemeral" in name for name in counts)


def _cost(observation: JsonPlace) -> float | None:
    """Return the cost in US dollars; None if it is unknown or 0."""
    total = observation.at("costDetails").members().get("total") or observation.at("totalCost").value
    total = total or observation.at("calculatedTotalCost").value  # before version 3
    return total if isinstance(total, int | float) and total else None
