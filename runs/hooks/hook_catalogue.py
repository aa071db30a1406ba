"""The hooks that definitions can name: built-in guards, and hooks of installed packages and of the site's modules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard

from agentops.base.catalogue import Catalogue, Extension, ExtensionFailed, members_of, ready
from runs.hooks.base import Hook, InvalidHook
from runs.hooks.guards import BUILTIN


class HookCatalogue(Catalogue[type[Hook]]):
    """The classes of hooks by name. `make` creates a hook for each use in a definition."""

    kind = "hook"
    group = "agentops.hooks"
    setting = "AGENTOPS_HOOK_MODULES"

    def candidates(self, extension: Extension, value: object) -> Iterable[type[Hook]]:
        hooks = [each for each in members_of(value) if _is_hook(each)]
        if not hooks:
            raise ExtensionFailed(extension.source, "contains no subclass of Hook with a name")
        # A module may import a known hook to extend it; this does not add the hook again.
        return [hook for hook in hooks if not self._is_known(hook)]

    def make(self, extension: Extension, candidate: type[Hook]) -> tuple[str, type[Hook]]:
        return candidate.name, candidate

    def _is_known(self, hook: type[Hook]) -> bool:
        entry = self._added.get(hook.name) or self._built_in.get(hook.name)
        return entry is not None and entry.part is hook


HOOKS = HookCatalogue({hook.name: ready(hook) for hook in BUILTIN})


def make(name: str, options: Mapping[str, Any]) -> Hook:
    """Create the hook of this name with these options. Raises `InvalidHook`."""
    hook = HOOKS.get(name)
    if hook is None:
        raise InvalidHook(f"unknown hook {name[:64]!r}; use one of: {', '.join(HOOKS.names())}")
    try:
        return hook(options)
    except Exception as error:  # a hook of another package may raise any error
        raise InvalidHook(f"{name}: {error}") from error


def _is_hook(member: object) -> TypeGuard[type[Hook]]:
    return isinstance(member, type) and issubclass(member, Hook) and bool(member.name)
