"""`durable_function`: makes a compiled graph of LangGraph a durable function."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, cast

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool
from langgraph.prebuilt import ToolNode
from langgraph.pregel import Pregel
from langgraph.types import Command, Interrupt, StateSnapshot

from agentops.durable.functions import DurableFunction, durable
from agentops.durable.langgraph import hooks
from agentops.durable.langgraph.context import serving
from agentops.durable.langgraph.encoding import StateEncoding, as_text
from agentops.durable.langgraph.inbox import RunInbox
from agentops.durable.langgraph.interrupts import answer
from agentops.durable.langgraph.saver import AgentopsSaver
from agentops.durable.langgraph.served import ServedRun
from agentops.durable.langgraph.tool_rules import ToolRules
from agentops.durable.run import DurableRun

#: The name of a graph that was compiled without one.
UNNAMED = "LangGraph"
#: Returns the input of the graph for a prompt or for what people have sent.
MakeInput = Callable[[Any], Any]
#: Asks a person about an interrupt, and returns the value that resumes it.
Answer = Callable[[DurableRun, Interrupt], Awaitable[Any]]


@dataclass(frozen=True)
class GraphOptions:
    """How a graph is executed."""

    input: MakeInput
    output: Callable[[Any], Any]
    answer: Answer
    config: RunnableConfig
    #: Returns the context of the graph, if it has one.
    context: Callable[[DurableRun], Any] | None
    rules: ToolRules


def durable_function(
    graph: Pregel[Any, Any, Any, Any],
    *,
    name: str | None = None,
    version: int = 1,
    description: str | None = None,
    queue: str | None = None,
    max_steps: int | None = None,
    settings: Mapping[str, Any] | None = None,
    input: MakeInput | None = None,  # noqa: A002 - as in LangGraph
    output: Callable[[Any], Any] | None = None,
    answer: Answer = answer,
    config: RunnableConfig | None = None,
    context: Callable[[DurableRun], Any] | None = None,
    tools: Iterable[BaseTool] = (),
) -> DurableFunction:
    """Return the durable function that executes a graph for the runs of an agent.

    `name`: of the agent; by default, that of the graph: `compile(name=…)`. `version` to `settings`: as for `durable`.
    `input`: returns the input for a prompt; by default, a message of the user if the state has `messages`, otherwise
    the JSON object in the prompt. `output`: returns the run's result for the output of the graph. `answer`: asks a
    person about an interrupt. `config`: such as `recursion_limit` and `configurable`. `context`: returns the graph's
    context. `tools`: that nodes call without a `ToolNode`, for their effects.

    Raises `ValueError` if the graph has no name, and `TypeError` if it has a checkpointer of another kind.
    """
    agent = name or graph.get_name()
    if agent == UNNAMED:
        raise ValueError("the graph has no name: use compile(name=…) or durable_function(graph, name=…)")
    if graph.checkpointer in (None, True):
        graph = graph.copy({"checkpointer": AgentopsSaver()})
    elif not isinstance(graph.checkpointer, AgentopsSaver):
        kind = type(graph.checkpointer).__name__
        raise TypeError(f"the graph {agent!r} has the checkpointer {kind}: use AgentopsSaver")
    hooks.install()
    options = GraphOptions(
        input=input or _default_input(graph),
        output=output or _default_output,
        answer=answer,
        config=config or {},
        context=context,
        rules=ToolRules([*_tools_of(graph), *tools]),
    )

    async def execute(run: DurableRun, prompt: Any) -> Any:
        return await GraphRun(graph, options, run).execute(prompt)

    offer: dict[str, Any] = {"description": description, "queue": queue, "max_steps": max_steps, "settings": settings}
    return durable(agent, version=version, **offer)(execute)


def _tools_of(graph: Pregel[Any, Any, Any, Any]) -> Iterator[BaseTool]:
    """Yield the tools in the tool nodes of a graph and its sub-graphs."""
    for each in (graph, *(inner for _, inner in graph.get_subgraphs(recurse=True))):
        for node in each.nodes.values() if isinstance(each, Pregel) else ():
            for part in (node.bound, *getattr(node.bound, "steps", ())):
                if isinstance(part, ToolNode):
                    yield from part.tools_by_name.values()


class GraphRun:
    """The execution of a graph for a claimed run, until the run ends or waits."""

    def __init__(self, graph: Pregel[Any, Any, Any, Any], options: GraphOptions, run: DurableRun) -> None:
        self._graph = graph
        self._options = options
        self._run = run
        self._served = ServedRun(run)
        assert isinstance(graph.checkpointer, AgentopsSaver)
        codec = graph.checkpointer.codec or self._served.codec
        # The values of steps are sealed by the codec of `serve`, which encodes all of them.
        self._served.encoding = StateEncoding(graph.checkpointer.serde, None if self._served.codec else codec)
        self._served.rules = options.rules
        configurable = {**options.config.get("configurable", {}), "thread_id": self._served.thread}
        self._config: RunnableConfig = {**options.config, "configurable": configurable}
        self._context = {} if options.context is None else {"context": options.context(run)}
        self._output: Any = None

    async def execute(self, prompt: Any) -> Any:
        """Execute the graph from its newest state until it has ended, and return the result of the run."""
        with serving(self._served):
            state = await self._state()
            self._served.inbox = RunInbox(self._run)
            if state is None:
                given = self._options.input(prompt)
            else:
                self._output = self._output_of(state.values)
                given = await self._next(state)
            while given is not _END:
                await self._stream(given)
                state = await self._state()
                given = _END if state is None else await self._next(state)
            await self._served.is_stored()
            return self._options.output(self._output)

    async def _stream(self, given: Any) -> None:
        """Execute the graph until it has ended or is interrupted."""
        stream = self._graph.astream(
            given,
            self._config,
            stream_mode="values",
            durability="sync",
            **self._context,
        )
        async with aclosing(cast("AsyncGenerator[Any, None]", stream)) as chunks:
            async for chunk in chunks:
                self._output = chunk

    async def _state(self) -> StateSnapshot | None:
        """Return the newest state of the graph; None if it has not begun."""
        state = await self._graph.aget_state(self._config, subgraphs=True)
        return None if state.metadata is None else state

    def _output_of(self, values: Any) -> Any:
        """Return the output of the graph in a state."""
        names = self._graph.output_channels
        if isinstance(values, Mapping) and not isinstance(names, str):
            return {name: values[name] for name in names if name in values}
        return values

    async def _next(self, state: StateSnapshot) -> Any:
        """Return the next input of the graph, after waiting for people; `_END` if it has ended."""
        if interrupts := [each for task in state.tasks for each in task.interrupts]:
            return Command(resume={each.id: await self._answer(each) for each in interrupts})
        checkpoint = state.config["configurable"]["checkpoint_id"]
        if state.next:
            return await self._after_breakpoint(state, checkpoint)
        # `next` leaves out tasks whose writes are stored. If the process died before the checkpoint after them, the
        # graph has not ended yet.
        if state.tasks:
            return None
        texts = await self._served.inbox.at_end(f"end:{checkpoint}")
        return self._options.input(texts[0] if len(texts) == 1 else texts) if texts else _END

    async def _answer(self, interrupt: Interrupt) -> Any:
        """Ask a person about an interrupt. Its steps have a key for each answer that the task has got before."""
        key = f"interrupt:{interrupt.id}.{self._served.answered(interrupt.id)}."
        return await self._options.answer(self._served.named_run(key), interrupt)

    async def _after_breakpoint(self, state: StateSnapshot, checkpoint: str) -> Any:
        """Return None to continue: after a crash, or if a person approves the nodes at which the graph has stopped."""
        if not self._is_at_breakpoint(state):
            return None
        names = ", ".join(state.next)
        payload = {"next": list(state.next), "state": as_text(state.values)}
        if await self._served.named_run(f"breakpoint:{checkpoint}.").approve(f"continue with {names}"[:200], payload):
            return None
        return _END

    def _is_at_breakpoint(self, state: StateSnapshot) -> bool:
        before, after = self._graph.interrupt_before_nodes, self._graph.interrupt_after_nodes
        if before == "*" or set(before) & set(state.next):
            return True
        # The state does not say which nodes came before. A person rather decides once too often.
        return bool(after) and not any(task.error for task in state.tasks)


#: In place of an input: the graph has ended.
_END = object()


def _default_input(graph: Pregel[Any, Any, Any, Any]) -> MakeInput:
    # Not from its JSON schema, which needs typing_extensions.TypedDict before Python 3.12.
    builder = getattr(graph, "builder", None)
    members = {} if builder is None else builder.schemas.get(builder.input_schema, {})

    def make(prompt: Any) -> Any:
        if "messages" in members:
            texts = prompt if isinstance(prompt, list) and all(isinstance(each, str) for each in prompt) else [prompt]
            return {"messages": [{"role": "user", "content": text} for text in texts]}
        if not members:
            return prompt
        try:
            document = json.loads(prompt)
        except (TypeError, ValueError):
            document = None
        if isinstance(document, dict):
            return document
        if len(members) == 1:
            return {next(iter(members)): prompt}
        names = ", ".join(sorted(members))
        raise ValueError(f"the prompt is no JSON object with {names}: give durable_function(graph, input=…)")

    return make


def _default_output(values: Any) -> Any:
    """Return the structured response of an agent, the text of its last message, or the output as JSON."""
    if isinstance(values, Mapping):
        if values.get("structured_response") is not None:
            return as_text(values["structured_response"])
        messages = values.get("messages")
        if isinstance(messages, Sequence) and messages and isinstance(messages[-1], BaseMessage):
            return str(messages[-1].text)
    return as_text(values)
