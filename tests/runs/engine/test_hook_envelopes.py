"""The telemetry interface: envelopes with the event names of hooks, sent to a URL, to a file and in this process.

Tested elsewhere: verdicts and order of hooks (tests/runs/hooks/test_resolution.py), when hooks run and that a failing
hook ends no run (approvals/test_hooks_of_runs.py), the events of Langfuse (tests/runs/telemetry/test_langfuse.py),
retries of the model (turns/test_model_retries.py) and of tools (turns/test_rows_of_steps.py), and their limits
(tests/runs/agents/test_retry_limits.py).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as site

from agentops.accounts.access import SYSTEM
from agentops.sinks import subscribe
from runs.actions import run_actions
from runs.models import AgentRun, AgentRunMessage, Checkpoint, RunError
from tests.support.engine import MakeScripted, http, saying, with_hooks
from tests.support.factories import drive
from tests.support.loopback_servers import Receiver
from tests.support.project_rows import export, make_sink
from tests.support.secret_samples import TOKENS

pytestmark = pytest.mark.django_db(transaction=True)
Envelope = dict[str, Any]
#: A successful call, a failing call, and an answer.
CALLS = [["ledger_read"], ["nothing"]]


def jsonl_of(run: AgentRun) -> list[Envelope]:
    path = Path(site.AGENTOPS_HOME) / "telemetry" / str(run.project_id) / f"{run.pk}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def told(run: AgentRun, **config: Any) -> list[Envelope]:
    """Return the envelopes that a file sink gets for an ended run."""
    make_sink(run.project, "jsonl", {"dialect": "hooks", **config}, from_start=True)
    export(2)
    return jsonl_of(run)


def names(envelopes: list[Envelope]) -> list[str]:
    return [envelope["event_type"] for envelope in envelopes]


def facts(envelope: Envelope) -> dict[str, Any]:
    """Return the payload without the IDs and the sequence number."""
    return {name: value for name, value in envelope["payload"].items() if name not in ("id", "run_id", "seq")}


def test_a_run_is_exported_as_envelopes(scripted: MakeScripted) -> None:
    run = scripted(calls=CALLS, arguments={"ledger_read": {"n": 7}})
    with subscribe() as events:
        run = drive(run)
        heard: list[Envelope] = []
        while not heard or heard[-1]["event_type"] != "agent_stop":
            envelope = events.get(10)
            assert envelope is not None
            heard.append(envelope)
    written = told(run)

    assert written == heard
    assert names(written) == [
        "agent_start",
        "turn_start",
        "pre_tool_use",
        "post_tool_use",
        "turn_end",
        "turn_start",
        "pre_tool_use",
        "post_tool_use_failure",
        "turn_end",
        "turn_start",
        "turn_end",
        "agent_stop",
    ]
    for envelope in written:
        assert set(envelope) == {"event_type", "timestamp_ms", "session_id", "agent_id", "payload"}
        assert isinstance(envelope["timestamp_ms"], int)
        assert (envelope["session_id"], envelope["agent_id"]) == (str(run.pk), run.agent_config["agent_id"])
    assert [envelope["timestamp_ms"] for envelope in written] == sorted(each["timestamp_ms"] for each in written)
    call = {"tool_name": "ledger_read", "args": {"n": 7}, "tool_use_id": "call-1-0"}
    assert [facts(each) for each in written[:5]] == [
        {"task": "Go."},
        {"turn": 1},
        call,
        {**call, "result": "did 7"},
        {"turn": 1},
    ]
    failed = facts(written[7])
    assert (set(failed), failed["tool_name"]) == ({"tool_name", "args", "tool_use_id", "error"}, "nothing")
    assert failed["error"]
    assert facts(written[-1]) == {"result": run.result}
    assert len({each["payload"]["id"] for each in written}) == len(written)


@pytest.mark.parametrize("batch_size", [1, 100])
def test_a_url_gets_the_same_envelopes(scripted: MakeScripted, receiver: Receiver, batch_size: int) -> None:
    run = drive(scripted(calls=CALLS))
    make_sink(run.project, "http", {"url": receiver.url, "dialect": "hooks", "batch_size": batch_size}, from_start=True)
    export()
    bodies = [request.json for request in receiver.received]
    got = [each for body in bodies for each in (body if isinstance(body, list) else [body])]

    assert got == told(run)


def test_hooks_is_the_default_dialect_of_a_new_sink(scripted: MakeScripted, receiver: Receiver) -> None:
    from runs.telemetry import sink_changes
    from runs.telemetry.sink_changes import SinkChange

    run = drive(scripted(calls=[]))
    sink_changes.create(
        run.project, "http", SinkChange(name="new", config={"url": receiver.url}), by="test", from_start=True
    )
    export()

    assert names([each for request in receiver.received for each in request.json]) == [
        "agent_start",
        "turn_start",
        "turn_end",
        "agent_stop",
    ]


def test_a_sink_with_selected_event_types_gets_all_of_them(scripted: MakeScripted) -> None:
    run = drive(scripted(calls=[["ledger_read"]], max_steps=1))
    assert run.status == "paused"
    make_sink(run.project, "jsonl", {"dialect": "hooks"}, event_types=["run.*", "error"], from_start=True)
    export(2)

    assert names(jsonl_of(run)) == ["run.created", "agent_start", "error", "turn_end", "run.paused"]


def test_a_denied_call_is_a_failure_after_pre_tool_use(scripted: MakeScripted) -> None:
    run = scripted(calls=[["ledger_once"]], tools=["ledger_once"])
    run = drive(with_hooks(run, approvals=[{"tools": "ledger_.*", "action": "deny", "reason": "not now"}]))

    envelopes = told(run)
    assert names(envelopes)[2:4] == ["pre_tool_use", "post_tool_use_failure"]
    assert "not now" in facts(envelopes[3])["error"]


def test_a_run_stopped_after_a_pause_ends_its_turn_once(scripted: MakeScripted) -> None:
    run = drive(scripted(calls=[["ledger_read"]], max_steps=1))
    run_actions.stop(SYSTEM, run)

    envelopes = told(run)
    assert names(envelopes)[-2:] == ["turn_end", "agent_stop"]
    assert names(envelopes).count("turn_end") == 1
    assert facts(envelopes[-1]) == {"result": None, "error": "operator"}


def test_envelopes_contain_no_secrets(scripted: MakeScripted) -> None:
    secret = TOKENS["anthropic"]()
    run = drive(scripted(calls=[["ledger_read"]], arguments={"ledger_read": {"n": 1, "note": secret}}))

    assert secret not in json.dumps(told(run))


def test_errors_name_the_failed_part_and_count_attempts_from_zero(scripted: MakeScripted, ledger: Path) -> None:
    """A tool that fails twice and the step limit: one row each."""
    ledger.mkdir()  # makes every attempt of the tool fail
    run = scripted(calls=[["ledger_read"]], max_steps=1, tool_max_retries=1)
    run = drive(run)

    assert (run.status, run.status_reason) == ("paused", "max_steps")
    rows = RunError.objects.filter(run=run).order_by("pk")
    assert [(row.context, row.attempt) for row in rows] == [("ledger_read", 0), ("ledger_read", 1), ("max_turns", 0)]
    assert [row.call_id for row in rows] == ["call-1-0", "call-1-0", ""]
    assert rows[2].error_type == "error_max_turns"
    assert "1 of 1 steps used" in rows[2].message


def test_a_failed_model_call_has_the_context_llm_stream(scripted: MakeScripted) -> None:
    run = drive(scripted(saying([http(503)], [http(503)], ["All done."])))

    assert run.status == "completed"
    rows = RunError.objects.filter(run=run).order_by("pk")
    assert [(row.context, row.attempt) for row in rows] == [("llm_stream", 0), ("llm_stream", 1)]


def test_an_unusable_answer_has_the_context_llm_complete(scripted: MakeScripted) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    run = drive(scripted(saying(["No JSON."]), output_schema=schema))

    assert (run.status, run.status_reason) == ("paused", "error")
    [row] = RunError.objects.filter(run=run)
    assert (row.context, row.attempt, row.error_type) == ("llm_complete", 0, run.error_type)


@pytest.mark.parametrize("action", ["fail", "escalate", "resume"])
def test_a_step_limit_stores_an_error_row_under_any_policy(scripted: MakeScripted, action: str) -> None:
    run = scripted(calls=[["ledger_read"]], max_steps=1)
    run.agent_config["policies"] = {"on_error": [{"match": "max_turns", "action": action}]}
    run.save(update_fields=["agent_config"])
    run = drive(run)

    assert [row.context for row in RunError.objects.filter(run=run)] == ["max_turns"]


def test_each_completed_turn_has_a_checkpoint_at_its_last_message(scripted: MakeScripted) -> None:
    run = drive(scripted(calls=CALLS))
    rows = Checkpoint.objects.filter(run=run).order_by("step_number")
    last = {
        row.step_number: row.position
        for row in AgentRunMessage.objects.filter(run=run).exclude(role="user").order_by("position")
    }

    assert [(row.step_number, row.last_message_position) for row in rows] == [(n, last[n]) for n in (1, 2, 3)]
