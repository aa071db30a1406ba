from __future__ import annotations

from django.apps import AppConfig, apps
from django.db.models.signals import post_save


class RunsConfig(AppConfig):
    name = "runs"
    label = "runs"

    def ready(self) -> None:
        """Register the site's secrets with the redactor, and connect signals that wake workers after changes."""
        from agentops.base.redaction import redact
        from runs.lifecycle import wake
        from timeline import notify

        redact.use_site_secrets(_site_secrets)
        notify.subscribe(wake.on_change)
        # By signals, because projects and notifications do not depend on workers.
        projects = apps.get_app_config("projects")
        post_save.connect(wake.on_notification, sender=projects.get_model("Notification"), dispatch_uid="runs.wake")
        post_save.connect(wake.on_project, sender=projects.get_model("Project"), dispatch_uid="runs.wake")


def _site_secrets() -> frozenset[str]:
    from django.conf import settings

    from runs import environment

    # The key may come from a file instead of the environment.
    keys = [str(key) for key in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)]
    return environment.secret_values() | frozenset(filter(environment.is_unmistakable, keys))
