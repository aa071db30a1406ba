"""Waits for events from outside the agent: the run is released until a signal arrives, or the time is over."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta

from pydantic import JsonValue
from pydantic_ai.external_events import ExternalEventError, ExternalEventWaiter

from agentops.client import Client
from agentops.durable.errors import StepFailed, StepTimeout
from agentops.durable.pydantic_ai.executions import MAX_KEY, AgentExecution, short
from agentops.durable.pydantic_ai.failures import original_of

#: A payload with only this member says that the event will not arrive, and why.
_FAILURE = "agentops.failure"


class SignalWaiter(ExternalEventWaiter):
    """Waits for signals of the run. The token that is handed out names the run and the signal."""

    def __init__(self, execution: AgentExecution) -> None:
        self._execution = execution

    async def wait(
        self, name: str, *, ask: Callable[[str], Awaitable[JsonValue]], timeout: timedelta | None
    ) -> JsonValue:
        """Hand a token to `ask`, and return its answer, or the payload of the signal. Raises `ExternalEventError`."""
        run = self._execution.run
        key = self._execution.step_key(name, None)
        signal = short(f"event:{key}", MAX_KEY - 10)
        token = f"{run.id}/{signal}"
        try:
            asking = run.at(f"{signal}/ask")
            answer: JsonValue = await asking.step(f"ask {name}"[:MAX_KEY], ask, token, effect="idempotent")
        except StepFailed as error:
            raised = original_of(error)
            raise raised from raised.__cause__
        if answer is not None:
            return answer
        try:
            seconds = None if timeout is None else timeout.total_seconds()
            payload: JsonValue = await run.at(f"{signal}/wait").wait_for(signal, timeout_s=seconds)
        except StepTimeout as error:
            raise ExternalEventError(f"No event {name!r} arrived within {timeout}.") from error
        if isinstance(payload, dict) and payload.keys() == {_FAILURE}:
            raise ExternalEventError(str(payload[_FAILURE]))
        return payload


def resolve_event(client: Client, token: str, payload: JsonValue) -> None:
    """Send the event that a run waits for. `client`: with a key of scope `write`. Raises `ApiError`."""
    run_id, _, signal = token.partition("/")
    if not signal:
        raise ValueError(f"{token!r} is not a token of an event: it has the form RUN/SIGNAL")
    client.signal(run_id, signal, payload, idempotency_key=short(token, MAX_KEY))


def fail_event(client: Client, token: str, reason: str) -> None:
    """Tell a run that the event that it waits for will not arrive. `client` as for `resolve_event`."""
    resolve_event(client, token, {_FAILURE: reason})
