"""Durable functions: how they are declared, and which of them executes a run."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any, cast


class DurableFunction:
    """A function that executes the runs of an agent, in one version of its code."""

    def __init__(self, function: Callable[..., Any], name: str, version: int, offer: Mapping[str, Any]) -> None:
        """Declare a function. `offer`: further members of the agent; None keeps the value on the site."""
        functools.update_wrapper(self, function)
        self.function = function
        self.name = name
        self.version = version
        self._offer = {key: value for key, value in offer.items() if value is not None}

    def __call__(self, run: Any, prompt: Any) -> Any:
        """Call the function itself, for example in a test with an object in place of the run."""
        return self.function(run, prompt)

    def __repr__(self) -> str:
        return f"{self.name} version {self.version}"

    @property
    def is_async(self) -> bool:
        """Whether the function is a coroutine function. Others are executed in a thread."""
        return inspect.iscoroutinefunction(self.function)

    def offer(self) -> dict[str, Any]:
        """Return the agent as the site registers it."""
        return {"name": self.name, "version": self.version, **self._offer}


def durable(
    name: str,
    *,
    version: int = 1,
    description: str | None = None,
    queue: str | None = None,
    max_steps: int | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Callable[[Callable[..., Any]], DurableFunction]:
    """Declare that `async def f(run, prompt)` or `def f(run, prompt)` executes the runs of the agent `name`.

    Raise `version` when the steps of the function change: runs of the older version need a process that has its code.
    `queue`, `max_steps` and `settings` are used when the agent is created; afterwards they overwrite the values on the
    site only where given.
    """
    if version < 1:
        raise ValueError(f"version {version} of {name!r} must be at least 1")
    offer = {
        "description": description,
        "queue": queue,
        "max_steps": max_steps,
        "settings": None if settings is None else dict(settings),
    }
    return lambda function: DurableFunction(function, name, version, offer)


#: Top-level package of a framework's classes → the adapter whose `durable_function` accepts their objects.
ADAPTERS = {
    "pydantic_ai": "agentops.durable.pydantic_ai",
    "langgraph": "agentops.durable.langgraph",
    "agents": "agentops.durable.openai_agents",
    "claude_agent_sdk": "agentops.durable.claude",
}


def as_durable_function(value: object) -> DurableFunction:
    """Return the durable function that executes an agent or a graph of a framework; a durable function itself.

    Raises `TypeError` for other objects.
    """
    if isinstance(value, DurableFunction):
        return value
    packages = (kind.__module__.partition(".")[0] for kind in type(value).__mro__)
    adapter = next((ADAPTERS[package] for package in packages if package in ADAPTERS), None)
    if adapter is None:
        raise TypeError(f"{value!r} is not a durable function: decorate it with @durable(name)")
    return cast("DurableFunction", import_module(adapter).durable_function(value))


class Functions:
    """The functions of a process, by agent and version."""

    def __init__(self, functions: Iterable[object]) -> None:
        """Prepare the functions. Raises `TypeError` for an object that is not durable, and `ValueError`."""
        self._functions: dict[tuple[str, int], DurableFunction] = {}
        for function in map(as_durable_function, functions):
            known = self._functions.setdefault((function.name, function.version), function)
            if known is not function:
                raise ValueError(f"two functions are {function!r}: give one of them another version")
        if not self._functions:
            raise ValueError("serve() needs at least one durable function")

    def find(self, agent: str, version: int) -> DurableFunction | None:
        """Return the function that executes a run."""
        return self._functions.get((agent, version))

    @property
    def versions(self) -> dict[str, list[int]]:
        """The versions of each agent that this process can execute."""
        names = sorted({name for name, _ in self._functions})
        return {name: sorted(version for other, version in self._functions if other == name) for name in names}

    @property
    def offers(self) -> list[dict[str, Any]]:
        """The newest version of each agent, for its registration."""
        return [self._functions[name, versions[-1]].offer() for name, versions in self.versions.items()]
