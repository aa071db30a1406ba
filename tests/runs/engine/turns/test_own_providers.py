"""Runs with a provider of a third-party package, and with providers that fail in various ways."""

from __future__ import annotations

import ast
import re
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from pydantic_ai.messages import ThinkingPart, ToolCallPart

from agentops.providers import AnswerEnd, ModelCall, ModelHTTPError, Piece, RequestUsage, StreamingProvider
from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall, RunError
from runs.providers.base import MEMBERS
from runs.statuses import RunStatus
from tests.support.engine import MakeScripted, added_parts
from tests.support.factories import drive
from tests.support.machine import ROOT
from tests.support.run_checks import check, events

pytestmark = pytest.mark.django_db(transaction=True)
Answer = Callable[[ModelCall], AsyncIterator[Piece]]
MakeRun = Callable[[Answer], AgentRun]
#: Answers of the test provider.
ANSWERS: dict[str, Any] = {}


class Told(StreamingProvider):
    name = "told"

    def answer(self, call: ModelCall) -> Any:
        return ANSWERS["answer"](call)


@pytest.fixture
def made(scripted: MakeScripted, settings: Any, quick_retries: None) -> Iterator[MakeRun]:
    settings.AGENTOPS_PROVIDER_MODULES = [__name__]
    settings.AGENTOPS_OUTAGE_S = 0

    def make(answer: Answer) -> AgentRun:
        ANSWERS["answer"] = answer
        run = scripted(calls=[])
        run.agent_config["provider"] = "told"
        run.save(update_fields=["agent_config"])
        return run

    with added_parts():
        yield make


def test_the_yielded_pieces_become_an_answer(made: MakeRun) -> None:
    async def answer(call: ModelCall) -> AsyncIterator[Piece]:
        if call.number == 1:
            yield ThinkingPart("First ")
            yield ThinkingPart("the ledger.", signature="sig")
            yield "I look "
            yield RequestUsage(input_tokens=3, output_tokens=1)
            yield "it up."
            yield ToolCallPart("ledger_read", {"n": 5}, "a")
            yield ToolCallPart("ledger_read", '{"n": 6}')
            yield RequestUsage(input_tokens=70, output_tokens=9, cache_read_tokens=20)
        else:
            assert [part.part_kind for part in call.history[-1].parts] == ["tool-return", "tool-return"]
            yield "Done."

    run = drive(made(answer))

    assert (run.status, run.result) == (RunStatus.COMPLETED, "Done.")
    first = AgentRunMessage.objects.get(run=run, role="assistant", step_number=1)
    kinds = [(part["part_kind"], part.get("content")) for part in first.content["parts"]]
    assert kinds[:2] == [("thinking", "First the ledger."), ("text", "I look it up.")]
    assert first.content["parts"][0]["signature"] == "sig"
    calls = AgentRunToolCall.objects.filter(run=run).order_by("id")
    assert [call.output for call in calls] == ["did 5", "did 6"]
    assert (run.input_tokens, run.output_tokens, run.cache_read_tokens) == (70, 9, 20)
    check(run)


def test_errors_of_the_provider_are_retried_or_pause_the_run(made: MakeRun) -> None:
    async def limited(call: ModelCall) -> AsyncIterator[Piece]:
        yield "Half of "
        raise ModelHTTPError(429, call.model, {"error": {"message": "slow down"}})

    run = made(limited)
    run = drive(run)
    assert set(RunError.objects.filter(run=run).values_list("error_type", flat=True)) == {"rate_limited"}
    assert "llm.turn.abandoned" in [event.type for event in events(run)]

    async def refused(call: ModelCall) -> AsyncIterator[Piece]:
        raise ModelHTTPError(401, call.model, None)
        yield ""

    run = drive(made(refused))
    assert (run.status, run.error_type) == (RunStatus.PAUSED, "unauthorized")
    check(run)


@pytest.mark.parametrize(
    ("end", "status", "reason", "finish_reason"),
    [
        (AnswerEnd("max_tokens"), "paused", "answer_cut", "length"),
        (AnswerEnd("SAFETY", "It may do harm."), "paused", "answer_refused", "content_filter"),
        (AnswerEnd("stop"), "completed", "", "stop"),
        (AnswerEnd("of tomorrow"), "completed", "", ""),
    ],
)
def test_the_end_of_an_answer_may_be_yielded(
    made: MakeRun, end: AnswerEnd, status: str, reason: str, finish_reason: str
) -> None:
    async def answer(call: ModelCall) -> AsyncIterator[Piece]:
        yield "Half"
        yield end

    run = drive(made(answer))

    assert (run.status, run.status_reason) == (status, reason)
    assert AgentRunMessage.objects.get(run=run, role="assistant").finish_reason == finish_reason
    assert end.explanation in run.error_message
    check(run)


def test_an_answer_that_ends_with_an_error_is_retried(made: MakeRun) -> None:
    tries: list[int] = []

    async def answer(call: ModelCall) -> AsyncIterator[Piece]:
        tries.append(call.number)
        yield "Half" if len(tries) == 1 else "Whole"
        yield AnswerEnd("network_error" if len(tries) == 1 else "end_turn")

    run = drive(made(answer))

    assert (run.status, run.result, tries) == ("completed", "Whole", [1, 1])
    assert RunError.objects.get(run=run).error_type == "incomplete_answer"
    check(run)


async def junk(call: ModelCall) -> AsyncIterator[Any]:
    yield 7


async def no_generator(call: ModelCall) -> str:
    return "Hello."


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (junk, "answer yielded a int; see docs/guides/providers.md"),
        (lambda call: iter(["Hello."]), "Told.answer must be an async generator"),
        (lambda call: "Hello.", "Told.answer must be an async generator"),
    ],
)
def test_an_invalid_answer_pauses_the_run(made: MakeRun, answer: Any, says: str) -> None:
    run = drive(made(answer))
    assert (run.status, run.error_type) == (RunStatus.PAUSED, "unusable_model")
    assert says in run.error_message
    check(run)


def test_the_example_in_the_guide_runs() -> None:
    guide = (ROOT / "docs/guides/providers.md").read_text(encoding="utf-8")
    [source] = re.findall(r"```python\n(.*?)```", guide.partition("## Providers of your own")[2], re.DOTALL)
    ast.parse(source)
    namespace: dict[str, Any] = {}
    exec(source, namespace)
    provider = namespace["AcmeProvider"]()
    assert all(hasattr(provider, member) for member in MEMBERS)
