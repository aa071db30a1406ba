"""Records the agent loop of this program in the background, as a run on a site."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Self

from agentops.client.delivery import EXIT_S, EventDelivery, shared_delivery
from agentops.client.encoding import encode

#: Exceptions after which a run is stopped, not failed.
_STOPPING = (KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError)


class RecordedRun:
    """A run that this program executes and a site displays. Recording neither waits nor raises.

    As a context manager (`with` and `async with`) it starts the run, and ends it as completed, as failed after an
    exception, or as stopped after Ctrl-C or a cancelled task. Only the process that started the run ends it.
    """

    def __init__(
        self,
        delivery: EventDelivery,
        agent: str,
        *,
        prompt: str | None = None,
        run_id: str | None = None,
        title: str | None = None,
        model: str | None = None,
        session_id: str | None = None,
        parent_run_id: str | None = None,
        spawned_by: tuple[RecordedRun, str | None] | None = None,
    ) -> None:
        """Prepare a run; `with` starts it.

        `run_id`: an ID that this program chooses. If the project already has a run with it, the events are added to
        that run. `parent_run_id`: a run on the site. `spawned_by`: the run and the tool call that spawn this run.
        """
        self.agent = agent
        #: The ID of the run in this program; the site also assigns one.
        self.id = run_id or f"{agent}-{uuid.uuid4().hex}"[-255:]
        #: Whether this object has ended the run.
        self.has_ended = False
        self._delivery = delivery
        self._spawned_by = spawned_by
        #: The process that started the run.
        self._pid = 0
        self._start = {
            "agent": agent,
            "prompt": None if prompt is None else str(prompt),
            "title": title,
            "model": model,
            "session_id": session_id,
            "parent_run_id": parent_run_id,
        }

    # --- What happens in the run ---

    def message(self, role: str, content: Any) -> None:
        """Record a message: `system`, `user` or `assistant`, with a text or the blocks of Anthropic or OpenAI."""
        self.event("message.added", role=role, content=content)

    def turn(
        self,
        text: str | None = None,
        *,
        thinking: str | None = None,
        tool_calls: Sequence[tuple[str, str, Any]] = (),
        usage: Mapping[str, Any] | None = None,
        model: str | None = None,
        cost_usd: object = None,
        duration_ms: float | None = None,
        finish_reason: str | None = None,
    ) -> None:
        """Record a response of the model.

        `tool_calls`: ID, tool and arguments of each. `usage`: the tokens, under the names of the provider. `cost_usd`:
        by default, the site computes it from the tokens and the model. `finish_reason`: in the words of the provider.
        """
        calls = [{"id": id_, "name": name, "arguments": arguments} for id_, name, arguments in tool_calls]
        cost = None if cost_usd is None else str(cost_usd)
        self.event(
            "llm.turn.end",
            text=text,
            thinking=thinking,
            tool_calls=calls or None,
            usage=usage,
            model=model,
            cost_usd=cost,
            duration_ms=duration_ms,
            finish_reason=finish_reason,
        )

    def text_delta(self, text: str) -> None:
        """Record a chunk of a streamed response. `turn` without a text ends the response."""
        self.event("llm.text.delta", text=text)

    def thinking_delta(self, text: str) -> None:
        """Record a chunk of streamed thinking."""
        self.event("llm.thinking.delta", text=text)

    def tool(
        self,
        name: str,
        arguments: Any = None,
        output: Any = "",
        *,
        error: str | None = None,
        call_id: str | None = None,
        duration_ms: float | None = None,
    ) -> None:
        """Record a tool call that has ended. `call_id`: its ID in `turn`, if the model requested the call."""
        call = RecordedCall(self, name, arguments, call_id)
        call.begin(datetime.now(UTC) - timedelta(milliseconds=duration_ms or 0))
        call.end(output, error=error, duration_ms=duration_ms or 0)

    def tool_call(self, name: str, arguments: Any = None, *, call_id: str | None = None) -> RecordedCall:
        """Return a context manager for a tool call: `with run.tool_call("read", {…}) as call: call.output = …`.

        An exception is recorded as the error of the call, and propagates.
        """
        return RecordedCall(self, name, arguments, call_id)

    def error(self, message: str, *, error_type: str = "error") -> None:
        """Record an error that does not end the run."""
        self.event("error", error=message, error_type=error_type)

    def child(
        self, agent: str, *, prompt: str | None = None, model: str | None = None, call_id: str | None = None
    ) -> RecordedRun:
        """Return a run that this one spawns, to be used as a context manager. `call_id`: the spawning tool call."""
        return RecordedRun(
            self._delivery, agent, prompt=prompt, model=model, parent_run_id=self.id, spawned_by=(self, call_id)
        )

    def event(self, type_: str, /, **payload: Any) -> None:
        """Record any event, such as `file.changed` or a custom type, which begins with `x.`."""
        self.record(type_, payload)

    def record(self, type_: str, payload: Mapping[str, Any], *, at: datetime | None = None) -> None:
        """Record an event, with its time if `at` is given. Fields of the payload with value None are omitted."""
        try:
            event = {
                "runId": self.id,
                "type": type_,
                "event_id": uuid.uuid4().hex,
                "ts": (at or datetime.now(UTC)).isoformat(),
                "payload": {name: value for name, value in payload.items() if value is not None},
            }
            self._delivery.put(encode(event), is_essential=type_.startswith("run."))
        except Exception as error:
            # An invalid event must not end the recorded program.
            self._delivery.drop(f"one cannot be sent: {error!r}")

    # --- Begin and end ---

    def start(self) -> Self:
        """Start the run, unless it has started. `with` does this."""
        if not self._pid:
            self._pid = os.getpid()
            self.record("run.started", self._start)
            if self._spawned_by is not None:
                parent, call_id = self._spawned_by
                parent.event(
                    "child_run.started", run_id=self.id, agent=self.agent, call_id=call_id, prompt=self._start["prompt"]
                )
        return self

    def complete(self, result: Any = None, *, summary: str | None = None, cost_usd: object = None) -> None:
        """End the run as completed. `result`: a text or any JSON value; `cost_usd`: the reported cost of the run."""
        cost = None if cost_usd is None else str(cost_usd)
        self._end("completed", result=result, summary=summary, cost_usd=cost)

    def fail(self, error: BaseException | str, *, error_type: str | None = None) -> None:
        """End the run with an error."""
        kind = error_type or (type(error).__name__ if isinstance(error, BaseException) else "error")
        self._end("failed", error=_convert(str, error), error_type=kind)

    def stop(self, reason: str = "stopped") -> None:
        """End the run as stopped by a person or program."""
        self._end("stopped", reason=reason)

    def _end(self, status: str, **payload: Any) -> None:
        """Record the end of the run, and of the child run in its parent, unless it was recorded."""
        if self.has_ended:
            return
        self.has_ended = True
        self.record(f"run.{status}", payload)
        if self._spawned_by is not None:
            parent, call_id = self._spawned_by
            parent.event(
                "child_run.completed",
                run_id=self.id,
                agent=self.agent,
                call_id=call_id,
                status=status,
                summary=payload.get("summary"),
                error=payload.get("error"),
            )

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pid != os.getpid():
            return
        if error is None:
            self.complete()
        elif isinstance(error, _STOPPING):
            self.stop(type(error).__name__)
        else:
            self.fail(error)

    async def __aenter__(self) -> Self:
        return self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    # --- Delivery ---

    @property
    def dropped(self) -> int:
        """Return the number of events of this process that were lost, for example because the queue was full."""
        return self._delivery.dropped

    @property
    def rejected(self) -> int:
        """Return the number of events of this process that the site refused."""
        return self._delivery.rejected

    def flush(self, timeout_s: float = EXIT_S) -> bool:
        """Wait until all recorded events were delivered, and return whether they were."""
        return self._delivery.flush(timeout_s)

    async def aflush(self, timeout_s: float = EXIT_S) -> bool:
        """Do the same as `flush` without blocking the event loop."""
        return await asyncio.to_thread(self._delivery.flush, timeout_s)


class Recorder(RecordedRun):
    """Records a run on a site, with an API key of the scope `ingest`.

    All recorders of a process with the same site and key share one queue and one thread.
    """

    def __init__(
        self,
        url: str,
        key: str,
        *,
        agent: str,
        prompt: str | None = None,
        run_id: str | None = None,
        title: str | None = None,
        model: str | None = None,
        session_id: str | None = None,
        parent_run_id: str | None = None,
    ) -> None:
        """Prepare a run; `with` starts it. Raises `ValueError` if `url` is not the URL of a site.

        `run_id`: your own ID of the run, unique in the project. `parent_run_id`: the ID of a run on the site.
        """
        super().__init__(
            shared_delivery(url, key),
            agent,
            prompt=prompt,
            run_id=run_id,
            title=title,
            model=model,
            session_id=session_id,
            parent_run_id=parent_run_id,
        )


class RecordedCall:
    """A tool call, as a context manager (`with` and `async with`): set `output` in the block. An exception in the block
    becomes the error of the call.

    If calls begin and end in callbacks, use `begin` and `end`.
    """

    def __init__(self, run: RecordedRun, name: str, arguments: Any, call_id: str | None) -> None:
        #: The ID of the call on the site.
        self.id = call_id or f"call_{uuid.uuid4().hex}"
        #: The return value of the tool.
        self.output: Any = None
        #: Marks the call as failed without an exception.
        self.error: str | None = None
        self._run = run
        self._name = name
        self._arguments = arguments
        self._began = 0.0

    def begin(self, at: datetime | None = None) -> None:
        """Record the start of the call."""
        self._began = time.monotonic()
        self._run.record(
            "tool.start", {"call_id": self.id, "tool_name": self._name, "arguments": self._arguments}, at=at
        )

    def end(self, output: Any = None, *, error: str | None = None, duration_ms: float | None = None) -> None:
        """Record the end of the call. `duration_ms`: by default, the time since `begin`."""
        if duration_ms is None:
            duration_ms = (time.monotonic() - self._began) * 1000
        status = "completed" if error is None else "error"
        payload = {"output": output, "error": error, "status": status, "duration_ms": duration_ms}
        self._run.record("tool.end", {"call_id": self.id, "tool_name": self._name, **payload})

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end(self.output, error=self.error if error is None else _convert(repr, error))

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)


def _convert(function: Callable[[object], str], error: BaseException | str) -> str:
    """Return `function(error)`, or the name of the error's type if that raises.

    `str` and `repr` may call code of the recorded program.
    """
    try:
        return function(error)
    except Exception:
        return type(error).__name__
