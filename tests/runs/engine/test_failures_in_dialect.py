"""Failed runs read with `?dialect=agent`: each failure is one `agent:error`, whichever events record it in the log."""

from __future__ import annotations

import json

import pytest
from pydantic_ai.messages import ToolCallPart

from runs.models import AgentRun
from runs.queries.agent_dialect import agent_texts
from runs.worker.worker import Worker
from tests.support.engine import DieAt, MakeScripted, fails, http, saying
from tests.support.factories import drive, make_run
from tests.support.run_checks import events
from timeline import log

pytestmark = pytest.mark.django_db(transaction=True)


def errors_of(run: AgentRun) -> list[str]:
    """Return the types of the failures, and check that reading events together or singly gives the same result."""
    log_events = list(log.events_of(run.pk).order_by("seq"))
    together = [json.loads(text) for texts in agent_texts(run.pk, log_events) for text in texts]
    one_by_one = [json.loads(text) for event in log_events for texts in agent_texts(run.pk, [event]) for text in texts]
    assert together == one_by_one
    assert len({event["eventId"] for event in together}) == len(together)
    return [event["errorType"] for event in together if event["type"] == "agent:error"]


def test_a_step_limit_is_one_failure(scripted: MakeScripted) -> None:
    run = drive(scripted(calls=[["ledger_read"], ["ledger_read"]], max_steps=1))

    assert (run.status, errors_of(run)) == ("paused", ["error_max_turns"])


def test_a_failed_call_and_the_step_limit_after_it_are_two_failures(scripted: MakeScripted) -> None:
    run = drive(scripted(saying([ToolCallPart("ledger_read", {"n": "many"}, "a")], ["Never."]), max_steps=1))

    assert run.tool_calls.get().status == "error"
    assert (run.status, errors_of(run)) == ("paused", ["error_tool_use", "error_max_turns"])


@pytest.mark.parametrize(
    ("action", "status"), [({}, "paused"), ({"action": "fail"}, "failed"), ({"action": "escalate"}, "paused")]
)
def test_a_failure_of_the_model_is_one_failure(
    scripted: MakeScripted, die_at: DieAt, worker: Worker, action: dict[str, str], status: str
) -> None:
    run = fails(scripted, die_at, worker, action) if action else drive(scripted(saying([http(401)])))

    assert (run.status, errors_of(run)) == (status, ["unauthorized"])


def test_repeated_calls_are_one_failure(scripted: MakeScripted) -> None:
    run = drive(scripted(lambda call: [ToolCallPart("ledger_read", {"n": 1}, f"c{call.number}")]))

    assert (run.status, errors_of(run)) == ("stopped", ["repeated_calls"])


def test_a_run_that_cannot_be_loaded_has_one_failure() -> None:
    run = make_run()
    AgentRun.objects.filter(pk=run.pk).update(agent_config=run.agent_config | {"provider": "gone"})
    run = drive(run)

    assert len(errors_of(run)) == 1
    assert events(run)[-1].type == "run.paused"
