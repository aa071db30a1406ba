"""The execution of an agent within a durable run: which steps it has made, and the keys of the next ones."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from agents import Session

from agentops.durable.answers import Call, Effect
from agentops.durable.errors import Denied
from agentops.durable.positions import CALL_KEY, current_step
from agentops.durable.retries import RetryPolicy
from agentops.durable.run import DurableRun

_MAX_KEY = 150


@dataclass(frozen=True)
class AgentOptions:
    """How the steps of an agent are executed."""

    #: The effects of tools, by name.
    effects: Mapping[str, Effect] = field(default_factory=dict)
    #: The names of agents whose calls as tools are child runs, each with the name of its agent on the site.
    children: Mapping[str, str] = field(default_factory=dict)
    #: Retries of model calls.
    retries: int | RetryPolicy = 0
    #: Whether models stream their text to the page.
    streams: bool = False
    #: The provider of all models; by default, it is derived from the class of the model.
    provider: str = ""


@dataclass(eq=False)
class Execution:
    """One call of `AgentopsRunner.run`, or a run of an agent within it."""

    run: DurableRun
    options: AgentOptions
    #: The prefix of the keys of its steps.
    prefix: str
    #: Whether it receives the messages of people. Agents that are tools do not.
    receives: bool = True
    #: The name of the agent that works.
    agent: str = ""
    session: Session | None = None
    #: Whether the model provider was made for it, so that it is closed at the end.
    owns_provider: bool = False
    #: The messages of people: after how many input items each was received, and the items that it added.
    received: list[tuple[int, list[Any]]] = field(default_factory=list)
    #: Calls of answers that have not been executed, by ID.
    open_calls: dict[str, Call] = field(default_factory=dict)
    #: The IDs of all calls that its models have requested.
    call_ids: set[str] = field(default_factory=set)
    _counts: Counter[str] = field(default_factory=Counter)

    def key(self, name: str) -> str:
        """Return the key of the next step with this name."""
        self._counts[name] += 1
        return short_key(f"{self.prefix}.{name}.{self._counts[name]}")

    def call_key(self, call: Call) -> str:
        """Return the key of the step that executes a call."""
        return short_key(f"{CALL_KEY}{self.prefix}.{call.id}")

    async def texts_before(self, model_key: str) -> list[str]:
        """Return what people have sent since the last model call. `model_key`: of the next one.

        Messages that were received before this call, in an earlier run of the lineage, are followed by those with which
        it was resumed or forked.
        """
        texts: list[str] = []
        prefix, number = self.key("messages"), 0
        while True:
            number += 1
            key = f"{prefix}.{number}"
            was_stored = self.run.has_outcome(key)
            if not was_stored and (self.run.has_outcome(model_key) or not self.run.may_have_messages):
                return texts
            texts += await self.run.at(key).messages()
            if not was_stored:
                return texts

    def scope(self, prefix: str) -> Execution:
        """Return the execution of an agent within a step of this one."""
        return Execution(self.run, self.options, prefix, receives=False)

    def with_received(self, items: Sequence[Any]) -> list[Any]:
        """Return the input of a model with the messages of people at their places."""
        merged = list(items)
        for index, added in self.received:
            merged[index:index] = added
        return merged

    def open_call(self, name: str) -> Call | None:
        """Return the first open call of a tool."""
        return next((call for call in self.open_calls.values() if call.name == name), None)

    async def close_calls(self, outputs: Mapping[str, Any]) -> None:
        """Store the outputs of calls that the SDK has answered without executing a tool."""
        for call_id in [call_id for call_id in self.open_calls if call_id in outputs]:
            await self.close_call(self.open_calls.pop(call_id), outputs[call_id])

    async def close_call(self, call: Call, output: Any) -> None:
        """Store the output of a call that was executed elsewhere."""

        async def result(**arguments: Any) -> Any:
            return output

        try:
            await self.run.at(self.call_key(call)).tool(call, result)
        except Denied:
            return  # a rule or a hook denies a call after its execution; the page shows the denial


def short_key(key: str) -> str:
    """Return a key of a step in at most 150 characters, so that keys of steps within it have at most 200."""
    if len(key) <= _MAX_KEY:
        return key
    digest = hashlib.sha256(key.encode()).hexdigest()[:32]
    return f"{key[: _MAX_KEY - 33]}.{digest}"


_execution: ContextVar[Execution | None] = ContextVar("agentops_agent_execution", default=None)


def active() -> Execution | None:
    """Return the execution that this context belongs to; None outside, and within the function of a step."""
    return None if current_step.get() else _execution.get()


@contextmanager
def executing(execution: Execution) -> Iterator[Execution]:
    """Make an execution the one of this context."""
    token = _execution.set(execution)
    try:
        yield execution
    finally:
        _execution.reset(token)
