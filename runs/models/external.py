"""The models of what other programs send: data of external runs and AG-UI requests, names of imported model calls, OTLP
entries that are not assigned to a run yet, and counts of events by sender and minute.
"""

from __future__ import annotations

import re
from uuid import UUID

from django.db import models
from django.db.models import Q

from agentops.accounts.models import Project
from agentops.accounts.names import UUID_PATTERN
from runs.models.agent import Agent
from runs.models.conversation import AgentRunMessage
from runs.models.run import AgentRun


def references(reference: str) -> Q:
    """Return the condition for the run with this external ID, or with this ID."""
    by_external_id = Q(external_id=reference)
    return by_external_id | Q(pk=UUID(reference)) if re.match(UUID_PATTERN, reference) else by_external_id


def sql_references(reference: str) -> tuple[str, list[object]]:
    """Return the condition of `references` as SQL on agent_runs, and its values."""
    if re.match(UUID_PATTERN, reference):
        return "(external_id = %s OR agent_runs.id = %s)", [reference, UUID(reference)]
    return "external_id = %s", [reference]


class ExternalRun(models.Model):
    """The state of processing the events of an external run, and their sender."""

    run = models.OneToOneField(AgentRun, models.PROTECT, primary_key=True, related_name="external")
    #: The sequence number of the first event of the answer that is being streamed. Null between answers.
    answer_from_seq = models.BigIntegerField(null=True)
    #: The streamed texts that may continue, with up to 32 KiB of each. They are not redacted, and so never displayed or
    #: exported.
    open_texts = models.JSONField(default=dict)
    #: The actor that sent the last events, in the form of the audit log.
    sender = models.CharField(max_length=200, blank=True, default="")
    #: When a file with the run was last imported, by the database's clock. Null for runs whose runner sends events.
    imported_at = models.DateTimeField(null=True)
    #: The time of the last event of a runner that is silent. Null while it sends events.
    silent_since = models.DateTimeField(null=True)
    #: The external ID of this run's parent, or of the run that it was forked from, until the project has that run.
    origin_ref = models.TextField(blank=True, default="", db_default="")
    #: Whether `origin_ref` is the parent, and not the run that this one was forked from.
    origin_is_parent = models.BooleanField(default=False, db_default=False)
    #: The position of the last message that was copied from another session.
    copied_until = models.PositiveIntegerField(default=0, db_default=0)
    #: The last title that the run's program has set.
    given_title = models.CharField(max_length=200, blank=True, default="", db_default="")

    class Meta:
        db_table = "agent_run_external"
        indexes = [
            # runs.external.origins: the runs whose parent or origin is being created.
            models.Index(fields=["origin_ref"], name="external_run_origin", condition=~models.Q(origin_ref="")),
        ]

    def __str__(self) -> str:
        return str(self.run_id)


#: Maximum length of the IDs that clients choose.
MAX_CLIENT_ID = 200


class AgUiRun(models.Model):
    """A request of an AG-UI client, and the run whose events answer it.

    The runs of a client's thread continue each other. One run may answer several requests, because each answer to a
    question of the run is a request too.
    """

    agent = models.ForeignKey(Agent, models.CASCADE, related_name="ag_ui_runs", db_index=False)
    run = models.ForeignKey(AgentRun, models.PROTECT, related_name="ag_ui_runs")
    #: The client's IDs of the thread and of this request.
    thread_id = models.CharField(max_length=MAX_CLIENT_ID)
    client_run_id = models.CharField(max_length=MAX_CLIENT_ID)
    #: The sequence number in the run's log after which the events of this request begin.
    after_seq = models.BigIntegerField()
    #: The user message that the request added to the conversation, and the client's ID for it.
    message = models.ForeignKey(AgentRunMessage, models.PROTECT, null=True, related_name="+")
    client_message_id = models.CharField(max_length=MAX_CLIENT_ID, blank=True, default="")

    class Meta:
        db_table = "ag_ui_runs"
        constraints = [
            # Also used to find the newest request of a thread.
            models.UniqueConstraint(fields=["agent", "thread_id", "client_run_id"], name="ag_ui_run_once"),
        ]

    def __str__(self) -> str:
        return f"{self.thread_id}/{self.client_run_id}"


class ReportedCall(models.Model):
    """A name of a model call in imported sessions, and the run that counts the usage of the call.

    A call may have several names, because copies of a session may name it differently. All rows of a call have the same
    `call` and the same `run`.
    """

    project = models.ForeignKey(Project, models.PROTECT, related_name="+", db_index=False)
    name = models.CharField(max_length=128)
    #: The identity of the call, also stored in the usage of its turn.
    call = models.UUIDField(db_index=True)
    run = models.ForeignKey(AgentRun, models.PROTECT, related_name="+")
    #: Whether the run is known to have copied the call from another session.
    is_copy = models.BooleanField(default=False)
    #: Whether its usage comes from a copy and so is complete. Later reports of the run itself add nothing.
    is_whole = models.BooleanField(default=False)

    class Meta:
        db_table = "agent_run_reported_calls"
        constraints = [models.UniqueConstraint(fields=["project", "name"], name="reported_call_once")]

    def __str__(self) -> str:
        return self.name


class OtlpGroup(models.Model):
    """The spans of a trace, or the log events of a session, which arrive in any order and become a run."""

    project = models.ForeignKey(Project, models.PROTECT, related_name="otlp_groups")
    #: The trace ID, or the program and its session: `claude-code:<session>`.
    key = models.CharField(max_length=200)
    #: Null until the first entry of an agent, a model or a tool is assigned to a run.
    run = models.OneToOneField(AgentRun, models.PROTECT, null=True, related_name="otlp_group")
    #: The actor that sent the last entries, in the form of the audit log.
    sender = models.CharField(max_length=200, blank=True, default="")
    #: The time when the last new entry arrived.
    received_at = models.DateTimeField()
    #: When a worker will assign entries to a run, or end the run. Null if there is nothing to do until the next entry.
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
    """A span or a log event. Once it is assigned to a run, its facts are deleted.

    The row is kept to recognise repeats, and to find the run of its children.
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
    #: The digest of the entry as it was received.
    sha256 = models.BinaryField(max_length=32)
    #: The ID of the model's answer. Several spans may report the same answer.
    response_id = models.CharField(max_length=200, blank=True, default="")
    #: The facts in the entry. Null once it is assigned to a run.
    facts = models.JSONField(null=True)
    #: The run that the entry is assigned to; for the span of an agent, its own run. Null until it is assigned.
    filed_under = models.UUIDField(null=True)

    class Meta:
        db_table = "agent_run_otlp_items"
        constraints = [models.UniqueConstraint(fields=["group", "item_id"], name="otlp_item_once")]

    def __str__(self) -> str:
        return self.item_id


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
    #: When the last of these events arrived.
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
