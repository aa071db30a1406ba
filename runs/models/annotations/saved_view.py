"""The model of saved views of the run list."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q
from uuid_utils.compat import uuid7

from agentops.projects.models import Project
from timeline.database_clock import StampField


class SavedView(models.Model):
    """A query of the run list with a name: filters, order and columns.

    Written by runs.actions.annotations.saved_views only.
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
