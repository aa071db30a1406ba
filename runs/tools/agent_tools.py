"""The tools by which an agent delegates work: `spawn_agents` waits for child runs, `handoff` ends with one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from runs.statuses import OnChildPause
from runs.tools.base import Arguments, BadArguments, Effect, Tool, ToolContext
from runs.tools.functions import tool

MAX_TASKS, MAX_PROMPT = 20, 100_000
#: Maximum time limit in seconds.
MAX_TIMEOUT_S = 7 * 24 * 3600

AgentName = Annotated[str, Field(pattern=r"\S", max_length=128)]
PromptText = Annotated[str, Field(pattern=r"\S", max_length=MAX_PROMPT)]


class AgentTask(BaseModel):
    """A task for another agent: either a new run of `agent`, or `resume_run_id`, a paused run that goes on."""

    model_config = ConfigDict(extra="forbid")

    prompt: PromptText
    agent: AgentName | None = None
    resume_run_id: Annotated[str, Field(max_length=36)] | None = None


@dataclass(frozen=True)
class SpawnRequest:
    """The tasks of a call, and the seconds after which unfinished tasks are stopped."""

    tasks: list[AgentTask]
    timeout_s: int | None = None
    #: None: use the agent's settings.
    on_child_pause: OnChildPause | None = None


@tool(effect=Effect.AT_MOST_ONCE, inline=True)
def spawn_agents(
    tasks: Annotated[list[AgentTask], Field(min_length=1, max_length=MAX_TASKS)],
    timeout_s: Annotated[int, Field(ge=1, le=MAX_TIMEOUT_S)] | None = None,
    on_child_pause: Literal["return", "wait"] | None = None,
) -> SpawnRequest:
    """Let other agents work on tasks at the same time, and wait for all results. They have the order of the tasks.

    A run that pauses, for example at its step limit, is a result with the status "paused" and the reason. To continue
    it, call spawn_agents again with its ID as resume_run_id, and a prompt for it.

    Args:
        tasks: Each has a prompt with everything that its agent needs to know, and either agent, the name of the agent
            of a new run, or resume_run_id, the ID of a paused run to continue.
        timeout_s: Seconds after which tasks that are not done are stopped.
        on_child_pause: "return" gives you a run that pauses as a result; "wait" waits until a person has resumed it and
            it has ended.
    """
    for task in tasks:
        if (task.agent is None) == (task.resume_run_id is None):
            raise BadArguments("Each task has either agent or resume_run_id.")
    return SpawnRequest(tasks, timeout_s, OnChildPause(on_child_pause) if on_child_pause else None)


@tool(effect=Effect.AT_MOST_ONCE, inline=True)
def handoff(agent: AgentName, prompt: PromptText) -> SpawnRequest:
    """Hand the rest of the work over to another agent. Its result becomes the result of this run, which ends with it.

    Args:
        agent: Name of the agent.
        prompt: What is to be done, with everything that the agent needs to know: it does not see this conversation.
    """
    return SpawnRequest([AgentTask(agent=agent, prompt=prompt)], on_child_pause=OnChildPause.WAIT)


SPAWN_AGENTS = replace(spawn_agents, spawns=True)
HANDOFF = replace(handoff, spawns=True, ends=True)
AGENT_TOOLS = (SPAWN_AGENTS, HANDOFF)


def request_of(tool: Tool, ctx: ToolContext, arguments: Arguments) -> SpawnRequest:
    """Return the request of a call of a tool that spawns. Raises `BadArguments`."""
    value = tool.execute(ctx, arguments)
    assert isinstance(value, SpawnRequest)
    return value
