from __future__ import annotations

from django.apps import AppConfig


class SiteConfig(AppConfig):
    """The site itself: no models; its checks are registered when it is loaded."""

    name = "agentops"

    def ready(self) -> None:
        from agentops import checks  # noqa: F401
