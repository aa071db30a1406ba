from __future__ import annotations

from django.apps import AppConfig, apps
from django.db.models.signals import post_migrate, pre_migrate


class SiteConfig(AppConfig):
    """The site itself: no models; registers its checks when it is loaded."""

    name = "agentops"

    def ready(self) -> None:
        from agentops import checks
        from agentops.base.env import BadSetting
        from agentops.base.postgresql import migration_timeouts

        # Management commands skip the checks, and when a person runs the checks, the cache has already been read.
        for problem in (*checks.cache_reads_no_code(None), *checks.messages_and_sessions_are_no_code(None)):
            raise BadSetting(f"{problem.msg} {problem.hint}")

        # Only once per migration of the site: Django sends the signals for each app with models.
        projects = apps.get_app_config("projects")
        pre_migrate.connect(migration_timeouts.extend, sender=projects)
        post_migrate.connect(migration_timeouts.restore, sender=projects)
