"""One execution of an agent inside a durable run: the keys of its steps, and the tool calls of its model."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from pydantic_ai.messages import ToolCallPart
from pydantic_ai.tools import RunContext

from agentops.durable.answers import Call
from agentops.durable.positions import current_step
from agentops.durable.pydantic_ai.model_answers import arguments_of
from agentops.durable.run import DurableRun, current_run

#: Maximum characters of a key, and of a call's ID. A site accepts keys of 200 characters.
MAX_KEY, MAX_CALL_ID = 200, 150


def running() -> DurableRun | None:
    """Return the run whose function calls this code; None outside, and in the function of a step."""
    return None if current_step.get() else current_run.get()


@dataclass(eq=False)
class AgentExecution:
    """The progress of one call of `agent.run` in a durable run. Its steps have keys below the position of the call."""

    run: DurableRun
    prefix: str
    #: The IDs of tool calls that the site knows, in all agents of the run.
    known_ids: set[str]
    #: The number of model requests.
    requests: int = 0
    #: The calls of the newest responses, by the ID that the model gave.
    calls: dict[str, Call] = field(default_factory=dict)
    #: The IDs of executed calls, and the IDs of calls that a person must approve first.
    executed: set[str] = field(default_factory=set)
    reviewed: set[str] = field(default_factory=set)
    _counts: Counter[str] = field(default_factory=Counter)

    # --- Keys ---

    def request_key(self, number: int) -> str:
        """Return the key of a model request. `number` counts from 1."""
        return f"{self.prefix}/request/{number}"

    def begin_request(self) -> str:
        """Return the key of the model request that begins now."""
        self.requests += 1
        return self.request_key(self.requests)

    def step_key(self, name: str, ctx: RunContext[Any] | None) -> str:
        """Return the key of another step: its name, and how often it occurred in the tool call, or model step.

        Tool calls of one response are executed at the same time, in any order, so each one counts for itself.
        """
        place = "" if ctx is None else ctx.tool_call_id or str(ctx.run_step)
        base = f"{self.prefix}/{name}/{place}"
        self._counts[base] += 1
        return short(f"{base}/{self._counts[base]}", MAX_KEY)

    # --- Messages ---

    async def received(self, place: str) -> list[str]:
        """Return the messages of people before the next model request. `place`: where the agent asks.

        Earlier ones are read from the journal. If the agent has not been further before, the site may have new ones.
        """
        number = self.requests + 1
        texts: list[str] = []
        index = 0
        while self.run.has_outcome(key := f"{self.prefix}/{place}/{number}.{index}"):
            texts += await self.run.at(key).messages()
            index += 1
        # After the function has continued, later messages are for later agents.
        is_last = place == "end" and not (index and self.run.is_replaying)
        asks = is_last or (place != "end" and self.run.may_have_messages)
        if asks and not self.run.has_outcome(self.request_key(number)):
            texts += await self.run.at(key).messages()
        return texts

    # --- Tool calls ---

    def new_ids(self, parts: list[ToolCallPart]) -> list[str]:
        """Return an ID for each call that no other call of the run has: the model's own one, unless it repeats one."""
        ids: list[str] = []
        for part in parts:
            base = call_id = short(part.tool_call_id or "call", MAX_CALL_ID)
            number = 1
            while call_id in self.known_ids or call_id in ids:
                number += 1
                call_id = f"{base}-{number}"
            ids.append(call_id)
        return ids

    def note_calls(self, parts: list[ToolCallPart], calls: list[Call]) -> None:
        """Remember the calls of a response that was stored."""
        for part, call in zip(parts, calls, strict=True):
            self.calls[part.tool_call_id] = call
            self.known_ids.add(call.id)
            self.executed.discard(part.tool_call_id)
            self.reviewed.discard(part.tool_call_id)

    def call_of(self, ctx: RunContext[Any], name: str, arguments: dict[str, Any]) -> Call:
        """Return the call to execute. A tool that is called again after an approval gets a second call."""
        given = ctx.tool_call_id or ""
        requested = self.calls.get(given)
        if requested is not None and given not in self.executed:
            self.executed.add(given)
            return requested
        part = ToolCallPart(name, arguments, tool_call_id=given or self.step_key(name, ctx))
        name = requested.name if requested is not None else name
        call_id = self.new_ids([part])[0]
        self.known_ids.add(call_id)
        shown = requested.arguments if requested is not None else arguments_of(part)
        return Call(id=call_id, name=name, arguments=shown)


@dataclass(eq=False)
class _RunAgents:
    """The executions of agents in one durable run."""

    executions: dict[str, AgentExecution] = field(default_factory=dict)
    known_ids: set[str] = field(default_factory=set)


def _agents_of(run: DurableRun) -> _RunAgents:
    agents: _RunAgents = run.adapter_state.setdefault("pydantic_ai", _RunAgents())
    return agents


def begin(run: DurableRun, run_id: str | None = None) -> str:
    """Begin an execution of an agent, and return the library's ID of its run. `run_id`: given by the caller."""
    agents = _agents_of(run)
    prefix = run.next_position()
    run_id = run_id or f"{run.root_run_id}:{prefix}"
    agents.executions[run_id] = AgentExecution(run, prefix, agents.known_ids)
    return run_id


def execution_of(ctx: RunContext[Any]) -> AgentExecution:
    """Return the execution that a context of the library belongs to."""
    run = running()
    if run is None:
        raise RuntimeError("the agent's durable steps were called outside of a durable run")
    run_id = ctx.run_id or ""
    agents = _agents_of(run)
    if run_id not in agents.executions:
        begin(run, run_id)
    return agents.executions[run_id]


def short(text: str, limit: int) -> str:
    """Return a text, or its beginning and its digest if it is longer than the limit."""
    if len(text) <= limit:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return f"{text[: limit - 17]}-{digest}"
