"""The models of OTLP data: the entries of a trace or a session, stored until their place in a run is known."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from agentops.accounts.models import Project
from runs.models.run import AgentRun


class OtlpGroup(models.Model):
    """The spans of a trace, or the log events of a session. They arrive in any order and become a run."""

    project = models.ForeignKey(Project, models.PROTECT, related_name="otlp_groups")
    #: The trace ID, or the program and its session: `claude-code:<session>`.
    key = models.CharField(max_length=200)
    #: Null until the first entry of an agent, a model or a tool is assigned to a run.
    run = models.OneToOneField(AgentRun, models.PROTECT, null=True, related_name="otlp_group")
    #: The actor that sent the last entries, as named in the audit log.
    sender = models.CharField(max_length=200, blank=True, default="")
    #: The time when the last new entry arrived.
    received_at = models.DateTimeField()
    #: The time when a worker processes it: to assign entries to a run, or to end the run. Null: after the next entry.
    due_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "agent_run_otlp_groups"
        constraints = [models.UniqueConstraint(fields=["project", "key"], name="otlp_group_once")]
        indexes = [
            # runs.external.otlp.settling: due groups, oldest first.
            models.Index("due_at", name="otlp_group_due", condition=Q(due_at__isnull=False)),
        ]

    def __str__(self) -> str:
        return self.key


class OtlpItem(models.Model):
    """A span or a log event. Its facts are deleted once it is assigned to a run; the rest detects repeats and places
    children.
    """

    group = models.ForeignKey(OtlpGroup, models.CASCADE, related_name="items", db_index=False)
    #: The run of the group, so that both are deleted together.
    run = models.ForeignKey(AgentRun, models.PROTECT, null=True, related_name="otlp_items")
    #: The span ID, or a digest of the log record.
    item_id = models.CharField(max_length=32)
    #: The span ID of the parent; empty for roots and log events.
    parent_id = models.CharField(max_length=32, blank=True, default="")
    has_remote_parent = models.BooleanField(default=False)
    kind = models.CharField(max_length=16)
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField()
    received_at = models.DateTimeField()
    #: The digest of the entry as received.
    sha256 = models.BinaryField(max_length=32)
    #: The ID of a model's answer, which several spans may report.
    response_id = models.CharField(max_length=200, blank=True, default="")
    #: The facts in the entry. Null once it is assigned to a run.
    facts = models.JSONField(null=True)
    #: The run to which it is assigned; for an agent, its own run. Null while it waits.
    filed_under = models.UUIDField(null=True)

    class Meta:
        db_table = "agent_run_otlp_items"
        constraints = [models.UniqueConstraint(fields=["group", "item_id"], name="otlp_item_once")]

    def __str__(self) -> str:
        return self.item_id
