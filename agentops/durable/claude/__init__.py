"""Agents of claude-agent-sdk as durable functions: the journal of a run is the store of its session.

    agent = durable_function(ClaudeAgentOptions(system_prompt="…", mcp_servers={"shop": shop}), name="support")
    serve_forever(agent)

Needs claude-agent-sdk. The guide is docs/guides/claude-agent-sdk.md.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from claude_agent_sdk import ClaudeAgentOptions

from agentops.durable.answers import Effect
from agentops.durable.claude.conversation import ClaudeConversation
from agentops.durable.claude.errors import ClaudeFailed
from agentops.durable.claude.own_tools import servers_of, tools_of
from agentops.durable.claude.session import ClaudeSession
from agentops.durable.functions import DurableFunction, durable
from agentops.durable.run import DurableRun

__all__ = ["ClaudeFailed", "durable_function"]

#: Returns the options for a run.
OptionsFactory = Callable[[DurableRun], "ClaudeAgentOptions | Awaitable[ClaudeAgentOptions]"]
#: Options that this module sets.
_RESERVED = (
    "session_store",
    "resume",
    "session_id",
    "continue_conversation",
    "fork_session",
    "permission_prompt_tool_name",
)


def durable_function(
    options: ClaudeAgentOptions | OptionsFactory,
    *,
    name: str,
    effects: Mapping[str, Effect] | None = None,
    version: int = 1,
    description: str | None = None,
    queue: str | None = None,
    max_steps: int | None = None,
    settings: Mapping[str, Any] | None = None,
) -> DurableFunction:
    """Return a durable function that executes runs of the agent `name` with claude-agent-sdk.

    `options`: of the agent, or a function that returns them for a run. `effects`: of tools, by the names that the model
    uses, such as `Bash` or `mcp__shop__charge`: what happens if the process dies in a call. The others are as in
    `durable`.

    Raises `ValueError` for options that `durable_function` sets itself, such as `session_store` and `resume`.
    """
    if isinstance(options, ClaudeAgentOptions):
        _check(options)

    @durable(name, version=version, description=description, queue=queue, max_steps=max_steps, settings=settings)
    async def execute(run: DurableRun, prompt: Any) -> Any:
        given = await _options_for(options, run)
        tools = await tools_of(servers_of(given.mcp_servers))
        session = ClaudeSession(run.id, given, tools, effects or {})
        try:
            return await ClaudeConversation(run, session).execute()
        finally:
            await session.close()

    return execute


async def _options_for(options: ClaudeAgentOptions | OptionsFactory, run: DurableRun) -> ClaudeAgentOptions:
    if isinstance(options, ClaudeAgentOptions):
        return options
    made = options(run)
    given = await made if inspect.isawaitable(made) else made
    _check(given)
    return given


def _check(options: ClaudeAgentOptions) -> None:
    """Raise `ValueError` for options that this module sets."""
    given = [name for name in _RESERVED if getattr(options, name)]
    if given:
        raise ValueError(f"leave out {', '.join(given)} of the options: the run has its session")
