"""The interface of a provider, and the catalogue of providers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from inspect import getdoc, isclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, cast

from agentops.base.catalogue import (
    BUILT_IN,
    Catalogue,
    CatalogueEntry,
    Extension,
    ExtensionFailed,
    build,
    imported,
    members_of,
)

# Not loaded: the tables import this module, and commands that call no model must start quickly.
if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage
    from pydantic_ai.models import StreamedResponse
    from pydantic_ai.tools import ToolDefinition


class ProviderUnusable(ValueError):
    """The provider or model of an agent cannot be used. The message says what to change."""


class IncompleteAnswer(Exception):
    """The stream of a response ended early, so the response is truncated."""


class AnswerTooLong(Exception):
    """The stream of a response is larger than the limit."""


class FixtureExhausted(Exception):
    """A run needs a model call that its fixture does not contain. `call` is the index of the call, from 0."""

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
    #: The number of the call in the lineage, from 1. In a flow, the calls of the node's earlier runs count too.
    number: int
    history: list[ModelMessage]
    tools: Sequence[ToolDefinition] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    #: The JSON Schema of the result, if the agent has one.
    output_schema: dict[str, Any] | None = None


@dataclass(frozen=True)
class RecordedCall:
    """Data of a plain recording about a model call, besides its response. The run's log gets them."""

    #: The type in the agent dialect, and the content, of texts, thoughts and errors. Empty: the log gets the texts and
    #: thoughts of the response.
    events: tuple[tuple[str, str], ...] = ()
    duration_ms: int = 0
    session_id: str = ""


@dataclass(frozen=True)
class FollowUp:
    """The content of a fixture after a call. Empty for real models."""

    #: The next user turn.
    user: str | list[Any] | None = None
    #: Whether the recording ends here.
    end: bool = False
    #: Whether the fixture contains further responses. A run that plays it is not done before the last one.
    more: bool = False
    #: Whether the response and its tool results are a whole turn of an agent. A node of a flow is done after the turn;
    #: further responses belong to its next visit.
    is_turn: bool = False
    #: Set by plain recordings.
    recorded: RecordedCall | None = None


class Provider(Protocol):
    """A source of model responses."""

    def check(self, model: str, settings: Mapping[str, Any]) -> None:
        """Check whether a run with this model can start, without a network request. Raises `ProviderUnusable`."""
        ...

    def open(self, call: ModelCall) -> AbstractAsyncContextManager[StreamedResponse]:
        """Return the request as a stream. The caller enters and reads it on the worker's event loop."""
        ...

    def context_window(self, model: str) -> int | None:
        """Return the context window of the model in tokens, without a network request; None if unknown."""
        ...

    def follow_up(self, model: str, node: str, number: int) -> FollowUp:
        """Return the recording's content after call `number`. Empty for real models."""
        ...


#: The built-in providers. Their modules are imported on first use.
BUILTIN = {
    "claude_cli": "runs.providers.claude_cli.claude_provider.ClaudeCliProvider",
    "fixture": "runs.fixtures.playback.FixtureProvider",
    "flow_node": "runs.providers.flow_node.FlowNodeProvider",
    "llm": "runs.providers.llm.LLMProvider",
    "package": "runs.providers.remote.PackageProvider",
    "remote": "runs.providers.remote.RemoteProvider",
}
#: The members that a provider must have.
MEMBERS = ("check", "open", "context_window", "follow_up")
#: The providers whose program works in the agent's root.
WORKING_IN_ROOT = frozenset({"claude_cli"})
#: The provider of tool nodes and human nodes.
OF_FLOWS = frozenset({"flow_node"})
#: The name of a provider, and the class or function that makes it.
Candidate = tuple[str, object]


class ProviderCatalogue(Catalogue[Provider]):
    """One object of each provider. The entry point, or the attribute `name` of a class in a module, gives its name."""

    kind = "provider"
    group = "agentops.providers"
    setting = "AGENTOPS_PROVIDER_MODULES"

    def candidates(self, extension: Extension, value: object) -> Iterable[Candidate]:
        if not isinstance(value, ModuleType):
            return [(extension.name, value)]
        classes = [(name, member) for member in members_of(value) if (name := _name_of(member))]
        if not classes:
            raise ExtensionFailed(extension.source, "contains no class of a provider with a name")
        return classes

    def make(self, extension: Extension, candidate: Candidate) -> tuple[str, Provider]:
        name, factory = candidate
        return name, cast("Provider", build(extension, factory, MEMBERS))

    def describe(self, entry: CatalogueEntry[Provider]) -> str:
        """Return the docstring of an added provider. Built-in ones are not imported: their libraries are large."""
        return "" if entry.source == BUILT_IN else getdoc(type(entry.part)) or ""


PROVIDERS = ProviderCatalogue({name: imported(path) for name, path in BUILTIN.items()})


def get(name: str) -> Provider:
    """Return the provider of this name. Raises `ProviderUnusable`."""
    if (provider := PROVIDERS.get(name)) is not None:
        return provider
    if (fault := PROVIDERS.fault_of(name)) is not None:
        raise ProviderUnusable(str(fault))
    faults = len(PROVIDERS.faults())
    left_out = f"; extensions that cannot be used: {faults}, see `agentops extensions`" if faults else ""
    raise ProviderUnusable(f"unknown provider {name!r}; use one of: {', '.join(names())}{left_out}")


def names() -> list[str]:
    """Return the sorted names of all providers that agents can use."""
    return sorted({*PROVIDERS.names()} - OF_FLOWS)


def _name_of(member: object) -> str:
    """Return the name of a provider class; empty for other objects."""
    name = getattr(member, "name", "")
    is_provider = isclass(member) and all(hasattr(member, each) for each in MEMBERS)
    return name if is_provider and isinstance(name, str) else ""
