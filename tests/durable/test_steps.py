"""Steps: retries, time limits, keys, values, events, and functions that are not deterministic."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import pytest

from agentops.client import Client
from agentops.durable import Codec, DurableRun, RetryPolicy, StepFailed, StepTimeout, UnstorableValue, durable
from runs.models import AgentRunToolCall, RemoteStep, RunError
from runs.statuses import RunStatus
from tests.support.durable import DurableSite, steps_of
from tests.support.secret_samples import TOKENS
from timeline.models import Event

PAUSED, WAITING = RunStatus.PAUSED, RunStatus.WAITING


class Failing:
    """A step that fails a number of times."""

    def __init__(self, times: int, error: type[Exception] = OSError) -> None:
        self.attempts = 0
        self._times = times
        self._error = error

    def __call__(self) -> int:
        self.attempts += 1
        if self.attempts <= self._times:
            raise self._error(f"attempt {self.attempts}")
        return self.attempts


def test_retries(durable_site: DurableSite) -> None:
    twice, always, other = Failing(2), Failing(9), Failing(9, ValueError)
    quick = RetryPolicy(retries=2, first_s=0.01, on=(OSError,))

    @durable("retries")
    async def retries(run: DurableRun, prompt: str) -> list[Any]:
        results = [await run.step("twice", twice, effect="read", retries=quick)]
        for step in (always, other):
            try:
                await run.step("fails", step, effect="read", retries=quick)
            except StepFailed as error:
                results.append(error.type)
        return results

    with durable_site.serving(retries):
        run = durable_site.completes(durable_site.start("retries"))

    assert "".join(run.result.split()) == '[3,"OSError","ValueError"]'
    assert (always.attempts, other.attempts) == (3, 1)
    assert [state for _, _, state in steps_of(run)] == ["done", "failed", "failed"]
    assert Event.objects.filter(log=run.pk, type="retry.scheduled").count() == 4
    assert RunError.objects.filter(run=run).count() >= 6


def test_a_failed_step_runs_again_when_the_run_is_resumed(durable_site: DurableSite) -> None:
    """Also one with an effect: its failure is known, so no person has to decide."""
    once = Failing(1)

    @durable("resumed")
    async def resumed(run: DurableRun, prompt: str) -> int:
        return int(await run.step("once", once, effect="once"))

    with durable_site.serving(resumed):
        run = durable_site.reaches(durable_site.start("resumed"), PAUSED, reason="error")
        with Client(durable_site.site.url, durable_site.site.key("read", "write")) as client:
            client.resume(run.pk)
        run.refresh_from_db()
        successor = durable_site.completes(run.resumed_as)

    assert (successor.result, once.attempts) == ("2", 2)


def test_a_time_limit(durable_site: DurableSite) -> None:
    @durable("slow")
    async def slow(run: DurableRun, prompt: str) -> str:
        with pytest.raises(ValueError, match="needs a coroutine function"):
            run.step("thread", Failing(0), timeout_s=1)
        try:
            await run.step("forever", asyncio.Event().wait, timeout_s=0.05, effect="read")
        except StepTimeout as error:
            return f"{error.type}: {error.message}"
        return ""

    with durable_site.serving(slow):
        run = durable_site.completes(durable_site.start("slow"))

    assert run.result == "timeout: it took longer than 0.05 s"
    assert steps_of(run) == [("1", "forever", "failed")]


def test_a_step_that_the_function_cancels_has_failed(durable_site: DurableSite) -> None:
    @durable("cancels")
    async def cancels(run: DurableRun, prompt: str) -> Any:
        try:
            async with asyncio.timeout(0.05):
                await run.step("forever", asyncio.Event().wait, effect="read")
        except (TimeoutError, StepFailed):
            return await run.step("next", Failing(0))

    with durable_site.serving(cancels):
        run = durable_site.completes(durable_site.start("cancels"))

    assert steps_of(run) == [("1", "forever", "failed"), ("2", "next", "done")]
    assert RemoteStep.objects.get(run=run, key="1").error["type"] == "cancelled"


def test_an_idempotency_key_is_the_same_in_each_attempt(durable_site: DurableSite) -> None:
    keys: list[str] = []

    def charge(cents: int, *, idempotency_key: str) -> str:
        keys.append(idempotency_key)
        if len(keys) == 1:
            raise OSError("lost")
        return idempotency_key

    @durable("pays")
    async def pays(run: DurableRun, prompt: str) -> str:
        return str(await run.step("charge", charge, 500, effect="idempotent", retries=RetryPolicy(first_s=0.01)))

    with durable_site.serving(pays):
        run = durable_site.completes(durable_site.start("pays"))

    assert keys == [run.result] * 2
    assert AgentRunToolCall.objects.get(run=run).input == {"cents": 500}


def test_a_value_that_is_not_json_names_the_step(durable_site: DurableSite) -> None:
    @durable("objects")
    async def objects(run: DurableRun, prompt: str) -> str:
        with pytest.raises(TypeError) as raised:
            await run.step("load", lambda: {1, 2})
        assert isinstance(raised.value, UnstorableValue)
        return str(raised.value)

    with durable_site.serving(objects):
        run = durable_site.completes(durable_site.start("objects"))

    assert run.result.startswith("step 'load' failed: UnstorableValue: it returned a set, which is not JSON")


def test_large_values_are_stored_in_pieces(durable_site: DurableSite) -> None:
    text = 'äöü€ "quoted" 🙂 ' * 150_000

    def digest(value: str) -> str:
        return hashlib.sha256(value.encode()).hexdigest()

    @durable("large")
    async def large(run: DurableRun, prompt: str) -> bool:
        loaded = await run.step("load", lambda: {"text": text})
        await run.wait_for("go", timeout_s=3600) if prompt == "wait" else None
        return digest(loaded["text"]) == digest(text)

    with durable_site.serving(large):
        first = durable_site.completes(durable_site.start("large"))
        second = durable_site.reaches(durable_site.start("large", "wait"), WAITING)
        durable_site.pass_deadline(second)
        durable_site.reaches(second, PAUSED)

    assert first.result == "true"
    assert RemoteStep.objects.get(run=first).pieces > 3
    # Read again from its pieces, the value was the same: only the wait has failed.
    assert (second.error_type, second.error_message[:10]) == ("timeout", "step 'go':")


def test_a_codec_seals_values(durable_site: DurableSite) -> None:
    class Reversed(Codec):
        name = "reversed"

        def encode(self, text: str) -> str:
            return text[::-1]

        decode = encode

    @durable("sealed")
    async def sealed(run: DurableRun, prompt: str) -> int:
        value = await run.step("load", lambda name: {"name": name, "large": "x" * 2_000_000}, "secret name")
        await run.sleep(3600) if prompt == "wait" else None
        return len(value["large"])

    with durable_site.serving(sealed, codec=Reversed()):
        run = durable_site.reaches(durable_site.start("sealed", "wait"), WAITING)
        durable_site.pass_deadline(run)
        durable_site.completes(run)

    assert run.result == "2000000"
    call = AgentRunToolCall.objects.get(run=run, tool_name="load")
    assert "secret name" not in f"{call.input} {call.output}"


def test_a_masked_secret_is_masked_for_the_function_too(durable_site: DurableSite) -> None:
    secret = TOKENS["anthropic"]()

    @durable("leaks")
    async def leaks(run: DurableRun, prompt: str) -> bool:
        return secret in await run.step("load", lambda: f"the key {secret}")

    with durable_site.serving(leaks):
        assert durable_site.completes(durable_site.start("leaks")).result == "false"


def test_events_and_streamed_text(durable_site: DurableSite) -> None:
    @durable("talks")
    async def talks(run: DurableRun, prompt: str) -> str:
        def speak() -> str:
            for word in ("Hel", "lo"):
                run.stream(word)
            return "Hello"

        run.log("x.begin", {"part": 1})
        await run.step("speak", speak)
        with pytest.raises(RuntimeError, match="belongs into the function of a step"):
            run.stream("lost")
        await run.sleep(3600)
        run.log("x.end")
        return "done"

    with durable_site.serving(talks):
        run = durable_site.reaches(durable_site.start("talks"), WAITING)
        durable_site.pass_deadline(run)
        durable_site.completes(run)

    events = Event.objects.filter(log=run.pk).order_by("seq")
    own = [(event.type, event.payload) for event in events if event.type.startswith("x.")]
    assert [kind for kind, _ in own] == ["x.begin", "x.end"]
    assert "".join(event.payload["text"] for event in events if event.type == "tool.output") == "Hello"


def test_a_function_that_changed_without_a_new_version_pauses(durable_site: DurableSite) -> None:
    executions: list[str] = []

    @durable("changes")
    async def changes(run: DurableRun, prompt: str) -> None:
        executions.append(run.id)
        try:
            await run.step("plan" if len(executions) == 1 else "fetch", Failing(0))
            await run.sleep(3600)
        except Exception:
            executions.append("caught")

    with durable_site.serving(changes):
        run = durable_site.reaches(durable_site.start("changes"), WAITING)
        durable_site.pass_deadline(run)
        durable_site.reaches(run, PAUSED)

    assert run.error_type == "StepMismatch"
    assert "changes version 1 starts the step 'fetch' at position 1, but the journal has the step 'plan'" in (
        run.error_message
    )
    assert executions == [str(run.pk)] * 2


def test_a_started_step_with_another_name_is_refused_by_the_site(durable_site: DurableSite) -> None:
    executions: list[str] = []

    @durable("changes")
    async def changes(run: DurableRun, prompt: str) -> None:
        executions.append(run.id)
        await run.wait_for(f"signal {len(executions)}", timeout_s=3600)

    with durable_site.serving(changes):
        run = durable_site.reaches(durable_site.start("changes"), WAITING)
        durable_site.pass_deadline(run)
        durable_site.reaches(run, PAUSED)

    assert "starts the signal step 'signal 2' at position 1" in run.error_message


def test_old_runs_are_executed_by_the_version_that_they_began_with(durable_site: DurableSite) -> None:
    @durable("versioned", version=1)
    async def first(run: DurableRun, prompt: str) -> str:
        await run.sleep(3600)
        return f"version {run.version}"

    @durable("versioned", version=2)
    async def second(run: DurableRun, prompt: str) -> str:
        return f"version {run.version}, at once"

    with durable_site.serving(first):
        old = durable_site.reaches(durable_site.start("versioned"), WAITING)
    with durable_site.serving(second):
        durable_site.has_version("versioned", 2)
        new = durable_site.completes(durable_site.start("versioned"))
        durable_site.pass_deadline(old)
        # The process that has only version 2 leaves the old run in the queue.
        another = durable_site.completes(durable_site.start("versioned"))
        old.refresh_from_db()
        assert old.status == RunStatus.QUEUED
    with durable_site.serving(first, second):
        durable_site.completes(old)

    assert [run.result for run in (old, new, another)] == ["version 1", *["version 2, at once"] * 2]
