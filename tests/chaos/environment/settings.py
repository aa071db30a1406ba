"""Settings of a process in a schedule: the product's settings with the deterministic model, its tools and hooks."""

from __future__ import annotations

from agentops.settings import *  # noqa: F403

INSTALLED_APPS += ["tests.chaos.environment.deterministic_model.ChaosConfig"]  # noqa: F405
