"""The settings of a web process that never looks by itself whether its streams may go on: only messages end them."""

from __future__ import annotations

from agentops.settings import *  # noqa: F403

INSTALLED_APPS += ["tests.live.unwatched.UnwatchedConfig"]  # noqa: F405
