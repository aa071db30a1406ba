"""Settings of a worker with one protection of flow runs switched off: see flow_sabotage.py."""

from __future__ import annotations

from tests.support.processes.scripted_settings import *  # noqa: F403

INSTALLED_APPS += ["tests.support.flows.flow_sabotage.FlowSabotageConfig"]  # noqa: F405
