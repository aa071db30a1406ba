"""Lines of a session's sub-agents while the database fails."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import DatabaseError

from runs.external.session_agents import SessionAgents
from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall
from tests.support.databases import refusing
from tests.support.factories import drive, make_run

pytestmark = pytest.mark.django_db(transaction=True)


def line(call_id: str, number: int, text: str) -> dict[str, Any]:
    message = {"id": f"msg_{number}", "role": "assistant", "model": "m", "content": [{"type": "text", "text": text}]}
    return {"type": "assistant", "uuid": f"line-{number}", "parent_tool_use_id": call_id, "message": message}


def texts_of(child: AgentRun) -> list[str]:
    rows = AgentRunMessage.objects.filter(run=child, role="assistant").order_by("position")
    return [part["content"] for row in rows for part in row.content["parts"]]


@pytest.mark.breaks_invariants("the run's call gets its ID only after a line of its sub-agent has come")
def test_lines_received_before_their_call_are_stored_after_a_failed_attempt() -> None:
    run = drive(make_run())
    call = AgentRunToolCall.objects.filter(run=run).earliest("pk")
    agents = SessionAgents(run.pk, run.lease_epoch)
    agents.add([line("toolu_later", 1, "I look.")])
    AgentRunToolCall.objects.filter(pk=call.pk).update(call_id="toolu_later")

    further = [line("toolu_later", 2, "Two."), line("toolu_later", 3, "Three.")]
    refused = refusing("INSERT", "agent_run_messages", "CAST(NEW.content AS text) LIKE '%Three.%'")
    with refused, pytest.raises(DatabaseError):
        agents.add(further)
    assert not AgentRun.objects.filter(parent_run=run).exists()
    agents.add(further)

    assert texts_of(AgentRun.objects.get(parent_run=run)) == ["I look.", "Two.", "Three."]
