"""The `Provider` interface and the registry of providers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Protocol, cast

from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import StreamedResponse
from pydantic_ai.tools import ToolDefinition

from runs.extensions import ExtensionFailed
from runs.providers import own_providers
from runs.providers.own_providers import AddedProvider


class ProviderUnusable(ValueError):
    """The provider or model of an agent cannot be used. The message says what to change."""


class IncompleteAnswer(Exception):
    """The stream of a response ended without a terminal event, so the response is truncated."""


class AnswerTooLong(Exception):
    """The stream of a response has not ended within the limit of its size."""


class FixtureExhausted(Exception):
    """A run made a model call that its fixture does not contain. `call` is the index of the missing one, from 0."""

    code = "fixture_exhausted"

    def __init__(self, node: str, call: int, reason: str = "") -> None:
        super().__init__(f"No fixture for {node} call {call}" + (f": {reason}" if reason else ""))
        self.node = node
        self.call = call


@dataclass(frozen=True)
class ModelCall:
    """One request to a model: the history, the available tools and the settings."""

    model: str
    #: The agent or the node of a flow, for error messages.
    node: str
    #: The number of the call in the lineage, from 1: the number of its step. In a flow, the calls of the node's earlier
    #: runs count too.
    number: int
    history: list[ModelMessage]
    tools: Sequence[ToolDefinition] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    #: The JSON Schema of the result, if the agent has one.
    output_schema: dict[str, Any] | None = None


@dataclass(frozen=True)
class RecordedCall:
    """The details of a model call in a recording in the plain form. They are logged instead of the response's."""

    #: The type in the agent dialect, and the content, of texts, thoughts and errors. Empty: take them from the
    #: response.
    events: tuple[tuple[str, str], ...] = ()
    duration_ms: int = 0
    session_id: str = ""


@dataclass(frozen=True)
class FollowUp:
    """The fixture's content after a call: the next user turn (`user`), whether the recording ends (`end`), and whether
    it contains further responses (`more`). A run that plays it is not done before the last response.

    `is_turn`: the response and its tool results are a whole turn of an agent. A node of a flow is done after it, and
    further responses belong to its next visit.
    """

    user: str | list[Any] | None = None
    end: bool = False
    more: bool = False
    is_turn: bool = False
    recorded: RecordedCall | None = None


class Provider(Protocol):
    """A source of model responses."""

    def check(self, model: str, settings: Mapping[str, Any]) -> None:
        """Raise `ProviderUnusable` if a run with this model cannot start. Makes no network request."""
        ...

    def open(self, call: ModelCall) -> AbstractAsyncContextManager[StreamedResponse]:
        """Return the streamed request. It is entered and read on the worker's event loop."""
        ...

    def context_window(self, model: str) -> int | None:
        """Return the context window of the model in tokens, or None if unknown. Makes no network request."""
        ...

    def follow_up(self, model: str, node: str, number: int) -> FollowUp:
        """Return the recording's content after call `number`. Empty for real models."""
        ...


#: The modules that register providers. They are imported on first use.
MODULES = {
    "claude_cli": "runs.providers.claude_cli.claude_provider",
    "fixture": "runs.fixtures.playing.provider",
    "flow_node": "runs.providers.flow_node",
    "llm": "runs.providers.llm",
}
#: The providers whose program works in the agent's root.
WORKING_IN_ROOT = frozenset({"claude_cli"})
#: The provider of tool nodes and human nodes.
OF_FLOWS = frozenset({"flow_node"})
_factories: dict[str, Callable[[], Provider]] = {}


def register(name: str) -> Callable[[Callable[[], Provider]], Callable[[], Provider]]:
    """Register a provider under `name`. Raises ValueError if the name is taken."""

    def decorator(factory: Callable[[], Provider]) -> Callable[[], Provider]:
        if name in _factories:
            raise ValueError(f"a provider named {name!r} is already registered")
        _factories[name] = factory
        return factory

    return decorator


def get(name: str) -> Provider:
    """Return the provider registered as `name`, or of the entry point `name`. Raises `ProviderUnusable`."""
    if name not in _factories and name in MODULES:
        import_module(MODULES[name])
    return _factories[name]() if name in _factories else _added(name)


def names() -> list[str]:
    """Return the sorted names of all providers that agents can use."""
    return sorted({*_factories, *MODULES, *added()} - OF_FLOWS)


def added() -> Mapping[str, AddedProvider]:
    """Return the providers of packages and modules by name."""
    return _own().added


def faults() -> list[ExtensionFailed]:
    """Return the errors of providers that could not be loaded from packages or modules."""
    return list(_own().broken.values())


def _added(name: str) -> Provider:
    own = _own()
    if name in own.added:
        return cast("Provider", own.added[name].provider)
    if name in own.broken:
        raise ProviderUnusable(str(own.broken[name]))
    left_out = f"; extensions that cannot be used: {len(own.broken)}, see `agentops extensions`" if own.broken else ""
    raise ProviderUnusable(f"unknown provider {name!r}; use one of: {', '.join(names())}{left_out}")


def _own() -> own_providers.OwnProviders:
    return own_providers.find(frozenset(MODULES))
