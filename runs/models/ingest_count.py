"""The model of event counts by sender and minute."""

from __future__ import annotations

from django.db import models

from agentops.accounts.models import Project


class IngestCount(models.Model):
    """The events of one sender with one outcome in one minute. Only runs.external.ingest_counts writes it."""

    # Without a constraint, because counts of a project that was just deleted must not block the other counts.
    project = models.ForeignKey(Project, models.CASCADE, related_name="+", db_index=False, db_constraint=False)
    #: "key:<prefix>", or "runner" for all runner secrets together.
    sender = models.CharField(max_length=64)
    #: The start of the minute, by the web server's clock.
    minute = models.DateTimeField()
    #: "accepted", "duplicate", or the code of the error.
    outcome = models.CharField(max_length=64)
    #: Number of events; a request that was refused as a whole counts once.
    count = models.BigIntegerField()
    #: The time when the last of them arrived.
    last_at = models.DateTimeField()

    class Meta:
        db_table = "agent_run_ingest_counts"
        indexes = [
            # old_records.delete_batch: oldest first.
            models.Index(fields=["minute"], name="ingest_counts_oldest"),
        ]
        constraints = [
            # The page queries the senders of a project since a minute.
            models.UniqueConstraint(fields=["project", "sender", "minute", "outcome"], name="ingest_count_once"),
        ]

    def __str__(self) -> str:
        return f"{self.sender} {self.minute:%Y-%m-%d %H:%M} {self.outcome}"
