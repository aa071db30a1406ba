"""The model of the versions of agents."""

from __future__ import annotations

from collections.abc import Sequence

from django.db import models
from uuid_utils.compat import uuid7

from runs.models.agent import Agent


class AgentVersion(models.Model):
    """A version of an agent's definition, written in the transaction of the change and never changed again."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    agent = models.ForeignKey(Agent, models.CASCADE, related_name="versions", db_index=False)
    number = models.PositiveIntegerField()
    #: Agent.frozen.
    definition = models.JSONField()
    #: The fields that differ from the version before.
    changed = models.JSONField(default=list)
    #: Name of the actor, as in the audit log; empty if it is not known.
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
        """Return the current version of an agent, not stored yet."""
        return cls(
            agent=agent, number=agent.version, definition=agent.frozen(), changed=list(changed),
            created_by=by[:200], created_at=agent.updated_at,
        )  # fmt: skip
