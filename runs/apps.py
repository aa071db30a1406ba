from __future__ import annotations

from typing import TYPE_CHECKING

from django.apps import AppConfig, apps
from django.db.models.signals import post_save

if TYPE_CHECKING:
    from runs.models import AgentRun
    from runs.statuses import RunStatus


class RunsConfig(AppConfig):
    name = "runs"
    label = "runs"

    def ready(self) -> None:
        """Register the site's secrets with the redactor, and reactions to notifications, runs and projects."""
        from agentops.base.redaction import redact
        from runs.lifecycle import moves, wake
        from timeline import notify

        redact.use_site_secrets(_site_secrets)
        notify.subscribe(wake.on_change)
        moves.subscribe(_follow_move)
        # By signals, because the app of projects must not import this app.
        projects = apps.get_app_config("projects")
        post_save.connect(wake.on_notification, sender=projects.get_model("Notification"), dispatch_uid="runs.wake")
        post_save.connect(wake.on_project, sender=projects.get_model("Project"), dispatch_uid="runs.wake")


def _follow_move(run: AgentRun, to: RunStatus, reason: str) -> None:
    # Imported at the first move: the import takes seconds, and most commands move no run.
    from runs.lifecycle import children

    children.follow_move(run, to, reason)


def _site_secrets() -> frozenset[str]:
    from django.conf import settings

    from runs import environment

    # The key may come from a file instead of the environment.
    keys = [str(key) for key in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)]
    return environment.secret_values() | frozenset(filter(environment.is_unmistakable, keys))
