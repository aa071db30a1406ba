"""The Django app `timeline`."""

from __future__ import annotations

from django.apps import AppConfig
from django.db.backends.signals import connection_created


class TimelineConfig(AppConfig):
    """The Django app of event logs."""

    name = "timeline"
    label = "timeline"

    def ready(self) -> None:
        from agentops.accounts.revocation import rights_changed
        from agentops.base import database_clock
        from timeline import notify

        connection_created.connect(database_clock.measure, dispatch_uid="agentops.base.database_clock")
        rights_changed.connect(notify.notify_access, dispatch_uid="timeline.notify")
