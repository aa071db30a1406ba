"""The hooks of an agent: hooks of the site, and hooks listed in its definition under `policies.hooks`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.conf import settings

from agentops.base.limits.patterns import InvalidPattern, Pattern
from runs.agents.policy_errors import InvalidPolicy
from runs.hooks import hook_catalogue
from runs.hooks.base import InvalidHook
from runs.hooks.deciding import ActiveHook

MAX_HOOKS = 20
KEYS = frozenset({"hook", "tools", "options"})


def parse(value: object) -> tuple[ActiveHook, ...]:
    """Parse the hooks of a definition: names, or tables with `hook`, `tools` and `options`. Raises `InvalidPolicy`."""
    if not isinstance(value, list) or len(value) > MAX_HOOKS:
        raise InvalidPolicy(f"hooks must be a list of at most {MAX_HOOKS} hooks", ["hooks"])
    return tuple(_hook(use, index) for index, use in enumerate(value))


def of_site() -> tuple[ActiveHook, ...]:
    """Return the hooks that AGENTOPS_HOOKS names. Raises `InvalidHook`: runs must not continue without these hooks."""
    return tuple(ActiveHook(hook_catalogue.make(name, {})) for name in settings.AGENTOPS_HOOKS)


def _hook(value: object, index: int) -> ActiveHook:
    path: list[str | int] = ["hooks", index]
    use: Mapping[str, Any] = {"hook": value} if isinstance(value, str) else value if isinstance(value, Mapping) else {}
    if unknown := sorted(str(name) for name in use if name not in KEYS):
        problem = f"unknown option {unknown[0][:64]!r}; use one of: {', '.join(sorted(KEYS))}"
        raise InvalidPolicy(problem, [*path, unknown[0]])
    name, options, tools = use.get("hook"), use.get("options", {}), use.get("tools")
    if not isinstance(name, str):
        raise InvalidPolicy("a hook must be a name, or a table with the key hook", path)
    if not isinstance(options, Mapping):
        raise InvalidPolicy("options must be a table", [*path, "options"])
    if tools is not None and not isinstance(tools, str):
        raise InvalidPolicy("tools must be a pattern", [*path, "tools"])
    try:
        return ActiveHook(hook_catalogue.make(name, options), Pattern(tools) if tools is not None else None)
    except InvalidPattern as error:
        raise InvalidPolicy(f"tools: {error}", [*path, "tools"]) from None
    except InvalidHook as error:
        raise InvalidPolicy(str(error), [*path, "hook"]) from error
