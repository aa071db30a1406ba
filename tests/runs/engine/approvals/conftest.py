"""Hooks of the tests, installed as a module of the site."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pytest_django import Settings

from runs.hooks import hook_catalogue
from runs.hooks.base import HookContext
from tests.support.engine.hook_samples import DECIDES

Told = Callable[..., None]


@pytest.fixture
def told(settings: Settings) -> Iterator[Told]:
    """Say what the hooks of `hook_samples` do: name → function of the context."""
    settings.AGENTOPS_HOOK_MODULES = ["tests.support.engine.hook_samples"]
    hook_catalogue.reload()

    def tell(**decides: Callable[[HookContext], Any]) -> None:
        DECIDES.update(decides)

    yield tell
    DECIDES.clear()
    settings.AGENTOPS_HOOK_MODULES = []
    hook_catalogue.reload()
