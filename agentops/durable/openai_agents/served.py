"""`durable_function`: an agent of the SDK as a durable function, which `serve` executes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from agents import Agent, RunConfig, RunHooks, RunResult, Session
from agents.exceptions import (
    InputGuardrailTripwireTriggered,
    OutputGuardrailTripwireTriggered,
    ToolInputGuardrailTripwireTriggered,
    ToolOutputGuardrailTripwireTriggered,
)
from pydantic_core import to_jsonable_python

from agentops.durable.answers import Effect
from agentops.durable.functions import DurableFunction, durable
from agentops.durable.openai_agents.mcp_servers import connected
from agentops.durable.openai_agents.models import user_message
from agentops.durable.openai_agents.runner import AgentopsRunner, agent_name
from agentops.durable.retries import RetryPolicy
from agentops.durable.run import DurableRun


class GuardrailTripped(Exception):
    """A guardrail has ended the run. Its text names the guardrail and its information."""


@dataclass(frozen=True)
class _Options:
    runner: Mapping[str, Any]
    session: Callable[[DurableRun], Session | None] | None
    context: Callable[[DurableRun], Any] | None


def durable_function(
    agent: Agent[Any],
    *,
    name: str | None = None,
    version: int = 1,
    description: str | None = None,
    queue: str | None = None,
    max_steps: int | None = None,
    settings: Mapping[str, Any] | None = None,
    effects: Mapping[str, Effect] | None = None,
    children: Iterable[Agent[Any]] = (),
    session: Callable[[DurableRun], Session | None] | None = None,
    context: Callable[[DurableRun], Any] | None = None,
    retries: int | RetryPolicy = 0,
    streams: bool = False,
    provider: str = "",
    run_config: RunConfig | None = None,
    hooks: RunHooks[Any] | None = None,
    max_turns: int | None = None,
) -> DurableFunction:
    """Return a durable function that executes an agent: `serve(durable_function(agent))`.

    `name`: of the agent on the site; by default, the agent's name in lower case, with dashes. `version`, `description`,
    `queue`, `max_steps` and `settings`: see `durable`. `effects`, `children`, `retries`, `streams` and `provider`: see
    `AgentopsRunner.run`. `run_config`, `hooks` and `max_turns`: see `Runner.run` of the SDK; by default, only
    `max_steps` of the site limits the turns. `session`, `context`: are called with the run, and return the
    session and the context of the agent; they must return the same each time.
    """
    given: dict[str, Any] = {"effects": effects, "children": list(children), "retries": retries, "streams": streams}
    given |= {"provider": provider, "run_config": run_config, "hooks": hooks, "max_turns": max_turns}
    options = _Options(given, session, context)
    offer = {"description": description, "queue": queue, "max_steps": max_steps, "settings": settings}

    @durable(name or agent_name(agent), version=version, **offer)  # type: ignore[arg-type]
    async def execute(run: DurableRun, prompt: Any) -> Any:
        async with connected(agent):
            try:
                return await _converse(run, agent, options)
            except (InputGuardrailTripwireTriggered, OutputGuardrailTripwireTriggered) as error:
                result = error.guardrail_result
                raise _tripped(result.guardrail.get_name(), result.output.output_info) from error
            except (ToolInputGuardrailTripwireTriggered, ToolOutputGuardrailTripwireTriggered) as error:
                raise _tripped(error.guardrail.get_name(), error.output.output_info) from error

    return execute


def _tripped(name: str, info: Any) -> GuardrailTripped:
    details = "" if info is None else f": {info}"
    return GuardrailTripped(f"the guardrail {name!r} tripped{details}")


async def _converse(run: DurableRun, agent: Agent[Any], options: _Options) -> Any:
    """Execute the agent, again as long as people send messages until its end, and return its output as JSON."""
    session = None if options.session is None else options.session(run)
    context = None if options.context is None else options.context(run)
    given = {**options.runner, "session": session, "context": context}
    result = await AgentopsRunner.run(agent, input_of(run.prompt), **given)
    async for texts in _further_turns(run):
        turns = [user_message(text) for text in texts]
        history = result.to_input_list() if session is None else []
        result = await AgentopsRunner.run(_last_agent(result, agent), [*history, *turns], **given)
    return to_jsonable_python(result.final_output, fallback=str)


async def _further_turns(run: DurableRun) -> AsyncIterator[list[str]]:
    """Yield what people have sent until the agent had its result, as often as they do so.

    Messages that were received in an earlier run of the lineage are followed by those with which it was resumed.
    """
    number, was_stored, texts = 0, True, [""]
    while texts or was_stored:
        number += 1
        key = f"end.{number}"
        was_stored = run.has_outcome(key)
        if texts := await run.at(key).messages():
            yield texts


def _last_agent(result: RunResult, agent: Agent[Any]) -> Agent[Any]:
    """Return the agent that continues the conversation."""
    last = result.last_agent
    return last if isinstance(last, Agent) else agent


def input_of(prompt: Any) -> Any:
    """Return the prompt of a run as input of the SDK: a text, or a message of texts, images and files."""
    if isinstance(prompt, str):
        return prompt
    return [user_message([_part(part) for part in prompt])]


def _part(part: Any) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "input_text", "text": part}
    url, kind = part.get("url"), str(part.get("media_type") or part.get("kind") or "")
    if url is None:
        url = f"data:{part.get('media_type')};base64,{part.get('data')}"
    if kind.startswith("image"):
        return {"type": "input_image", "image_url": url, "detail": "auto"}
    if url.startswith("data:"):
        return {"type": "input_file", "file_data": url, "filename": part.get("identifier") or "file"}
    return {"type": "input_file", "file_url": url}
