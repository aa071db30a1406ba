"""The interface of a provider, and the list of providers. An agent names its provider."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Protocol

from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import StreamedResponse
from pydantic_ai.tools import ToolDefinition


class ProviderUnusable(ValueError):
    """An agent's provider or model cannot be used; the text says what to do about it."""


class IncompleteAnswer(Exception):
    """The stream of an answer ended without its terminal event: what came is a part of an answer, and no result."""


class FixtureExhausted(Exception):
    """The run asked for a call that the fixture does not hold."""

    code = "fixture_exhausted"

    def __init__(self, node: str, call: int) -> None:
        super().__init__(f"No fixture for {node} call {call}")
        self.node = node
        self.call = call


@dataclass(frozen=True)
class ModelCall:
    """One request: which model, the whole history, the tools it may ask for."""

    model: str
    #: The name in error texts: the agent, or the node of a flow.
    node: str
    #: Of this call in the lineage, from 1: the number of the step it makes.
    number: int
    history: list[ModelMessage]
    tools: Sequence[ToolDefinition] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class FollowUp:
    """What a recording says of the time after a call: the user turn that came, and whether it stops there.

    `more`: it has another answer, whatever this one was; a run that plays it is not done before that.
    """

    user: str | list[Any] | None = None
    end: bool = False
    more: bool = False


class Provider(Protocol):
    def check(self, model: str, settings: Mapping[str, Any]) -> None:
        """Raise `ProviderUnusable` where a run with this model could not start. Asks nobody."""
        ...

    def open(self, call: ModelCall) -> AbstractAsyncContextManager[StreamedResponse]:
        """The streamed request; entered and read on the event loop of the worker."""
        ...

    def context_window(self, model: str) -> int | None:
        """How many tokens a request to the model may have; None where nobody here knows. Asks nobody."""
        ...

    def follow_up(self, model: str, node: str, number: int) -> FollowUp:
        """What follows call `number`; nothing but for recordings."""
        ...


#: The modules that register providers, imported when an agent first names one.
MODULES = {"fixture": "runs.fixtures.provider", "llm": "runs.providers.llm"}
_makers: dict[str, Callable[[], Provider]] = {}


def register(name: str) -> Callable[[Callable[[], Provider]], Callable[[], Provider]]:
    """Put a provider on the list under `name`; two of one name are a programming error."""

    def place(make: Callable[[], Provider]) -> Callable[[], Provider]:
        if name in _makers:
            raise ValueError(f"there is already a provider named {name!r}")
        _makers[name] = make
        return make

    return place


def get(name: str) -> Provider:
    """Return the provider registered as `name`; raise `ProviderUnusable` where there is none."""
    if name not in _makers and name in MODULES:
        import_module(MODULES[name])
    if name not in _makers:
        known = ", ".join(sorted({*_makers, *MODULES}))
        raise ProviderUnusable(f"unknown provider {name!r}; there are: {known}")
    return _makers[name]()
