from __future__ import annotations

from django.apps import AppConfig


class TimelineConfig(AppConfig):
    name = "timeline"
    label = "timeline"
