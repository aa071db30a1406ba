"""The hooks that definitions can name: built-in guards, and hooks of installed packages and of the site's modules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

from django.conf import settings

from runs import extensions
from runs.extensions import ExtensionFailed
from runs.hooks.base import Hook, InvalidHook
from runs.hooks.guards import BUILTIN

SETTING = "AGENTOPS_HOOK_MODULES"


@dataclass(frozen=True)
class RegisteredHook:
    """A hook and its source."""

    hook: type[Hook]
    source: str = extensions.BUILT_IN


@cache
def _catalogue() -> tuple[dict[str, RegisteredHook], list[ExtensionFailed]]:
    """Return the hooks by name, and the unusable extensions. Names are unique; built-in hooks take precedence."""
    faults: list[ExtensionFailed] = []
    hooks = {hook.name: RegisteredHook(hook) for hook in BUILTIN}
    candidates = extensions.installed(extensions.HOOKS, settings.AGENTOPS_HOOK_MODULES, SETTING)
    for extension, value in extensions.load_each(candidates, faults):
        added = list(_hooks_of(value))
        if not added:
            extensions.note(ExtensionFailed(extension.source, "contains no subclass of Hook with a name"), faults)
        for hook in added:
            if hooks.setdefault(hook.name, RegisteredHook(hook, extension.source)).hook is not hook:
                extensions.note(ExtensionFailed(extension.source, f"the hook {hook.name!r} exists already"), faults)
    return hooks, faults


def names() -> list[str]:
    """Return the sorted names of all hooks."""
    return sorted(_catalogue()[0])


def registered() -> list[RegisteredHook]:
    """Return all hooks, sorted by name."""
    return [registered for _, registered in sorted(_catalogue()[0].items())]


def faults() -> list[ExtensionFailed]:
    """Return the errors of hooks that could not be loaded from other packages or modules."""
    return _catalogue()[1]


def reload() -> None:
    """Reload the hooks at the next use."""
    _catalogue.cache_clear()


def make(name: str, options: Mapping[str, Any]) -> Hook:
    """Return the hook of this name with these options. Raises `InvalidHook`."""
    registered = _catalogue()[0].get(name)
    if registered is None:
        raise InvalidHook(f"unknown hook {name[:64]!r}; use one of: {', '.join(names())}")
    try:
        return registered.hook(options)
    except Exception as error:  # a hook of another package may raise any error
        raise InvalidHook(f"{name}: {error}") from error


def _hooks_of(value: object) -> Iterator[type[Hook]]:
    members = extensions.public(value) if isinstance(value, ModuleType) else [value]
    for member in members:
        if isinstance(member, type) and issubclass(member, Hook) and member.name:
            yield member
