"""Answers that providers cut off or refuse do not end a run, and the requests after them are accepted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runs.actions.resume import resume
from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall
from runs.worker.worker import Worker
from tests.support.answer_streams import EXPLANATION, REASONS, Reply, conversation, stream
from tests.support.engine import LEDGER_TOOLS
from tests.support.factories import drive, make_agent, make_run
from tests.support.recorded_vendor import THINKING_MODELS as MODELS
from tests.support.recorded_vendor import Answer, Vendor
from tests.support.recordings import OWN
from tests.support.run_checks import check, events

pytestmark = pytest.mark.django_db(transaction=True)
protocols = pytest.mark.parametrize("protocol", list(MODELS))
FAULTS = {"cut": ("answer_cut", "length"), "refused": ("answer_refused", "content_filter")}


def play(protocol: str, vendor: Vendor, worker: Worker, tmp_path: Path, *answers: Reply) -> AgentRun:
    vendor.answers = [stream(protocol, answer) for answer in answers]
    settings = {"ledger": str(tmp_path / "ledger")}
    agent = make_agent(provider="llm", model=MODELS[protocol], tools=LEDGER_TOOLS, settings=settings)
    return drive(make_run(agent, "Write."), worker)


def effects(tmp_path: Path) -> list[str]:
    """Return the call IDs in the ledger."""
    ledger = tmp_path / "ledger"
    return [line.split()[1] for line in ledger.read_text().splitlines()] if ledger.exists() else []


def texts_of(item: dict[str, Any]) -> str:
    """Return the texts of an item of a request, joined."""
    content = item.get("content")
    blocks = content if isinstance(content, list) else [{"text": content}]
    return " ".join(str(block.get("text")) for block in blocks if block.get("text"))


def resumed(run: AgentRun, worker: Worker, message: str | None = None) -> AgentRun:
    return drive(resume(run.pk, by="user:oscar", message=message).run, worker)


@pytest.mark.parametrize("end", list(FAULTS))
@protocols
def test_a_run_pauses(protocol: str, end: Any, vendor: Vendor, worker: Worker, tmp_path: Path) -> None:
    run = play(protocol, vendor, worker, tmp_path, Reply("The first half", end=end))

    reason, finish_reason = FAULTS[end]
    assert (run.status, run.status_reason, run.error_type) == ("paused", reason, reason)
    assert REASONS[protocol][end] in run.error_message
    assert (EXPLANATION in run.error_message) is (protocol == "anthropic" and end == "refused")
    [row] = AgentRunMessage.objects.filter(run=run, role="assistant")
    assert (row.content["finish_reason"], row.finish_reason) == (finish_reason, finish_reason)
    [ended] = [event.payload for event in events(run) if event.type == "llm.turn.end"]
    assert ended["finish_reason"] == finish_reason
    [error] = run.errors.all()
    assert (error.error_type, error.context, error.step_number) == (reason, "llm_complete", 1)
    check(run)


@protocols
def test_a_cut_answer_is_continued(protocol: str, vendor: Vendor, worker: Worker, tmp_path: Path) -> None:
    """The next request has the cut answer, and then the message of the resume."""
    run = play(protocol, vendor, worker, tmp_path, Reply("The first half", end="cut"), Reply(", and the rest."))
    new = resumed(run, worker)

    assert (new.status, new.result) == ("completed", ", and the rest."), new.error_message
    sent = conversation(protocol, vendor.asked[-1].body)
    assert [(item["role"], texts_of(item)) for item in sent] == [
        ("user", "Write."),
        ("assistant", "The first half"),
        ("user", "continue"),
    ]
    check(new)


@protocols
def test_a_refused_answer_is_not_sent_again(protocol: str, vendor: Vendor, worker: Worker, tmp_path: Path) -> None:
    """Both messages of the user become one turn, because some servers require alternating roles."""
    run = play(protocol, vendor, worker, tmp_path, Reply("I will", end="refused"), Reply("A poem."))
    new = resumed(run, worker, "Write a poem instead.")

    assert (new.status, new.result) == ("completed", "A poem."), new.error_message
    sent = conversation(protocol, vendor.asked[-1].body)
    assert {item["role"] for item in sent} == {"user"}
    assert " ".join(map(texts_of, sent)) == "Write. Write a poem instead."
    stored = AgentRunMessage.objects.filter(run__in=[run, new]).order_by("run_id", "position")
    assert [row.role for row in stored] == ["user", "assistant", "user", "assistant"]
    check(new)


@pytest.mark.parametrize("protocol", ["anthropic", "responses"])
def test_a_thought_at_the_end_is_not_sent_again(protocol: str, vendor: Vendor, worker: Worker, tmp_path: Path) -> None:
    """Providers refuse an answer that ends with thinking. Without it, nothing of this answer is left."""
    run = play(protocol, vendor, worker, tmp_path, Reply(thinking="Let me see", end="cut"), Reply("Seen."))
    assert (run.status, run.status_reason) == ("paused", "answer_cut")
    new = resumed(run, worker)

    assert (new.status, new.result) == ("completed", "Seen."), new.error_message
    sent = conversation(protocol, vendor.asked[-1].body)
    assert {item.get("role") for item in sent} == {"user"}
    assert " ".join(map(texts_of, sent)) == "Write. continue"
    check(new)


@pytest.mark.parametrize("arguments", ['{"n": 1', '{"n"', "{", ""])
@protocols
def test_a_call_that_was_cut_off_is_not_run(
    protocol: str, arguments: str, vendor: Vendor, worker: Worker, tmp_path: Path
) -> None:
    """The call before it is whole, and runs. The model gets both results after the resume."""
    calls = (("c1", "ledger_read", '{"n": 7}'), ("c2", "ledger_once", arguments))
    run = play(protocol, vendor, worker, tmp_path, Reply("Two calls.", calls=calls, end="cut"), Reply("Done."))

    assert (run.status, run.status_reason, run.step_count) == ("paused", "answer_cut", 1)
    assert "Not run: ledger_once." in run.error_message
    assert effects(tmp_path) == ["c1"]
    rows = AgentRunToolCall.objects.filter(run=run).order_by("id").values_list("call_id", "status", "starts")
    assert list(rows) == [("c1", "completed", 1), ("c2", "error", 0)]
    assert len(vendor.asked) == 1
    new = resumed(run, worker)

    assert (new.status, new.result) == ("completed", "Done."), new.error_message
    sent = json.dumps(vendor.asked[-1].body)
    assert "did 7" in sent
    assert "before the arguments of this call were complete" in sent
    assert effects(tmp_path) == ["c1"]
    check(new)


@protocols
def test_the_first_call_is_not_started_if_it_was_cut_off(
    protocol: str, vendor: Vendor, worker: Worker, tmp_path: Path
) -> None:
    """The first call of a whole answer is stored as running together with the answer."""
    run = play(protocol, vendor, worker, tmp_path, Reply(calls=(("c1", "ledger_once", '{"n": 1'),), end="cut"))

    assert (run.status, run.status_reason, effects(tmp_path)) == ("paused", "answer_cut", [])
    assert "tool.start" not in [event.type for event in events(run)]
    check(run)


@protocols
def test_calls_of_a_refused_answer_are_not_run(protocol: str, vendor: Vendor, worker: Worker, tmp_path: Path) -> None:
    """Neither the answer nor the results of its calls are sent again."""
    calls = (("c1", "ledger_once", '{"n": 1}'), ("c2", "ledger_read", '{"n": 2}'))
    run = play(protocol, vendor, worker, tmp_path, Reply("So.", calls=calls, end="refused"), Reply("Sorry."))

    assert (run.status, run.status_reason, effects(tmp_path)) == ("paused", "answer_refused", [])
    new = resumed(run, worker, "Do not.")

    assert (new.status, new.result) == ("completed", "Sorry."), new.error_message
    sent = conversation(protocol, vendor.asked[-1].body)
    assert {item.get("role") for item in sent} == {"user"}
    assert "Not run" not in json.dumps(sent)
    check(new)


def test_a_recorded_refusal(vendor: Vendor, worker: Worker) -> None:
    """It has no text. A resume sends the prompt again."""
    body = (OWN / "llm-http/anthropic-sdk/refusal_response.txt").read_bytes() + b"\n\n"
    vendor.answers = [Answer(body), stream("anthropic", Reply("A poem."))]
    run = drive(make_run(make_agent(provider="llm", model=MODELS["anthropic"], tools=[]), "Write."), worker)

    assert (run.status, run.status_reason) == ("paused", "answer_refused")
    assert run.error_message == "The model refused to answer (refusal): This request was refused due to policy."
    assert resumed(run, worker).result == "A poem."
    check(run)


def test_an_unmapped_reason_of_a_server_is_named(vendor: Vendor, worker: Worker, tmp_path: Path) -> None:
    """pydantic-ai passes on words that it does not know, such as those of gateways."""
    for word, reason in (("max_tokens", "answer_cut"), ("guardrail_intervened", "answer_refused")):
        body = stream("chat", Reply("Half", end="cut")).body.replace(b'"length"', json.dumps(word).encode())
        vendor.answers = [Answer(body)]
        agent = make_agent(provider="llm", model=MODELS["chat"], tools=[])
        run = drive(make_run(agent, "Write."), worker)

        assert (run.status, run.status_reason) == ("paused", reason), word
        assert word in run.error_message
        check(run)


def test_an_answer_that_ended_with_an_error_is_retried(vendor: Vendor, worker: Worker, tmp_path: Path) -> None:
    body = stream("chat", Reply("Half", end="cut")).body.replace(b'"length"', b'"network_error"')
    whole = stream("chat", Reply("Whole."))
    vendor.answers = [Answer(body), whole]
    run = drive(make_run(make_agent(provider="llm", model=MODELS["chat"], tools=[]), "Write."), worker)

    assert (run.status, run.result) == ("completed", "Whole."), run.error_message
    assert list(run.errors.values_list("error_type", flat=True)) == ["incomplete_answer"]
    check(run)
