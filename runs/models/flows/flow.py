"""The models of flows and of their versions."""

from __future__ import annotations

from django.db import models
from uuid_utils.compat import uuid7

from agentops.projects.models import Project
from agentops.projects.names import SLUG
from timeline.database_clock import StampField


class Flow(models.Model):
    """The definition of a flow. A run copies it at its creation, so changes affect later runs only."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    project = models.ForeignKey(Project, models.CASCADE, related_name="flows", db_index=False)
    #: The `flow_id` of the API and of definitions.
    slug = models.CharField(max_length=63, validators=[SLUG])
    title = models.CharField(max_length=200, blank=True, default="")
    #: As checked by runs.flows.definition, without defaults.
    definition = models.JSONField(default=dict)
    version = models.PositiveIntegerField(default=1)
    created_at = StampField(auto_now_add=True)
    updated_at = StampField(auto_now=True)

    class Meta:
        db_table = "flows"
        # Also the index of a project's flows by name.
        constraints = [models.UniqueConstraint(fields=["project", "slug"], name="flow_slug_once")]

    def __str__(self) -> str:
        return self.slug


class FlowVersion(models.Model):
    """A version of a flow's definition, written in the transaction of the change and never changed again."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    flow = models.ForeignKey(Flow, models.CASCADE, related_name="versions", db_index=False)
    number = models.PositiveIntegerField()
    definition = models.JSONField()
    #: The parts that differ from the version before, such as `nodes`.
    changed = models.JSONField(default=list)
    #: Name of the actor, as in the audit log.
    created_by = models.CharField(max_length=200, blank=True)
    created_at = models.DateTimeField()

    class Meta:
        db_table = "flow_versions"
        # Also the index of a flow's versions in order.
        constraints = [models.UniqueConstraint(fields=["flow", "number"], name="flow_version_once")]

    def __str__(self) -> str:
        return f"version {self.number} of {self.flow_id}"
