from __future__ import annotations

from django.apps import AppConfig


class RunsConfig(AppConfig):
    name = "runs"
    label = "runs"

    def ready(self) -> None:
        """Let the redactor know the site's own secrets."""
        from timeline.redaction import redact

        redact.use_site_secrets(_site_secrets)


def _site_secrets() -> frozenset[str]:
    from django.conf import settings

    from runs import environment

    # The key may stand in a file instead of the environment.
    keys = [str(key) for key in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)]
    return environment.secret_values() | frozenset(filter(environment.is_unmistakable, keys))
