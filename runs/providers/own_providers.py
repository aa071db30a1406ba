"""Providers added by other packages, and by modules of this deployment."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from types import ModuleType

from django.conf import settings

from runs import extensions
from runs.extensions import Extension, ExtensionFailed

SETTING = "AGENTOPS_PROVIDER_MODULES"
#: The required members of a provider; see runs.providers.base.Provider.
MEMBERS = ("check", "open", "context_window", "follow_up")


@dataclass(frozen=True)
class AddedProvider:
    """A provider that a package or a module adds, and its source."""

    provider: object
    source: str


@dataclass
class OwnProviders:
    """The added providers by name, and the extensions that could not be loaded."""

    added: dict[str, AddedProvider] = field(default_factory=dict)
    #: By the name of the entry point or of the module.
    broken: dict[str, ExtensionFailed] = field(default_factory=dict)


@cache
def find(reserved: frozenset[str]) -> OwnProviders:
    """Return the providers of entry points, and of the modules in the setting. Names are unique."""
    providers = OwnProviders()
    for extension in extensions.installed(extensions.PROVIDERS, settings.AGENTOPS_PROVIDER_MODULES, SETTING):
        try:
            for name, factory in _factories_of(extension):
                _add(providers, extension, name, factory, reserved)
        except ExtensionFailed as fault:
            extensions.note(fault, [])
            providers.broken.setdefault(extension.name, fault)
    return providers


def reload() -> None:
    """Search for providers again at the next use."""
    find.cache_clear()


def _add(providers: OwnProviders, extension: Extension, name: str, factory: object, reserved: frozenset[str]) -> None:
    if name in reserved or name in providers.added:
        raise ExtensionFailed(extension.source, f"the provider {name!r} exists already")
    provider = extensions.build(extension, factory, MEMBERS)
    providers.added[name] = AddedProvider(provider, extension.source)


def _factories_of(extension: Extension) -> Iterator[tuple[str, object]]:
    """Yield the factory of each provider: the entry point's object, or the public classes of a module by `name`."""
    value = extension.load()
    if not isinstance(value, ModuleType):
        yield extension.name, value
        return
    classes = [(name, member) for member in extensions.public(value) if (name := _name_of(member))]
    if not classes:
        raise ExtensionFailed(extension.source, "contains no class of a provider with a name")
    yield from classes


def _name_of(member: object) -> str:
    """Return the name of a provider class; empty for other objects."""
    name = getattr(member, "name", "")
    is_provider = inspect.isclass(member) and all(hasattr(member, each) for each in MEMBERS)
    return name if is_provider and isinstance(name, str) else ""
