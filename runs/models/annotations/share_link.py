"""The model of share links."""

from __future__ import annotations

from datetime import datetime

from django.db import models
from uuid_utils.compat import uuid7

from agentops.projects.models import Project
from runs.models.run import AgentRun


class ShareLink(models.Model):
    """A link to the report of a run for somebody without an account.

    The row has no secret: the URL is its ID, signed. Written by runs.actions.annotations.share_links only.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    project = models.ForeignKey(Project, models.CASCADE, related_name="share_links", db_index=False)
    run = models.ForeignKey(AgentRun, models.PROTECT, related_name="share_links", db_index=False)
    #: The actor, in the form of the audit log.
    created_by = models.CharField(max_length=200)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    revoked_at = models.DateTimeField(null=True)
    #: Number of requests for the report, and the time of the last one.
    view_count = models.PositiveIntegerField(default=0)
    viewed_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "agent_run_share_links"
        indexes = [
            # The links of a run.
            models.Index(fields=["run", "id"], name="share_links_of_run"),
        ]

    def __str__(self) -> str:
        return f"{self.run_id} until {self.expires_at}"

    def is_active(self, now: datetime) -> bool:
        """Return whether the link still opens the report."""
        return self.revoked_at is None and now < self.expires_at
