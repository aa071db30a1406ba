"""The tools with which an agent ends its run (`done`), asks a person (`ask_user`), and delegates work.

`spawn_agents` waits for child runs. `handoff` ends the run with the result of one child run.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from runs.statuses import OnChildPause
from runs.tools.base import Arguments, BadArguments, Effect, Tool, ToolContext
from runs.tools.functions import tool

MAX_QUESTION = 20_000
MAX_CHOICES, MAX_CHOICE = 20, 500

QuestionText = Annotated[str, Field(pattern=r"\S", max_length=MAX_QUESTION)]
ChoiceText = Annotated[str, Field(pattern=r"\S", max_length=MAX_CHOICE)]


@tool(effect=Effect.READ, inline=True)
def done(result: str, summary: str | None = None) -> str:
    """Report that the task is done. This ends the run, so call it once, when everything is finished.

    Args:
        result: The result of the task: the answer, or a summary of the work.
        summary: One or two sentences for the list of runs, if the result is long.
    """
    return result


@dataclass(frozen=True)
class Question:
    """A question to a person, with optional answers to choose from."""

    question: str
    choices: list[str] = field(default_factory=list)
    #: Whether a program answers the question. Rules for questions to people then do not apply.
    is_for_program: bool = False


@tool(effect=Effect.READ, inline=True)
def ask_user(
    question: QuestionText, choices: Annotated[list[ChoiceText], Field(max_length=MAX_CHOICES)] | None = None
) -> Question:
    """Ask the person who watches this run, and wait for the answer. Only for what you cannot find out yourself.

    Args:
        question: What you need to know, with all the facts that are needed to answer.
        choices: Answers to choose from, if there are few. The person may also give another answer.
    """
    return Question(question, choices or [])


DONE = replace(done, ends=True)
ASK_USER = replace(ask_user, asks=True)
CONVERSATION_TOOLS = (DONE, ASK_USER)


def question_of(tool: Tool, ctx: ToolContext, arguments: Arguments) -> Question | None:
    """Return the question of a call; None for other tools than `ask_user`, and for invalid arguments."""
    if not tool.asks:
        return None
    try:
        value = tool.execute(ctx, arguments)
    except BadArguments:
        return None
    return value if isinstance(value, Question) else None


MAX_TASKS, MAX_PROMPT = 20, 100_000
#: The longest `timeout_s` of a call.
MAX_TIMEOUT_S = 7 * 24 * 3600

AgentName = Annotated[str, Field(pattern=r"\S", max_length=128)]
PromptText = Annotated[str, Field(pattern=r"\S", max_length=MAX_PROMPT)]


class AgentTask(BaseModel):
    """A task for another agent: either a new run of `agent`, or the paused run `resume_run_id`, which is resumed."""

    model_config = ConfigDict(extra="forbid")

    prompt: PromptText
    agent: AgentName | None = None
    resume_run_id: Annotated[str, Field(max_length=36)] | None = None


@dataclass(frozen=True)
class SpawnRequest:
    """The request of a call of `spawn_agents` or `handoff`."""

    tasks: list[AgentTask]
    #: Seconds after which unfinished tasks are stopped. None: no limit.
    timeout_s: int | None = None
    #: None: as the agent's settings say.
    on_child_pause: OnChildPause | None = None


@tool(effect=Effect.AT_MOST_ONCE, inline=True)
def spawn_agents(
    tasks: Annotated[list[AgentTask], Field(min_length=1, max_length=MAX_TASKS)],
    timeout_s: Annotated[int, Field(ge=1, le=MAX_TIMEOUT_S)] | None = None,
    on_child_pause: Literal["return", "wait"] | None = None,
) -> SpawnRequest:
    """Have other agents work on tasks at the same time, and wait for all results. They have the order of the tasks.

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
        prompt: The task, with everything that the agent needs to know: it does not see this conversation.
    """
    return SpawnRequest([AgentTask(agent=agent, prompt=prompt)], on_child_pause=OnChildPause.WAIT)


SPAWN_AGENTS = replace(spawn_agents, spawns=True)
HANDOFF = replace(handoff, spawns=True, ends=True)
AGENT_TOOLS = (SPAWN_AGENTS, HANDOFF)


def request_of(tool: Tool, ctx: ToolContext, arguments: Arguments) -> SpawnRequest:
    """Return the request of a call of `spawn_agents` or `handoff`. Raises `BadArguments`."""
    value = tool.execute(ctx, arguments)
    assert isinstance(value, SpawnRequest)
    return value
