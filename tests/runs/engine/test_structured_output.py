"""The result of an agent with an output schema is stored as a value, or the run pauses."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest

from agentops.base import schema_work
from runs.actions.resume import resume
from runs.models import AgentRun
from runs.providers.base import ModelCall
from runs.statuses import RunStatus
from tests.support.engine import MakeScripted
from tests.support.factories import drive
from tests.support.flows import EXPENSIVE_INPUTS, EXPENSIVE_SCHEMA
from tests.support.run_checks import check, events
from tests.support.scripted_model import Move

pytestmark = pytest.mark.django_db(transaction=True)
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def test_structured_output_is_stored_with_the_result(scripted: MakeScripted) -> None:
    run = drive(
        scripted(lambda _: ['{"city": "Zürich \\u0000", "token": "ghp_' + "a1B2" * 9 + '"}'], output_schema=SCHEMA)
    )

    assert run.status == RunStatus.COMPLETED
    assert run.structured_output["city"] == "Zürich �"
    # Redacted like every copy outside the message.
    assert run.structured_output["token"].startswith("[REDACTED:github_token:")
    check(run)


def test_an_invalid_output_pauses_the_run_and_a_resume_asks_the_model_again(scripted: MakeScripted) -> None:
    def play(call: ModelCall) -> Iterable[Move]:
        yield "Zürich." if call.number == 1 else '{"city": "Zürich"}'

    paused = drive(scripted(play, output_schema=SCHEMA))

    assert (paused.status, paused.status_reason, paused.error_type) == ("paused", "error", "invalid_output")
    assert "does not match the agent's output schema: it is not JSON" in paused.error_message
    assert [event.type for event in events(paused)][-2:] == ["error", "run.paused"]
    assert paused.structured_output is None
    run = drive(AgentRun.objects.get(pk=resume(paused.pk, by="test").run.pk))
    assert (run.status, run.structured_output) == (RunStatus.COMPLETED, {"city": "Zürich"})
    check(run)


def test_a_result_whose_check_takes_too_long_pauses_the_run(
    scripted: MakeScripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = scripted(lambda _: [json.dumps(EXPENSIVE_INPUTS)], output_schema=EXPENSIVE_SCHEMA)
    monkeypatch.setattr(schema_work, "MAX_STEPS", 200_000)
    paused = drive(run)

    assert (paused.status, paused.status_reason, paused.error_type) == ("paused", "error", "schema_too_expensive")
    assert "the check takes more than 200000 steps" in paused.error_message
    check(paused)


def test_a_run_with_an_unchecked_invalid_schema_is_not_driven(scripted: MakeScripted) -> None:
    queued = scripted(lambda _: ["{}"])
    queued.agent_config["settings"]["output_schema"] = "any"
    queued.save(update_fields=["agent_config"])
    run = drive(queued)

    assert run.status in (RunStatus.PAUSED, RunStatus.FAILED)
    assert "settings.output_schema must be a JSON Schema" in run.error_message
    assert run.step_count == 0
    check(run)
