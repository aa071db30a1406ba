"""Blocks of messages in a form that is not known keep their raw text, with a mark, and are counted."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentops.accounts.models import Project
from runs.conversation.unknown_blocks import MARK, marked
from runs.external.importers.block_dialects import plain_content
from runs.models import AgentRun, AgentRunMessage
from runs.telemetry import metric_counts
from tests.support.factories import make_project
from tests.support.otlp import Exporter, agent, chat
from tests.support.recordings import import_content
from timeline.models import Event

pytestmark = pytest.mark.django_db
HOLOGRAM = {"type": "hologram", "depth": 3}
TEXT = '[Unknown block: hologram]\n{"depth":3,"type":"hologram"}'


def texts_of(run: AgentRun, role: str = "assistant") -> list[str]:
    rows = AgentRunMessage.objects.filter(run=run, role=role).order_by("position")
    return ["".join(str(part["content"]) for part in row.content["parts"]) for row in rows]


def flattened(prefix: str, block: dict[str, Any]) -> dict[str, Any]:
    return {f"{prefix}.message_content.{name}": value for name, value in block.items()}


OUTPUTS: dict[str, dict[str, Any]] = {
    "GenAI": {"gen_ai.output.messages": json.dumps([{"role": "assistant", "parts": [HOLOGRAM]}])},
    "chat message": {"gen_ai.output.messages": json.dumps([{"role": "assistant", "content": [HOLOGRAM]}])},
    "Responses API": {"gen_ai.output.messages": json.dumps([HOLOGRAM])},
    "OpenInference": {
        "llm.output_messages.0.message.role": "assistant",
        **flattened("llm.output_messages.0.message.contents.0", HOLOGRAM),
    },
    "Gemini": {"output.value": json.dumps({"content": {"role": "model", "parts": [HOLOGRAM]}})},
}


@pytest.mark.parametrize("form", OUTPUTS)
def test_an_answer_of_an_unknown_block_has_its_text(form: str) -> None:
    exporter = Exporter(make_project("otel"))
    exporter.send(agent(1), chat(2, 1, more=OUTPUTS[form]))
    exporter.settle()

    [run] = exporter.runs()
    assert texts_of(run) == [TEXT]


def test_unknown_blocks_of_strands_and_of_imports_have_their_text() -> None:
    converse = {"videoBlock": {"format": "mp4"}}
    message = {"role": "user", "content": [{"text": "See"}, converse]}
    [run] = import_content([message, {"role": "assistant", "content": [HOLOGRAM]}])

    assert texts_of(run, "user") == [f"See\n{MARK}videoBlock]\n{json.dumps(converse, separators=(',', ':'))}"]
    assert texts_of(run) == [TEXT]


def test_an_unknown_item_of_the_responses_api_is_part_of_the_answer() -> None:
    items = [
        {"role": "user", "content": "Search"},
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Found."}]},
    ]
    [run] = import_content(items)

    [text] = texts_of(run)
    assert text.startswith(f"{MARK}web_search_call]\n")
    assert text.endswith("Found.")


def test_outputs_of_tools_are_no_blocks() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "find", "arguments": "{}"}}
    answer = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "c", "content": [HOLOGRAM]}
    [run] = import_content([{"role": "user", "content": "Go"}, answer, result])

    assert texts_of(run, "tool_result") == ['{"depth":3,"type":"hologram"}']


def test_the_event_and_the_metric_have_the_number() -> None:
    metric_counts.begin()
    import_content([{"role": "user", "content": "Go"}, {"role": "assistant", "content": [HOLOGRAM, HOLOGRAM, "Hi"]}])

    events = Event.objects.filter(type="message.added").order_by("pk")
    assert [event.payload.get("unknown_blocks") for event in events] == [None, 2]
    project = Project.objects.get()
    counted = metric_counts.counts_of(list(Event.objects.filter(metric_counts.COUNTED_ROWS)))
    assert counted["unknown_blocks", f'project="{project.slug}"'] == 2


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ({"text": "a"}, [{"type": "text", "text": "a"}]),
        (
            {"toolUse": {"toolUseId": "c", "name": "t", "input": {"n": 1}}},
            [{"type": "tool_use", "id": "c", "name": "t", "input": {"n": 1}}],
        ),
        ({"cachePoint": {"type": "default"}}, []),
        (
            {"reasoningContent": {"reasoningText": {"text": "hm", "signature": "s"}}},
            [{"type": "thinking", "thinking": "hm", "signature": "s"}],
        ),
        (
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
            [{"type": "thinking", "thinking": "hm", "signature": None}],
        ),
        # Encrypted reasoning has no text.
        ({"type": "reasoning", "summary": [], "encrypted_content": "x"}, []),
        (
            {"image": {"format": "png", "source": {"bytes": "aQ=="}}},
            [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aQ=="}}],
        ),
        ({"text": "a", "thought": True}, [{"text": "a", "thought": True}]),
        (HOLOGRAM, [{"type": "text", "text": TEXT}]),
        ({}, [{"type": "text", "text": f"{MARK}no type]\n{{}}"}]),
    ],
)
def test_blocks_of_other_libraries_are_those_of_anthropic(block: dict[str, Any], expected: list[Any]) -> None:
    assert plain_content([block]) == expected


def test_the_name_in_a_mark_is_short_and_printable() -> None:
    assert marked({"type": "a\nb" * 100}).partition("]\n")[0] == f"{MARK}{'ab' * 32}"
