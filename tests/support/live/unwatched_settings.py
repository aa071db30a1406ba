"""The settings of a web process that never looks by itself whether its streams may go on: only messages end them."""

from __future__ import annotations

from agentops.settings import *  # noqa: F403

INSTALLED_APPS += ["tests.support.live.unwatched_access.UnwatchedConfig"]  # noqa: F405
