"""The models of notes on runs, saved views of the run list, and share links."""

from __future__ import annotations

from datetime import datetime

from django.conf import settings
from django.db import models
from django.db.models import Q
from uuid_utils.compat import uuid7

from agentops.accounts.models import Project
from agentops.base.database_clock import StampField
from runs.models.run import AgentRun


class RunNote(models.Model):
    """A note that a person or a program wrote about a run. Only runs.actions.run_annotations writes it."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    project = models.ForeignKey(Project, models.CASCADE, related_name="run_notes", db_index=False)
    run = models.ForeignKey(AgentRun, models.PROTECT, related_name="notes", db_index=False)
    #: Plain text, redacted.
    text = models.TextField()
    #: The actor, in the form of the audit log, for display.
    author = models.CharField(max_length=200)
    #: The person or key that may edit the note: `Principal.holder`, which does not change when a user is renamed.
    holder = models.CharField(max_length=64)
    created_at = models.DateTimeField()
    edited_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "agent_run_notes"
        indexes = [
            # The notes of a run, oldest first.
            models.Index(fields=["run", "id"], name="notes_of_run"),
        ]

    def __str__(self) -> str:
        return f"{self.author} {self.created_at:%Y-%m-%d %H:%M}"


# --- Saved views ---


class SavedView(models.Model):
    """A named query of the run list: filters, order and columns.

    Only runs.actions.saved_views writes it.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    project = models.ForeignKey(Project, models.CASCADE, related_name="saved_views", db_index=False)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="saved_views")
    name = models.CharField(max_length=60)
    #: The query string of the list, without `?` and without a page position.
    query = models.CharField(max_length=4000, blank=True)
    #: Whether all members of the project see it.
    is_shared = models.BooleanField(default=False)
    #: Whether the owner's list starts with it.
    is_default = models.BooleanField(default=False)
    created_at = StampField(auto_now_add=True)

    class Meta:
        db_table = "agent_run_saved_views"
        constraints = [
            # Also lists the views of a project.
            models.UniqueConstraint(fields=["project", "owner", "name"], name="saved_view_once"),
            models.UniqueConstraint(
                fields=["project", "owner"], condition=Q(is_default=True), name="saved_view_one_default"
            ),
        ]

    def __str__(self) -> str:
        return self.name


# --- Share links ---


class ShareLink(models.Model):
    """A link to the report of a run for readers without an account.

    The row contains no secret: the URL is its signed ID. Only runs.actions.run_annotations writes it.
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
