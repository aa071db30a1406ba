"""`AgentopsRunner`: executes agents of the SDK as steps of a durable run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, cast

from agents import Agent, HandoffOutputItem, Runner, RunResult, RunResultStreaming, RunState, ToolCallOutputItem
from agents.run import AgentRunner, get_default_agent_runner, set_default_agent_runner

from agentops.durable.answers import Effect
from agentops.durable.openai_agents.durable_agents import durable_agent, durable_config
from agentops.durable.openai_agents.execution import AgentOptions, Execution, active, executing
from agentops.durable.openai_agents.models import outputs_of
from agentops.durable.openai_agents.sessions import durable_session
from agentops.durable.positions import current_step
from agentops.durable.retries import RetryPolicy
from agentops.durable.run import DurableRun, current_run

#: Options of `Runner.run` that a run keeps when it continues after decisions of people.
_KEPT = frozenset({"max_turns", "hooks", "run_config", "session", "error_handlers"})


class AgentopsRunner:
    """Has the methods `run` and `run_streamed` of the SDK's `Runner`, with further options.

    In a durable function, all that an agent does is a step of its run. Elsewhere, the methods behave like those of
    `Runner`, and the further options have no effect.
    """

    @classmethod
    async def run(
        cls,
        starting_agent: Agent[Any],
        input: Any,  # noqa: A002 - the name in the SDK
        *,
        effects: Mapping[str, Effect] | None = None,
        children: Iterable[Agent[Any]] | Mapping[str, str] = (),
        retries: int | RetryPolicy = 0,
        streams: bool = False,
        provider: str = "",
        **options: Any,
    ) -> RunResult:
        """Execute an agent, and return the SDK's result, which has no interruptions: the run waits for decisions.

        `effects`: of tools by name, where `@effect` does not say it. `children`: agents whose calls as tools are child
        runs of the agents with their names on the site. `retries`: of model calls. `streams`: whether the page shows
        the text of models while they write. `provider`: of the models, such as `openai`, if their class does not tell.
        `options`: of `Runner.run`.
        """
        run = _current()
        if run is None:
            return await Runner.run(starting_agent, input, **options)
        how = _agent_options(effects, children, retries=retries, streams=streams, provider=provider)
        execution = Execution(run, how, run.next_position())
        return await _DurableRunner.install().execute(execution, starting_agent, input, options)

    @classmethod
    def run_streamed(
        cls,
        starting_agent: Agent[Any],
        input: Any,  # noqa: A002 - the name in the SDK
        *,
        effects: Mapping[str, Effect] | None = None,
        children: Iterable[Agent[Any]] | Mapping[str, str] = (),
        retries: int | RetryPolicy = 0,
        streams: bool = True,
        provider: str = "",
        **options: Any,
    ) -> RunResultStreaming:
        """Execute an agent in the background, and return its stream. Takes the options of `run`.

        `streams`: whether the models of agents that are tools stream too. Stored model answers have no events but their
        last one. Tools that need an approval wait for it.
        """
        run = _current()
        if run is None:
            return Runner.run_streamed(starting_agent, input, **options)
        how = _agent_options(effects, children, retries=retries, streams=streams, provider=provider)
        execution = Execution(run, how, run.next_position())
        return _DurableRunner.install().execute_streamed(execution, starting_agent, input, options)


def _current() -> DurableRun | None:
    """Return the durable run of this context; None in the function of a step, which has no steps itself."""
    return None if current_step.get() else current_run.get()


def _agent_options(
    effects: Mapping[str, Effect] | None,
    children: Iterable[Agent[Any]] | Mapping[str, str],
    *,
    retries: int | RetryPolicy,
    streams: bool,
    provider: str,
) -> AgentOptions:
    """Return the options of `AgentopsRunner.run` as the steps of an execution need them."""
    names = children if isinstance(children, Mapping) else {agent.name: agent_name(agent) for agent in children}
    return AgentOptions(effects or {}, names, retries, streams, provider)


def agent_name(agent: Agent[Any]) -> str:
    """Return the name of an agent as the site can use it: lower case, with dashes between the words."""
    words = "".join(character if character.isalnum() else " " for character in agent.name.lower()).split()
    return "-".join(words)[:63].strip("-") or "agent"


class _DurableRunner:
    """The runner of the SDK: agents that run within a step with steps, such as agents that are tools, have steps too.

    Anywhere else it passes everything on to the runner that it replaces.
    """

    def __init__(self, plain: AgentRunner) -> None:
        self.plain = plain

    @classmethod
    def install(cls) -> _DurableRunner:
        """Make it the default runner of the SDK, and return it."""
        current: Any = get_default_agent_runner()
        if isinstance(current, cls):
            return current
        durable = cls(current)
        set_default_agent_runner(cast("AgentRunner", durable))
        return durable

    async def run(self, starting_agent: Agent[Any], *args: Any, **options: Any) -> RunResult:
        if (parent := active()) is None:
            return await self.plain.run(starting_agent, *args, **options)
        given = args[0] if args else options.pop("input")
        return await self.execute(parent.scope(parent.key("run")), starting_agent, given, options)

    def run_sync(self, starting_agent: Agent[Any], *args: Any, **options: Any) -> RunResult:
        return self.plain.run_sync(starting_agent, *args, **options)

    def run_streamed(self, starting_agent: Agent[Any], *args: Any, **options: Any) -> RunResultStreaming:
        if (parent := active()) is None:
            return self.plain.run_streamed(starting_agent, *args, **options)
        given = args[0] if args else options.pop("input")
        return self.execute_streamed(parent.scope(parent.key("run")), starting_agent, given, options)

    async def execute(self, execution: Execution, agent: Agent[Any], given: Any, options: dict[str, Any]) -> RunResult:
        """Execute an agent until it has a result."""
        options = _prepared(execution, agent, options)
        config = options["run_config"]
        try:
            with executing(execution):
                result = await self.plain.run(durable_agent(agent), given, **options)
                while result.interruptions:
                    state = await _decided(execution, result)
                    kept = {name: value for name, value in options.items() if name in _KEPT}
                    result = await self.plain.run(durable_agent(agent), state, **kept)
                await execution.close_calls(_outputs_in(result))
                return result
        finally:
            if execution.owns_provider:
                await config.model_provider.aclose()

    def execute_streamed(
        self, execution: Execution, agent: Agent[Any], given: Any, options: dict[str, Any]
    ) -> RunResultStreaming:
        """Execute an agent in a task that the SDK starts."""
        options = _prepared(execution, agent, options)
        with executing(execution):
            return self.plain.run_streamed(durable_agent(agent), given, **options)


def _prepared(execution: Execution, agent: Agent[Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of `Runner.run` with models, guardrails and a session whose work consists of steps."""
    execution.agent = agent.name
    execution.owns_provider = options.get("run_config") is None
    config = durable_config(options.get("run_config"))
    if config.workflow_name == "Agent workflow":
        config = replace(config, workflow_name=execution.run.agent)
    execution.session = durable_session(options.get("session"), execution)
    return {**options, "run_config": config, "session": execution.session}


def _outputs_in(result: RunResult) -> dict[str, Any]:
    """Return the outputs of calls in a result, by the ID of their call."""
    rows = [item for item in result.new_items if isinstance(item, (ToolCallOutputItem, HandoffOutputItem))]
    return outputs_of([item.to_input_item() for item in rows])


async def _decided(execution: Execution, result: RunResult) -> RunState[Any]:
    """Wait for a person to decide about calls that the SDK cannot make without an approval; return the state."""
    state = result.to_state()
    for item in result.interruptions:
        name = item.tool_name or "tool"
        call_id = item.call_id or item.name or name
        key = execution.key(f"approval.{call_id}")
        decision = await execution.run.at(key).approve(name, {"arguments": item.arguments})
        if decision:
            state.approve(item)
        else:
            state.reject(item, rejection_message=decision.message or None)
    return state
