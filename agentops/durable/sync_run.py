"""The run that a synchronous durable function gets. Its methods wait for the asynchronous methods."""

from __future__ import annotations

import asyncio
import contextvars
import queue
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

from agentops.durable.answers import Answer, Call, ChildRun, Decision, Effect
from agentops.durable.calling import settle, start_in_thread
from agentops.durable.errors import RunInterrupted
from agentops.durable.gate import RunGate
from agentops.durable.retries import RetryPolicy
from agentops.durable.run import DurableRun


class SyncDurableRun:
    """The run of a synchronous durable function: `def f(run, prompt)`. It has the methods of `DurableRun`, not awaited.

    Functions of steps are called in the thread of the durable function; coroutine functions in the event loop of
    `serve`.
    """

    def __init__(self, run: DurableRun, gate: RunGate, loop: asyncio.AbstractEventLoop) -> None:
        self._run = run
        self._gate = gate
        self._loop = loop
        self.id = run.id
        self.agent = run.agent
        self.version = run.version
        self.prompt = run.prompt
        self.title = run.title
        self.labels = run.labels
        self.session_id = run.session_id
        self.parent_run_id = run.parent_run_id
        self.resumed_from = run.resumed_from
        self.root_run_id = run.root_run_id
        self.settings = run.settings

    def step(
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        effect: Effect = "once",
        retries: int | RetryPolicy = 0,
        timeout_s: float | None = None,
        **kwargs: Any,
    ) -> Any:
        """Call a function, store its result, and return the stored value. See `DurableRun.step`."""
        options: Any = {"effect": effect, "retries": retries, "timeout_s": timeout_s}
        return self._wait_for(self._run.step(name, function, *args, **options, **kwargs))

    def model(
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        retries: int | RetryPolicy = 0,
        timeout_s: float | None = None,
        **kwargs: Any,
    ) -> Answer:
        """Call a model, and return its answer as stored. See `DurableRun.model`."""
        answer: Answer = self._wait_for(
            self._run.model(name, function, *args, retries=retries, timeout_s=timeout_s, **kwargs)
        )
        return answer

    def tool(
        self,
        call: Call,
        function: Callable[..., Any],
        /,
        *,
        retries: int | RetryPolicy = 0,
        timeout_s: float | None = None,
        shown: Callable[[Any], str] | None = None,
    ) -> Any:
        """Execute a tool call of a model's answer. Raises `Denied`. See `DurableRun.tool`."""
        return self._wait_for(self._run.tool(call, function, retries=retries, timeout_s=timeout_s, shown=shown))

    def reject(self, call: Call, message: str) -> None:
        """Tell the site that a tool call is not executed, and why. Does not wait. See `DurableRun.reject`."""
        self._run.reject(call, message)

    def approve(self, name: str, payload: Any = None, *, expires_s: float | None = None) -> Decision:
        """Ask a person to approve or deny something. See `DurableRun.approve`."""
        decision: Decision = self._wait_for(self._run.approve(name, payload, expires_s=expires_s))
        return decision

    def ask(self, question: str, choices: Sequence[str] = ()) -> str:
        """Ask a person, and return the answer. See `DurableRun.ask`."""
        return str(self._wait_for(self._run.ask(question, choices)))

    def sleep(self, seconds: float) -> None:
        """Wait. Sleeps of more than 5 seconds release the run until then."""
        self._wait_for(self._run.sleep(seconds))

    def wait_for(self, name: str, *, timeout_s: float | None = None) -> Any:
        """Wait for a signal, and return its payload. Raises `StepTimeout`."""
        return self._wait_for(self._run.wait_for(name, timeout_s=timeout_s))

    def child(self, agent: str, prompt: str, *, timeout_s: float | None = None, call: Call | None = None) -> ChildRun:
        """Start a child run, wait for its end, and return it. See `DurableRun.child`."""
        child: ChildRun = self._wait_for(self._run.child(agent, prompt, timeout_s=timeout_s, call=call))
        return child

    def messages(self) -> list[str]:
        """Return the texts that people have sent to the run since the last call."""
        texts: list[str] = self._wait_for(self._run.messages())
        return texts

    def stream(self, text: str) -> None:
        """Show a piece of text while the function of a step works. See `DurableRun.stream`."""
        self._run.stream(text)

    def log(self, event_type: str, payload: Mapping[str, Any] | None = None) -> None:
        """Append an event of your own type to the run's log. See `DurableRun.log`."""
        self._run.log(event_type, payload)

    def _wait_for(self, method: Coroutine[Any, Any, Any]) -> Any:
        """Return the result of a method in the event loop. Functions that it calls are called in this thread."""
        try:
            self._check()
        except BaseException:
            method.close()
            raise
        calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        future = asyncio.run_coroutine_threadsafe(_with_calls(method, calls), self._loop)
        future.add_done_callback(lambda _: calls.put(None))
        while (call := calls.get()) is not None:
            call()
        if future.cancelled():
            raise self._gate.interruption or RunInterrupted("the run was cancelled")
        return future.result()

    def _check(self) -> None:
        """Raise `RuntimeError` in the event loop, which would wait for itself, and `RunInterrupted`."""
        if _running_loop() is self._loop:
            raise RuntimeError("this would block the event loop: use the asynchronous method")
        self._gate.check()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


async def _with_calls(method: Coroutine[Any, Any, Any], calls: queue.SimpleQueue[Callable[[], None] | None]) -> Any:
    """Await a method whose functions are called by the thread that takes them from `calls`."""

    def start(call: Callable[[], Any]) -> asyncio.Future[Any]:
        future = asyncio.get_running_loop().create_future()
        calls.put(partial(contextvars.copy_context().run, settle, future, call))
        return future

    start_in_thread.set(start)
    return await method
