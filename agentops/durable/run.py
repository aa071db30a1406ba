"""The run that an asynchronous durable function gets: its steps, waits, messages and events."""

from __future__ import annotations

import asyncio
import copy
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from agentops.durable.answers import Answer, Call, ChildRun, Decision, Effect, shortened_id
from agentops.durable.arguments import Arguments
from agentops.durable.attempts import MAX_MESSAGE, Work
from agentops.durable.positions import Position, current_step
from agentops.durable.retries import RetryPolicy
from agentops.durable.steps import Step, Steps

#: Sleeps up to this many seconds keep the process; longer ones release the run.
SHORT_SLEEP_S = 5.0


class DurableRun:
    """The run of a durable function: `async def f(run, prompt)`.

    Each method that is awaited is a step, and its value is stored. After a crash, the function is executed again from
    its beginning, and the stored values are read from the journal by the positions of the calls. So the function must
    call the same methods in the same order each time. Methods raise `StepFailed`, and `RunInterrupted` to end the
    function.
    """

    def __repr__(self) -> str:
        return f"<run {self.id}>"

    def __init__(self, facts: Mapping[str, Any], steps: Steps) -> None:
        #: The ID of the run. A run that was resumed has another one than the runs that it continues.
        self.id: str = facts["id"]
        #: The name of the agent, and the version of the code that executes the run.
        self.agent: str = facts["agent"]
        self.version: int = facts["version"]
        #: A text, or a list of texts and media.
        self.prompt: Any = facts["prompt"]
        self.title: str = facts.get("title") or ""
        self.labels: list[str] = list(facts.get("labels") or ())
        self.session_id: str | None = facts.get("session_id")
        self.parent_run_id: str | None = facts.get("parent_run_id")
        self.resumed_from: str | None = facts.get("resumed_from")
        #: The first of the runs that this one continues.
        self.root_run_id: str = facts.get("root_run_id") or self.id
        #: The settings of the agent.
        self.settings: dict[str, Any] = dict(facts.get("settings") or {})
        self._steps = steps
        #: How often each ID of a tool call was requested by models, and executed.
        self._requested: Counter[str] = Counter()
        self._executed: Counter[str] = Counter()
        #: For adapters of frameworks: what they keep about the run, by their names. It ends with the run.
        self.adapter_state: dict[str, Any] = {}
        #: The key and the name of the next step, if `at` has set them.
        self._key: str | None = None
        self._name = ""

    # --- Steps that execute a function ---

    def step(
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        effect: Effect = "once",
        retries: int | RetryPolicy = 0,
        timeout_s: float | None = None,
        has_steps: bool = False,
        **kwargs: Any,
    ) -> Coroutine[Any, Any, Any]:
        """Call a function, store its result, and return the stored value.

        The value must be JSON, unless `serve` has a codec. `function`: a coroutine function, or a function that is
        called in a thread. A parameter `idempotency_key` gets the key of the step, the same in each attempt.

        `effect`: what happens if the process dies in the step. `read` and `idempotent` steps are repeated; about `once`
        a person decides. `retries`: after exceptions. `timeout_s`: for each attempt of a coroutine function.

        For adapters of frameworks: `has_steps` permits the coroutine function to call methods of the run itself, with a
        key each (`at`). Then the effect must be `read`, and `timeout_s` is not kept.
        """
        arguments = Arguments(function, args, kwargs)
        work = Work(arguments, RetryPolicy.of(retries), timeout_s, has_steps=has_steps)
        work.check()
        return self._execute("step", name, work, effect=effect, input=self._input(arguments))

    def model(
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        retries: int | RetryPolicy = 0,
        timeout_s: float | None = None,
        **kwargs: Any,
    ) -> Coroutine[Any, Any, Answer]:
        """Call a model, and return its answer as stored. `name`: of the model. `function` returns an `Answer`.

        The site checks the budgets before the call, counts its tokens and cost, and shows the answer. The call is
        repeated if the process dies in it.
        """
        sealed = self._steps.values.codec is not None

        def convert(answer: Any) -> tuple[Any, dict[str, Any]]:
            if not isinstance(answer, Answer):
                raise TypeError(f"it returned a {type(answer).__name__}: return an Answer")
            return answer.as_value(), {"answer": answer.as_reported(name, is_sealed=sealed)}

        work = Work(Arguments(function, args, kwargs), RetryPolicy.of(retries), timeout_s, convert)
        work.check()
        return self._answer(self._execute("model", name, work, model=name if self._name else None))

    def tool(
        self,
        call: Call,
        function: Callable[..., Any],
        /,
        *,
        retries: int | RetryPolicy = 0,
        timeout_s: float | None = None,
        has_steps: bool = False,
        shown: Callable[[Any], str] | None = None,
    ) -> Coroutine[Any, Any, Any]:
        """Execute a tool call of a model's answer: `function(**call.arguments)`. Return the stored value.

        Hooks, approval rules and `call.needs_approval` decide first: the run may wait for a person, who may change the
        arguments. Raises `Denied` if the call must not be executed. `shown`: returns the text that pages show instead
        of the value. `has_steps`: see `step`.
        """
        if self._executed[call.id] >= max(self._requested[call.id], 1):
            raise ValueError(f"the function has executed the call {call.id!r}: give each call its own ID")
        self._executed[call.id] += 1
        arguments = Arguments(function, (), call.arguments)
        work = Work(arguments, RetryPolicy.of(retries), timeout_s, self._with_text(shown), has_steps)
        work.check()
        members = {"effect": call.effect, "needs_approval": call.needs_approval, "input": dict(call.arguments)}
        return self._execute("tool", call.name, work, call_id=shortened_id(call.id), **members)

    def reject(self, call: Call, message: str) -> None:
        """Tell the site that a tool call of a model's answer is not executed, and why. Does not wait."""
        call_id = shortened_id(call.id)
        position = self._position(call_id)
        self._steps.store_failures(position.handled)
        if not self._steps.journal.drop(position.key):
            error = {"type": "not_executed", "message": message[:MAX_MESSAGE]}
            self._steps.writer.add(
                {"op": "fail", "key": position.key, "call_id": call_id, "error": error, "final": True}
            )

    # --- Steps for which the run waits without a process ---

    def approve(
        self, name: str, payload: Any = None, *, expires_s: float | None = None
    ) -> Coroutine[Any, Any, Decision]:
        """Ask a person to approve or deny something. Return the decision, which is true if it was approved.

        `payload`: JSON that the person sees. `expires_s`: seconds until it counts as denied; by default, the site's
        setting.
        """
        return self._decision(self._wait("approval", name, input=payload, expires_s=expires_s))

    def ask(self, question: str, choices: Sequence[str] = ()) -> Coroutine[Any, Any, str]:
        """Ask a person, and return the answer. `choices`: answers to choose from; other texts are possible."""
        return self._wait("question", "question", question=question, choices=list(choices) or None)

    def sleep(self, seconds: float) -> Coroutine[Any, Any, None]:
        """Wait. Sleeps of more than 5 seconds release the run until then."""
        if seconds <= 0:
            raise ValueError(f"a run cannot sleep for {seconds:g} seconds: give more than 0")
        step = self._step("sleep", "sleep", seconds=seconds)
        if seconds > SHORT_SLEEP_S:
            return self._steps.settle(step)
        return self._steps.execute(step, Work(Arguments(asyncio.sleep, (seconds,), {})))

    def wait_for(self, name: str, *, timeout_s: float | None = None) -> Coroutine[Any, Any, Any]:
        """Wait for a signal that a program sends to the run, and return its payload. Raises `StepTimeout`."""
        return self._wait("signal", name, signal=name, timeout_s=timeout_s)

    def child(
        self, agent: str, prompt: str, *, timeout_s: float | None = None, call: Call | None = None
    ) -> Coroutine[Any, Any, ChildRun]:
        """Start a child run of an agent of the project, wait for its end, and return it. It may have failed.

        `call`: the tool call of a model's answer that the child run executes. Hooks and approval rules decide about it.

        Raises `StepFailed` if it cannot start, `Denied`, and `StepTimeout` if it has not ended in time; then it is
        stopped.
        """
        members: dict[str, Any] = {"agent": agent, "prompt": prompt, "timeout_s": timeout_s}
        if call is None:
            return self._child(self._wait("child", agent, **members))
        members |= {"needs_approval": call.needs_approval}
        return self._child(self._wait("child", call.name, call_id=shortened_id(call.id), **members))

    # --- Messages and events ---

    def messages(self) -> Coroutine[Any, Any, list[str]]:
        """Return the texts that people have sent to the run since the last call."""
        return self._messages(self._step("messages", "messages"))

    def stream(self, text: str) -> None:
        """Show a piece of text while the function of a step works. It is not stored as part of the value.

        Does not wait. Call it inside the function of a step or a model call.
        """
        if not (key := current_step.get()):
            raise RuntimeError("run.stream() belongs into the function of a step or a model call")
        self._steps.writer.add_text(key, text)

    def log(self, event_type: str, payload: Mapping[str, Any] | None = None) -> None:
        """Append an event of your own type, such as `x.progress`, to the run's log. Does not wait.

        Also `handoff`, with `from_agent`, `to_agent` and `call_id`, if one agent of the function follows another.

        While steps are read from the journal, nothing is appended. After a crash, events since the last step may be
        appended again.
        """
        if not self._steps.journal.is_replaying or current_step.get():
            self._steps.writer.add({"op": "log", "type": event_type, "payload": dict(payload or {})})

    # --- For adapters of frameworks, whose steps do not come in the order of the calls ---

    def at(self, key: str, name: str = "") -> DurableRun:
        """Return the run for one step with this key instead of its position, and this name in the journal.

        The key must be unique in the run, and the same whenever the function is executed again: at most 200 characters.
        The step takes no position, so tasks of the framework do not change the positions of the function.
        """
        run = copy.copy(self)
        run._key, run._name = key, name
        return run

    def next_position(self) -> str:
        """Take the position of the next call, without a step, as the prefix of keys."""
        position = self._steps.positions.begin()
        self._steps.store_failures(position.handled)
        return position.key

    def has_outcome(self, key: str) -> bool:
        """Return whether the step with this key will be read from the journal."""
        return self._steps.journal.has_outcome(key)

    @property
    def is_replaying(self) -> bool:
        """Whether the next step is probably read from the journal: what happens now has happened before."""
        return self._steps.journal.is_replaying

    @property
    def may_have_messages(self) -> bool:
        """Whether `messages()` may return something: no messages were requested yet, or the site announced some."""
        return self._steps.may_have_messages

    # --- Helpers of the methods ---

    def _step(self, kind: str, name: str, /, *, call_id: str | None = None, **members: Any) -> Step:
        return Step(self._position(call_id), kind, self._name or name, {"call_id": call_id, **members})

    def _position(self, call_id: str | None) -> Position:
        return self._steps.positions.begin(self._key, call_id=call_id, takes_position=self._key is None)

    def _execute(
        self, kind: str, name: str, work: Work, /, *, call_id: str | None = None, **members: Any
    ) -> Coroutine[Any, Any, Any]:
        return self._steps.execute(self._step(kind, name, call_id=call_id, **members), work)

    def _wait(self, kind: str, name: str, /, *, call_id: str | None = None, **members: Any) -> Coroutine[Any, Any, Any]:
        return self._steps.settle(self._step(kind, name, call_id=call_id, **members))

    def _with_text(self, shown: Callable[[Any], str] | None) -> Callable[[Any], tuple[Any, dict[str, Any]]]:
        """Return the conversion of a value that adds a text for pages, unless values are sealed."""
        if shown is None or self._steps.values.codec is not None:
            return lambda value: (value, {})
        return lambda value: (value, {"shown": shown(value)})

    async def _messages(self, step: Step) -> list[str]:
        """Return stored messages, and at the end of the journal, those with which the run was resumed or forked.

        Only the first execution of a run asks for these: later ones must get what it got.
        """
        journal = self._steps.journal
        is_stored = journal.has_outcome(step.key)
        texts: list[str] = await self._steps.settle(step)
        later = replace(step, position=replace(step.position, key=f"{step.key}:later", handled=[]))
        if is_stored and ((self._steps.is_first and journal.is_read) or journal.has_outcome(later.key)):
            texts = [*texts, *await self._steps.settle(later)]
        return texts

    def _input(self, arguments: Arguments) -> dict[str, Any] | None:
        """Return the arguments for pages; None if values are sealed."""
        return arguments.shown if self._steps.values.codec is None else None

    async def _answer(self, value: Coroutine[Any, Any, Any]) -> Answer:
        answer = Answer.from_value(await value)
        self._requested.update(call.id for call in answer.calls)
        return answer

    @staticmethod
    async def _decision(value: Coroutine[Any, Any, Any]) -> Decision:
        return Decision(**await value)

    @staticmethod
    async def _child(value: Coroutine[Any, Any, Any]) -> ChildRun:
        return ChildRun(**await value)


#: The run whose function calls this code, in the event loop of the function.
current_run: ContextVar[DurableRun | None] = ContextVar("agentops_run", default=None)
