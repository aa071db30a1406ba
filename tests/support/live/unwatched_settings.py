"""Settings of a web process without the periodic check of access to its streams: only messages end them."""

from __future__ import annotations

from agentops.settings import *  # noqa: F403

INSTALLED_APPS += ["tests.support.live.unwatched_access.UnwatchedConfig"]  # noqa: F405
