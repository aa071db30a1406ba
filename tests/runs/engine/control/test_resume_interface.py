"""The interface of resume: its table of conditions, and the fields stored for a run.

Tested elsewhere: each policy with each action and the alias `recover` (policy/test_policy_acts.py,
tests/runs/agents/test_policies.py), `match` and `cooldown` of on_error (policy/test_policy_waits.py), the command with
`resumed` and `skipped` (tests/runs/commands/test_agent_resume_all.py), the command line of Claude Code
(sessions/test_resumed_sessions.py), cursors and order of lists (tests/runs/api/test_lists.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from django.test import Client
from pydantic_ai.messages import ModelMessage, ToolCallPart, ToolReturnPart

from runs.actions.resume import resume
from runs.lifecycle import inbox
from runs.models import AgentRun
from runs.providers.base import ModelCall
from runs.worker.in_process import advance_ready
from runs.worker.worker import Worker
from tests.support.engine import MakeScripted, endless, saying, texts
from tests.support.factories import drive, make_agent, make_person
from tests.support.scripted_model import PLAYS, Move

pytestmark = pytest.mark.django_db(transaction=True)
SYSTEM = "> Follow the script."
EARLIER = [SYSTEM, "> Go.", "< Step 1.", "< call-1", "> did 1"]
#: Columns: has an earlier session, message, append, expected messages in the model request.
TABLE: list[tuple[bool, str | None, bool, list[str]]] = [
    (True, None, True, [*EARLIER, "> continue"]),
    (True, "Use the other one.", True, [*EARLIER, "> Use the other one."]),
    (True, "Begin again.", False, [SYSTEM, "> Begin again."]),
    (False, None, True, [SYSTEM, "> Go."]),
    (False, "Begin like this.", False, [SYSTEM, "> Begin like this."]),
]


@pytest.mark.breaks_invariants("a run without an earlier session has lost its messages")
@pytest.mark.parametrize(("has_session", "message", "append", "sent"), TABLE)
def test_each_condition_sends_the_expected_messages(
    scripted: MakeScripted, has_session: bool, message: str | None, append: bool, sent: list[str]
) -> None:
    requests: list[tuple[int, list[ModelMessage]]] = []
    run = scripted(endless(requests), max_steps=1)
    if has_session:
        run = drive(run)
    else:
        run.messages.all().delete()
        inbox.pause(run.pk, by="ann")
    drive(resume(run.pk, by="ann", message=message, append=append).run)

    assert texts(requests[-1][1]) == sent


LAST = 45
RUN_FIELDS = {
    *("id", "status", "summary", "error_message", "max_steps", "parent_run_id", "resumed_from", "step_count"),
    *("created_at", "completed_at"),
}
#: The run ID of messages and calls is in the path.
MESSAGE_FIELDS = {"id", "role", "content", "step_number", "created_at"}
CALL_FIELDS = {
    *("id", "message_id", "tool_name", "input", "output", "status", "duration_ms"),
    *("step_number", "created_at"),
}


def first_child(call: ModelCall) -> str:
    """Return the run ID in the first result of the model's first call of spawn_agents."""
    parts = [part for message in call.history for part in message.parts]
    result = next(part for part in parts if isinstance(part, ToolReturnPart))
    return str(json.loads(str(result.content))[0]["run_id"])


def helping(call: ModelCall) -> Iterable[Move]:
    """Make 45 steps with a tool, then answer."""
    if call.number <= LAST:
        yield ToolCallPart("ledger_read", {"n": call.number}, f"call-{call.number}")
    else:
        yield "Found it."


@pytest.fixture
def tree(scripted: MakeScripted, worker: Worker) -> Any:
    """Return a coordinator, its child that paused after 45 steps, and the run that continues the child."""

    def lead(call: ModelCall) -> Iterable[Move]:
        if call.number == 1:
            tasks: list[dict[str, str]] = [{"agent": "helper", "prompt": "Look."}]
        elif call.number == 2:
            tasks = [{"resume_run_id": first_child(call), "prompt": "Go on, please."}]
        else:
            yield "All done."
            return
        yield ToolCallPart("spawn_agents", {"tasks": tasks}, f"call-{call.number}")

    run = scripted(lead, tools=["spawn_agents"])
    PLAYS["helping"] = helping
    make_agent(
        run.project,
        slug="helper",
        provider="scripted",
        model="scripted-model",
        tools=["ledger_read"],
        settings={**run.agent_config["settings"], "play": "helping"},
        max_steps=LAST,
    )
    while advance_ready(worker):
        pass
    run.refresh_from_db()
    yield (run, *AgentRun.objects.filter(parent_run=run).order_by("pk"))
    del PLAYS["helping"]


