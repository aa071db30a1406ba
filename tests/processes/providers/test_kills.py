"""Kill a worker in a conversation: the next worker's requests continue the conversation."""

from __future__ import annotations

import pytest

from agentops.accounts.models import Project
from runs.lifecycle import creation
from runs.models import Agent, AgentRun
from runs.statuses import RunStatus
from tests.support.databases import reconnect
from tests.support.loopback_servers import MockModelServer, assert_prefixes
from tests.support.recorded_vendor import THINKING_MODELS as MODELS
from tests.support.run_checks import check
from tests.support.stage import Stage

#: Points where the worker dies, and the resulting number of model calls. An answer that was not committed is requested
#: again.
POINTS = {"turn.in_transaction:2": 5, "tool.returned:1": 4, "model.answered:3": 5}
#: Modules loaded once for all workers, because loading takes seconds.
ADAPTERS = {
    "anthropic": "pydantic_ai.models.anthropic",
    "chat": "pydantic_ai.models.openai",
    "responses": "pydantic_ai.models.openai",
}


def start(stage: Stage, prompt: str, model: str) -> AgentRun:
    reconnect()
    project, _ = Project.objects.get_or_create(slug="kills", defaults={"name": "Kills"})
    agent = Agent.objects.create(
        project=project,
        slug="agent",
        provider="llm",
        model=model,
        instructions="Use the tools.",
        tools=["ledger_read", "ledger_idempotent"],
        settings={"ledger": str(stage.ledger)},
    )
    return creation.create(project, agent, prompt, by="test")


@pytest.mark.parametrize(("protocol", "point"), list(zip(MODELS, POINTS, strict=True)))
def test_the_next_worker_continues_the_conversation(
    protocol: str, point: str, stage: Stage, mock_model_server: MockModelServer
) -> None:
    prompt = f"Survive {point} over {protocol}"
    mock_model_server.script(
        prompt,
        {
            "reasoning": "Both at once.",
            "content": "I call two.",
            "toolCalls": [
                {"id": "call_1", "name": "ledger_read", "arguments": '{"n": 1}'},
                {"id": "call_2", "name": "ledger_idempotent", "arguments": '{"n": 2}'},
            ],
        },
        {"reasoning": "Once more.", "toolCalls": [{"id": "call_3", "name": "ledger_read", "arguments": '{"n": 3}'}]},
        {"toolCalls": [{"id": "call_4", "name": "ledger_read", "arguments": '{"n": 4}'}]},
        {"content": "Done."},
    )
    environment = mock_model_server.environment
    stage.fork_server.ask(load=ADAPTERS[protocol])
    first = stage.worker(chaos=point, **environment)
    run = start(stage, prompt, MODELS[protocol])
    first.killed()
    asked = len(mock_model_server.sent(prompt))
    stage.worker(**environment)
    stage.reaches(run, RunStatus.COMPLETED)

    sent = mock_model_server.sent(prompt)
    assert 0 < asked < len(sent) == len(mock_model_server.journal(prompt)) == POINTS[point]
    assert run.result == "Done."
    assert_prefixes(sent)
    check(run)
