"""The capability that makes an agent of pydantic-ai durable in the runs of a site."""

from __future__ import annotations

import time
from collections.abc import AsyncIterable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any, cast

from pydantic_ai.agent import EventStreamHandler
from pydantic_ai.capabilities import ModelFallback, RequestInput
from pydantic_ai.capabilities.abstract import CapabilityOrdering, WrapModelRequestHandler, WrapRunHandler
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    BaseDurabilityCapability,
    DurabilityEngineSpec,
    DurableOperationBackend,
    conversation_id_from_run_id,
    external_event_scope,
    replay_scope,
)
from pydantic_ai.messages import AgentStreamEvent, ModelResponse
from pydantic_ai.models import Model, ModelRequestContext
from pydantic_ai.run import AgentRunResult
from pydantic_ai.tools import AgentDepsT, DeferredToolRequests, DeferredToolResults, RunContext
from pydantic_ai.toolsets import AbstractToolset, ExternalToolset, FunctionToolset, WrapperToolset
from pydantic_graph import End

from agentops.durable.pydantic_ai import executions
from agentops.durable.pydantic_ai.backend import StepBackend
from agentops.durable.pydantic_ai.deferred_calls import resolve_calls, settle_calls
from agentops.durable.pydantic_ai.executions import execution_of, running
from agentops.durable.pydantic_ai.external_events import SignalWaiter
from agentops.durable.pydantic_ai.streaming import can_stream, showing_text
from agentops.durable.pydantic_ai.tool_options import METADATA_KEY
from agentops.durable.run import DurableRun

#: Returns the dependencies of an agent for a run, or an awaitable of them.
DepsFactory = Callable[[DurableRun], Any]


