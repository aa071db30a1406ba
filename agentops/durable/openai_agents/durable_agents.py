"""Copies of agents whose model calls, tools, handoffs and guardrails are steps of the durable run of their context."""

from __future__ import annotations

import copy
import functools
import json
from dataclasses import replace
from typing import Any, cast

from agents import Agent, Handoff, Model, RunConfig, RunContextWrapper, Tool, handoff

from agentops.durable.answers import Call
from agentops.durable.openai_agents import guardrails
from agentops.durable.openai_agents.execution import Execution, active
from agentops.durable.openai_agents.models import DurableProvider, durable_model
from agentops.durable.openai_agents.tools import durable_tool


class DurableAgentMixin:
    """Wraps the tools of MCP servers, which the SDK requests before each model call."""

    async def get_mcp_tools(self, run_context: RunContextWrapper[Any]) -> list[Tool]:
        """Return the tools of the agent's MCP servers, as steps."""
        tools = await super().get_mcp_tools(run_context)  # type: ignore[misc]
        return [durable_tool(tool) for tool in tools]


_classes: dict[type[Any], type[Any]] = {}


def _class_of(kind: type[Any]) -> type[Any]:
    """Return the class of the copies of agents of a class."""
    if kind not in _classes:
        _classes[kind] = type(kind.__name__, (DurableAgentMixin, kind), {"__module__": kind.__module__})
    return _classes[kind]


def durable_agent(agent: Agent[Any]) -> Agent[Any]:
    """Return a copy of an agent, and of those it hands over to, whose work consists of steps."""
    return _Copies().of(agent)


class _Copies:
    """The copies of agents that refer to each other."""

    def __init__(self) -> None:
        self._copies: dict[int, Agent[Any]] = {}

    def of(self, agent: Agent[Any]) -> Agent[Any]:
        if isinstance(agent, DurableAgentMixin):
            return agent
        if (known := self._copies.get(id(agent))) is not None:
            return known
        # Without its constructor, which a subclass may have changed.
        durable: Agent[Any] = object.__new__(_class_of(type(agent)))
        durable.__dict__.update(agent.__dict__)
        self._copies[id(agent)] = durable
        durable.tools = [durable_tool(tool) for tool in agent.tools]
        durable.handoffs = [self._handoff(target) for target in agent.handoffs]
        durable.input_guardrails = [guardrails.durable_input_guardrail(each) for each in agent.input_guardrails]
        durable.output_guardrails = [guardrails.durable_output_guardrail(each) for each in agent.output_guardrails]
        if isinstance(agent.model, Model):
            durable.model = durable_model(agent.model)
        return durable

    def _handoff(self, target: Agent[Any] | Handoff[Any, Any]) -> Handoff[Any, Any]:
        """Return a handoff to the copy of its agent. The site shows it as a handoff."""
        original = handoff(target) if isinstance(target, Agent) else target
        wrapped = copy.copy(original)
        wrapped.on_invoke_handoff = functools.partial(self._hand_over, original)
        return wrapped

    async def _hand_over(
        self, original: Handoff[Any, Any], context: RunContextWrapper[Any], arguments: str
    ) -> Agent[Any]:
        execution = active()
        call = None if execution is None else execution.open_call(original.tool_name)
        if execution is None or call is None:
            return self.of(await original.on_invoke_handoff(context, arguments))
        return await self._step(execution, call, original, context, arguments)

    async def _step(
        self,
        execution: Execution,
        call: Call,
        original: Handoff[Any, Any],
        context: RunContextWrapper[Any],
        arguments: str,
    ) -> Agent[Any]:
        """Hand over in a step. The target is known without its callback, if the SDK has made the handoff."""
        agents: list[Agent[Any]] = []

        async def hand_over(**changed: Any) -> Any:
            text = arguments if changed == call.arguments else json.dumps(changed)
            agents.append(await original.on_invoke_handoff(context, text))
            to_agent = agents[0].name
            event = {"from_agent": execution.agent, "to_agent": to_agent, "call_id": call.id}
            execution.run.log("handoff", event)
            return {"assistant": to_agent}

        del execution.open_calls[call.id]
        await execution.run.at(execution.call_key(call)).tool(call, hand_over)
        if not agents:
            target = original._agent_ref() if original._agent_ref is not None else None
            agents.append(cast("Agent[Any]", target) or await original.on_invoke_handoff(context, arguments))
        execution.agent = agents[0].name
        return self.of(agents[0])


def durable_config(config: RunConfig | dict[str, Any] | None) -> RunConfig:
    """Return a configuration whose models and guardrails are steps."""
    given = RunConfig(**config) if isinstance(config, dict) else config or RunConfig()
    provider = given.model_provider
    return replace(
        given,
        model=durable_model(given.model) if isinstance(given.model, Model) else given.model,
        model_provider=provider if isinstance(provider, DurableProvider) else DurableProvider(provider),
        input_guardrails=_each(guardrails.durable_input_guardrail, given.input_guardrails),
        output_guardrails=_each(guardrails.durable_output_guardrail, given.output_guardrails),
    )


def _each(wrap: Any, values: list[Any] | None) -> list[Any] | None:
    return None if values is None else [wrap(value) for value in values]
