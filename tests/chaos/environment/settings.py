"""The settings of a process under chaos: the product's own, with the deterministic model, its tools and the hooks."""

from __future__ import annotations

from agentops.settings import *  # noqa: F403

INSTALLED_APPS += ["tests.chaos.environment.deterministic_model.ChaosConfig"]  # noqa: F405
