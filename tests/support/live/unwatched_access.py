"""An app that disables the periodic check of access."""

from __future__ import annotations

from pathlib import Path

from django.apps import AppConfig


class UnwatchedConfig(AppConfig):
    name = "tests.support.live"
    label = "unwatched"
    path = str(Path(__file__).parent)

    def ready(self) -> None:
        from timeline.live import access_watch

        access_watch.CHECK_INTERVAL_S = 3600.0
