"""The built-in guards: paths, commands, secrets and cost."""

from __future__ import annotations

from runs.hooks.base import Hook
from runs.hooks.guards.command_guard import CommandGuard
from runs.hooks.guards.cost_guard import CostGuard
from runs.hooks.guards.path_guard import PathGuard
from runs.hooks.guards.secret_guard import SecretGuard

BUILTIN: tuple[type[Hook], ...] = (PathGuard, CommandGuard, SecretGuard, CostGuard)