class AgentopsDurability(BaseDurabilityCapability[AgentDepsT]):
    """Makes an agent durable: `Agent(…, name="support", capabilities=[AgentopsDurability()])`.

    In a durable run, each model request and each tool call is a step of the run. Outside of one, it does nothing.
    """

    engine_spec = DurabilityEngineSpec(
        engine_name="agentops",
        durable_unit_noun="step",
        durable_unit_plural="steps",
        durable_container_noun="run",
        codec=JSON_CODEC,
        unsupported_runtime_toolset_kinds=frozenset({"function", "mcp", "dynamic"}),
        wrapped_toolset_kinds=frozenset({"function", "mcp", "dynamic"}),
        toolset_lifecycles={"function": "enter-always", "mcp": "enter-in-durable-unit", "dynamic": "enter-never"},
        journal_discovery=True,
        sequential_tools_in_durable_context=False,
        tool_config_key=METADATA_KEY,
    )

    def __init__(
        self,
        *,
        deps: DepsFactory | None = None,
        version: int = 1,
        models: Mapping[str, Model] | None = None,
        event_stream_handler: EventStreamHandler[AgentDepsT] | None = None,
        streams: bool | None = None,
        model_retries: int = 0,
        name: str | None = None,
    ) -> None:
        """Prepare the capability.

        `deps`: creates the dependencies whenever a run begins or continues in this process. `version`: of the code, see
        `durable`. `models`: further models, by the ID that `agent.run(model=…)` gets. `event_stream_handler`: gets each
        event once. `streams`: whether models stream, so that the page shows text while it is written; by default, if
        the agent's model can. `model_retries`: retries of a failed model request. `name`: of the agent on the site, by
        default the agent's own.
        """
        super().__init__(models=models, event_stream_handler=showing_text(event_stream_handler), name=name)
        self.deps_factory = deps
        self.version = version
        self._handles_events = event_stream_handler is not None
        self._streams = streams
        self._model_retries = model_retries

    # --- The engine of the library ---

    @property
    def in_durable_context(self) -> bool:
        """Whether this code runs in a durable run, outside of its steps."""
        return running() is not None

    def get_durable_operation_backend(self) -> DurableOperationBackend[Any]:
        """Return the backend that executes operations as steps."""
        return StepBackend(self.name, model_retries=self._model_retries, handles_events=self._handles_events)

    def _wrap_other_leaf_toolset(self, ts: AbstractToolset[AgentDepsT]) -> WrapperToolset[AgentDepsT] | None:
        """Execute the tools of other classes as steps. The library's own classes execute nothing."""
        if isinstance(ts, ExternalToolset) or type(ts).__module__.startswith("pydantic_ai."):
            return None
        return self._build_function_toolset(cast("FunctionToolset[AgentDepsT]", ts))

    def get_ordering(self) -> CapabilityOrdering:
        """Return the innermost place, so that other capabilities may resolve deferred calls first."""
        return CapabilityOrdering(position="innermost", wrapped_by=(ModelFallback, RequestInput))

    # --- The run of the agent ---

    def get_default_run_id(self) -> str | None:
        """Return an ID that is the same whenever the durable run is executed again."""
        run = running()
        return None if run is None else executions.begin(run)

    def get_default_conversation_id(self, run_id: str) -> str | None:
        """Return an ID that is derived from the ID of the run."""
        return conversation_id_from_run_id(run_id) if self.in_durable_context else None

    async def get_run_start_time(self, run_id: str) -> datetime | None:
        """Return the time at which the agent was first called, for `agent.run(timeout=…)`."""
        run = running()
        if run is None:
            return None
        seconds = await run.at(f"{run_id.rpartition(':')[2]}/start time").step("start time", time.time, effect="read")
        return datetime.fromtimestamp(seconds, UTC)

    async def wrap_run(self, ctx: RunContext[AgentDepsT], *, handler: WrapRunHandler) -> AgentRunResult[Any]:
        """Wait for external events by signals, and keep spans of replayed steps from being exported."""
        if not self.in_durable_context:
            return await handler()
        with external_event_scope(SignalWaiter(execution_of(ctx))), replay_scope():
            return await super().wrap_run(ctx, handler=handler)

    # --- Messages of people ---

    async def wrap_model_request(
        self, ctx: RunContext[AgentDepsT], *, request_context: ModelRequestContext, handler: WrapModelRequestHandler
    ) -> ModelResponse:
        """Add messages of people to the request, and execute it as a step."""
        if self.in_durable_context:
            await settle_calls(execution_of(ctx), ctx.messages)
            await self._enqueue_messages(ctx, "messages")
        return await super().wrap_model_request(ctx, request_context=request_context, handler=handler)

    async def after_node_run(self, ctx: RunContext[AgentDepsT], *, node: Any, result: Any) -> Any:
        """Continue with messages that people have sent until the end."""
        if isinstance(result, End) and self.in_durable_context:
            await settle_calls(execution_of(ctx), ctx.messages)
            await self._enqueue_messages(ctx, "end")
        return result

    async def _enqueue_messages(self, ctx: RunContext[AgentDepsT], place: str) -> None:
        for text in await execution_of(ctx).received(place):
            ctx.enqueue(text)

    # --- Events ---

    @property
    def has_wrap_run_event_stream(self) -> bool:
        """Whether the library streams model responses for this capability."""
        if self._handles_events or not self.in_durable_context:
            return self._handles_events
        return can_stream(getattr(self.agent, "model", None)) if self._streams is None else self._streams

    async def wrap_run_event_stream(
        self, ctx: RunContext[AgentDepsT], *, stream: AsyncIterable[AgentStreamEvent]
    ) -> AsyncIterable[AgentStreamEvent]:
        """Pass events to the handler, if there is one."""
        if self._handles_events or self.in_durable_context:
            stream = super().wrap_run_event_stream(ctx, stream=stream)
        async for event in stream:
            yield event

    # --- Deferred tool calls ---

    async def handle_deferred_tool_calls(
        self, ctx: RunContext[AgentDepsT], *, requests: DeferredToolRequests
    ) -> DeferredToolResults | None:
        """Ask people about calls that need an approval, or a result from outside."""
        return await resolve_calls(ctx, requests) if self.in_durable_context else None


def durability_of(agent: Any) -> AgentopsDurability[Any]:
    """Return the capability of an agent. Raises `TypeError` if it has none."""
    durability = AgentopsDurability.from_agent(agent)
    if durability is None:
        raise TypeError(f"the agent {agent.name!r} is not durable: give it capabilities=[AgentopsDurability()]")
    return durability
