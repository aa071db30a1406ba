"""Durable functions that execute agents of pydantic-ai."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import NoneType
from typing import Any

from pydantic import ConfigDict, TypeAdapter
from pydantic_ai.agent import AbstractAgent
from pydantic_ai.messages import UserContent
from pydantic_core import to_jsonable_python

from agentops.durable.functions import DurableFunction, durable
from agentops.durable.pydantic_ai.durability import DepsFactory, durability_of
from agentops.durable.run import DurableRun

_CONTENT: TypeAdapter[list[UserContent]] = TypeAdapter(
    list[UserContent], config=ConfigDict(defer_build=True, val_json_bytes="base64")
)


def durable_function(
    agent: AbstractAgent[Any, Any],
    *,
    deps: DepsFactory | None = None,
    version: int | None = None,
    description: str | None = None,
    queue: str | None = None,
    max_steps: int | None = None,
    settings: Mapping[str, Any] | None = None,
) -> DurableFunction:
    """Return the durable function that executes runs of an agent: `serve(agent)` does the same.

    The prompt of the run is the prompt of the agent, and its output, as JSON, is the result. `deps`: creates the
    dependencies, in place of the capability's own factory. The other arguments are as for `durable`.

    Raises `TypeError` if the agent has no `AgentopsDurability`, or needs dependencies that no factory creates.
    """
    durability = durability_of(agent)
    factory = deps or durability.deps_factory
    if factory is None and agent.deps_type not in (NoneType, object):
        raise TypeError(
            f"the agent {durability.name!r} needs dependencies of the type {agent.deps_type.__name__}: give "
            "AgentopsDurability(deps=…) a function that creates them for a run"
        )

    async def execute(run: DurableRun, prompt: Any) -> Any:
        result = await agent.run(_prompt(prompt), deps=await _deps(factory, run))
        return to_jsonable_python(result.output)

    execute.__doc__ = f"Execute the agent {durability.name!r}."
    declare = durable(
        durability.name,
        version=version or durability.version,
        description=description,
        queue=queue,
        max_steps=max_steps,
        settings=settings,
    )
    return declare(execute)


async def _deps(factory: DepsFactory | None, run: DurableRun) -> Any:
    deps = None if factory is None else factory(run)
    return await deps if inspect.isawaitable(deps) else deps


def _prompt(prompt: Any) -> str | list[UserContent]:
    """Return the prompt of a run as the library's: a text, or texts and media."""
    return prompt if isinstance(prompt, str) else _CONTENT.validate_python(prompt)
