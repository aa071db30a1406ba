"""The Django app `timeline`."""

from __future__ import annotations

from django.apps import AppConfig


class TimelineConfig(AppConfig):
    """The Django app of event logs."""

    name = "timeline"
    label = "timeline"

    def ready(self) -> None:
        from agentops.projects.revocation import rights_changed
        from timeline import notify

        rights_changed.connect(notify.notify_access, dispatch_uid="timeline.notify")
