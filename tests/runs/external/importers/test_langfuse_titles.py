"""The title of an imported Langfuse trace is its input, not the start of its conversation."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.recordings import import_content

pytestmark = pytest.mark.django_db
HISTORY = [
    {"role": "user", "content": "Plan my trip"},
    {"role": "assistant", "content": "Sure."},
    {"role": "user", "content": "Book\nthe hotel"},
]


@pytest.mark.parametrize(
    ("asked", "title"),
    [
        *[(None, "Book"), ("Go", "Go"), ({"messages": HISTORY[:1]}, "Plan my trip"), ('{"state": {"x": 1}}', "Book")],
        # JSON inside JSON, as exported by the pages of Langfuse.
        *[('"What is it?"', "What is it?"), ('"Hm" again', '"Hm" again'), (r'"{\"args\": [\"joke\"]}"', "joke")],
        (r'"{\"state\": 1}"', "Book"),
    ],
)
def test_a_trace_is_named_by_its_input_or_by_the_last_message_of_its_first_generation(asked: Any, title: str) -> None:
    generation = {
        "id": "g",
        "traceId": "t",
        "type": "GENERATION",
        "startTime": "2026-01-05T10:00:00Z",
        "model": "gpt-4o",
        "input": HISTORY,
        "output": {"role": "assistant", "content": "Booked."},
    }
    later = generation | {
        "id": "h",
        "startTime": "2026-01-05T10:01:00Z",
        "input": [{"role": "user", "content": "later"}],
    }
    [run] = import_content({"id": "t", "name": "trip", "input": asked, "observations": [generation, later]})

    assert (run.title, run.agent_config["agent_id"]) == (title, "trip")


def test_a_generation_may_have_messages_only_in_attributes() -> None:
    """The form of agno: its input is a list of texts in no parsable format."""
    attributes = {
        "llm.input_messages.0.message.role": "system",
        "llm.input_messages.0.message.content": "Be brief.",
        "llm.input_messages.1.message.role": "user",
        "llm.input_messages.1.message.content": "Find a hotel",
    }
    generation = {
        "id": "g",
        "traceId": "t",
        "type": "GENERATION",
        "startTime": "2026-01-05T10:00:00Z",
        "output": "Done.",
        "input": {"messages": ["role='system' content='Be brief.'"]},
        "metadata": {"attributes": attributes},
    }
    unnamed = generation | {
        "id": "f",
        "startTime": "2026-01-05T09:00:00Z",
        "input": {"messages": ["x"]},
        "metadata": {},
    }
    [run] = import_content({"id": "t", "name": "trip", "observations": [unnamed, generation]})
    assert run.title == "Find a hotel"
