"""The Django app of accounts. Its label is `projects`, by which its tables are named."""

from __future__ import annotations

from django.apps import AppConfig


class ProjectsConfig(AppConfig):
    """Configuration of the app."""

    name = "agentops.accounts"
    label = "projects"

    def ready(self) -> None:
        """Connect the signal receivers, and the redaction rules to the redactor."""
        from agentops.accounts import revocation
        from agentops.accounts.login import sessions  # noqa: F401 - connects a receiver
        from agentops.accounts.redaction_cache import CACHE
        from agentops.base.redaction import redact

        revocation.watch_rows()
        redact.use_rules(CACHE.redactor_of)
