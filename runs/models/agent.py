"""The model of agents."""

from __future__ import annotations

from django.db import models
from uuid_utils.compat import uuid7

from agentops.projects.models import Project
from agentops.projects.names import SLUG


class Agent(models.Model):
    """The definition of an agent. A run copies it at its creation, so changes affect later runs only."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    project = models.ForeignKey(Project, models.CASCADE, related_name="agents")
    #: The `agent_id` of the API and of definitions.
    slug = models.CharField(max_length=63, validators=[SLUG])
    provider = models.CharField(max_length=63)
    model = models.CharField(max_length=200)
    instructions = models.TextField(blank=True, default="")
    tools = models.JSONField(default=list, blank=True)
    max_steps = models.PositiveIntegerField(default=50)
    settings = models.JSONField(default=dict, blank=True)
    policies = models.JSONField(default=dict, blank=True)
    version = models.PositiveIntegerField(default=1)
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["project", "slug"], name="agent_slug_once")]

    def __str__(self) -> str:
        return self.slug

    def frozen(self) -> dict[str, object]:
        """Return the definition as a run stores it in `agent_config`."""
        return {
            "agent_id": self.slug,
            "version": self.version,
            "provider": self.provider,
            "model": self.model,
            "instructions": self.instructions,
            "tools": self.tools,
            "max_steps": self.max_steps,
            "settings": self.settings,
            "policies": self.policies,
        }