@pytest.fixture
def get(tree: Any) -> Any:
    run, client = tree[0], Client()
    client.force_login(make_person(run.project))

    def answer(path: str, **query: str) -> Any:
        response = client.get(f"/api/projects/{run.project.slug}/agent-runs{path}", query)
        assert response.status_code == 200, response.content
        return response.json()

    return answer


def test_spawn_agents_continues_a_paused_run(tree: Any) -> None:
    run, child, successor = tree

    assert (run.status, child.status, successor.status) == ("completed", "resumed", "completed")
    assert (child.step_count, successor.resumed_from, successor.parent_run) == (LAST, child, run)
    assert (successor.step_base, successor.step_count, successor.max_steps) == (LAST, LAST + 1, LAST)
    assert [row.step_number for row in successor.messages.filter(role="assistant")] == [LAST + 1]
    first = successor.messages.order_by("position")[0]
    assert (first.role, first.content["parts"][0]["content"], first.step_number) == ("user", "Go on, please.", LAST + 1)


def test_runs_messages_and_calls_have_the_required_fields(tree: Any, get: Any) -> None:
    run, child, successor = tree
    listed = get("", parent_run_id=str(run.pk))["results"]
    assert {row["id"] for row in listed} == {str(child.pk), str(successor.pk)}
    assert [row["id"] for row in get("", parent_run_id=str(run.pk), status="completed")["results"]] == [
        str(successor.pk)
    ]
    assert {row["id"] for row in get("", agent_id="helper")["results"]} == {str(child.pk), str(successor.pk)}

    shown = get(f"/{successor.pk}")
    assert set(shown) >= RUN_FIELDS
    assert (shown["parent_run_id"], shown["resumed_from"]) == (str(run.pk), str(child.pk))
    messages = get(f"/{child.pk}/messages")["results"]
    assert {row["role"] for row in messages} <= {"system", "user", "assistant", "tool_result"}
    assert [row["step_number"] for row in messages] == sorted(row["step_number"] for row in messages)
    answer = next(row for row in messages if row["role"] == "assistant")
    whole = get(f"/{child.pk}/messages/{answer['id']}")
    assert set(whole) >= MESSAGE_FIELDS
    [part] = [part for part in whole["content"]["parts"] if part["part_kind"] == "tool-call"]
    assert (part["tool_call_id"], part["tool_name"], part["args"]) == ("call-1", "ledger_read", {"n": 1})

    calls = get(f"/{child.pk}/tool-calls", tool_name="ledger_read", status="completed")["results"]
    assert [row["step_number"] for row in calls] == sorted(row["step_number"] for row in calls)
    assert get(f"/{child.pk}/tool-calls", status="error")["results"] == []
    assert get(f"/{child.pk}/tool-calls", tool_name="other")["results"] == []
    call = get(f"/{child.pk}/tool-calls/{calls[0]['id']}")
    assert set(call) >= CALL_FIELDS
    assert (call["message_id"], call["input"], call["output"]) == (answer["id"], {"n": 1}, "did 1")
    assert json.dumps(call["duration_ms"]).isdigit()
    [limit] = get(f"/{child.pk}/errors")["results"]
    assert (limit["context"], limit["attempt"], limit["call_id"]) == ("max_turns", 0, "")


def test_the_error_page_names_the_failure(tree: Any) -> None:
    child, client = tree[1], Client()
    client.force_login(make_person(child.project))

    page = client.get(f"/runs/{child.pk}/errors").content.decode()
    assert "<bdi>max_turns</bdi>" in page


def test_only_paused_runs_can_be_resumed_by_spawn_agents(scripted: MakeScripted, worker: Worker) -> None:
    """The model receives the refusal. test_subagents.py covers a lineage at its limit of 500 steps."""
    tasks = [{"agent": "helper", "prompt": "Look."}]

    def lead(call: ModelCall) -> Iterable[Move]:
        if call.number == 1:
            yield ToolCallPart("spawn_agents", {"tasks": tasks}, "call-1")
        elif call.number == 2:
            again = [{"resume_run_id": first_child(call), "prompt": "Go on."}]
            yield ToolCallPart("spawn_agents", {"tasks": again}, "call-2")
        else:
            yield "All done."

    run = scripted(lead, tools=["spawn_agents"])
    PLAYS["ended"] = saying(["Done."])
    make_agent(
        run.project,
        slug="helper",
        provider="scripted",
        model="scripted-model",
        tools=[],
        settings={**run.agent_config["settings"], "play": "ended"},
    )
    while advance_ready(worker):
        pass
    del PLAYS["ended"]

    refused = run.tool_calls.get(call_id="call-2")
    assert refused.status == "error"
    assert "Only paused runs can be resumed" in refused.output
