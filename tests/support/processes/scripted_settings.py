"""Settings of a worker under test: the product's settings, plus the scripted model and ledger tools as an app."""

from __future__ import annotations

from agentops.settings import *  # noqa: F403

INSTALLED_APPS += ["tests.support.processes.scripted_model.ScriptedConfig"]  # noqa: F405
