"""The models of agents and of their versions."""

from __future__ import annotations

from collections.abc import Sequence

from django.db import models
from uuid_utils.compat import uuid7

from agentops.accounts.models import Project
from agentops.accounts.names import SLUG
from agentops.base.database_clock import StampField
from runs.agents.placement import DEFAULT_PRIORITY, DEFAULT_QUEUE, FIELDS
from runs.providers import remote


class Agent(models.Model):
    """The definition of an agent. A run copies it at its creation, so changes only affect later runs.

    Changes of the queue, the priority and the limit of running runs also affect waiting runs.
    """

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
    #: The queue of its runs: only workers that serve this queue execute them.
    queue = models.CharField(max_length=63, validators=[SLUG], default=DEFAULT_QUEUE, db_default=DEFAULT_QUEUE)
    #: The priority of its runs within their queue, from 0 (first) to 9.
    priority = models.PositiveSmallIntegerField(default=DEFAULT_PRIORITY, db_default=DEFAULT_PRIORITY)
    #: Maximum number of its runs that workers execute concurrently; null: no limit.
    max_running = models.PositiveIntegerField(null=True, blank=True)
    version = models.PositiveIntegerField(default=1)
    created_at = StampField(auto_now_add=True)
    updated_at = StampField(auto_now=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["project", "slug"], name="agent_slug_once")]

    def __str__(self) -> str:
        return self.slug

    @property
    def placement(self) -> dict[str, object]:
        """The queue, the priority and the limit of running runs. They are not part of `frozen`."""
        return {name: getattr(self, name) for name in FIELDS}

    @property
    def source_of_runs(self) -> str:
        """The source that people see of the agent's new runs."""
        return "remote" if self.provider == remote.NAME else "native"

    def frozen(self) -> dict[str, object]:
        """Return the definition in the form that a run stores in `agent_config`."""
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


class AgentVersion(models.Model):
    """A version of an agent's definition, written in the transaction of the change and never changed again."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    agent = models.ForeignKey(Agent, models.CASCADE, related_name="versions", db_index=False)
    number = models.PositiveIntegerField()
    #: The definition, as `Agent.frozen` returns it.
    definition = models.JSONField()
    #: The fields that differ from the previous version.
    changed = models.JSONField(default=list)
    #: The actor, in the form of the audit log; empty if unknown.
    created_by = models.CharField(max_length=200, blank=True)
    created_at = models.DateTimeField()

    class Meta:
        db_table = "agent_versions"
        # Also the index of an agent's versions in order.
        constraints = [models.UniqueConstraint(fields=["agent", "number"], name="agent_version_once")]

    def __str__(self) -> str:
        return f"version {self.number} of {self.agent_id}"

    @classmethod
    def of(cls, agent: Agent, *, by: str, changed: Sequence[str] = ()) -> AgentVersion:
        """Return the current version of an agent, not saved yet."""
        return cls(
            agent=agent,
            number=agent.version,
            definition=agent.frozen(),
            changed=list(changed),
            created_by=by[:200],
            created_at=agent.updated_at,
        )
