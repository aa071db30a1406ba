"""The models of the search index: masked copies of texts. Everything in it can be written anew from the events."""

from __future__ import annotations

from django.db import models

from agentops.accounts.models import Project
from timeline.models import Log


class SearchEntry(models.Model):
    """The masked text of a message, a tool call or an event, or a part of a long one.

    Written by runs.upkeep.search_index only.
    """

    class Kind(models.TextChoices):
        """What an entry is the text of."""

        MESSAGE = "message"
        TOOL_CALL = "tool_call"
        EVENT = "event"

    #: The position in the index. Assigned in the order of commits, so that pages are stable while the index grows.
    id = models.BigAutoField(primary_key=True)
    project = models.ForeignKey(Project, models.PROTECT, related_name="+", db_index=False)
    #: The log of a run, or of a flow run.
    log = models.ForeignKey(Log, models.PROTECT, related_name="+", db_index=False, db_column="run_id")
    kind = models.CharField(max_length=9, choices=Kind.choices)
    #: The ID of the message or tool call, or the sequence number of the event; further parts of a text have their
    #: number behind it, see runs.queries.searching.text_parts.
    key = models.CharField(max_length=36)
    #: The event that shows it in the timeline.
    seq = models.BigIntegerField()
    step = models.IntegerField(null=True)
    #: The role of a message, the tool of a call, or the type of an event.
    name = models.CharField(max_length=256)
    #: The status of a tool call.
    status = models.CharField(max_length=9, blank=True, default="")
    is_error = models.BooleanField()
    #: The time of the event `seq`.
    at = models.DateTimeField()
    #: Redacted, with single spaces for all white space, and bounded.
    text = models.TextField()
    #: `text` in lower case. Null if only the letters A to Z change, which the databases convert themselves.
    folded = models.TextField(null=True)

    class Meta:
        db_table = "agent_run_search_entries"
        constraints = [
            # The target of the indexer's upsert. Also serves the search in a run, and retention.
            models.UniqueConstraint(fields=["log", "key"], name="search_entry_once"),
        ]

    def __str__(self) -> str:
        return f"{self.log_id} {self.kind} {self.key}"


class SearchPosition(models.Model):
    """How far the index has got. One row, which every writer of the index locks or compares first.

    A second row, while older events are indexed once more by a version that indexes more of them.
    """

    NEWEST, OLDER = 1, 2

    id = models.PositiveSmallIntegerField(primary_key=True, default=NEWEST)
    #: The last event that is in the index, by the ID of its row. Below 0, the entries up to the ID `-1 - event_id` are
    #: to be deleted, and then all events indexed again.
    event_id = models.BigIntegerField(default=0)
    #: The last assigned ID of an entry. Unused in the second row.
    entry_id = models.BigIntegerField(default=0)

    class Meta:
        db_table = "agent_run_search_position"

    def __str__(self) -> str:
        return f"up to event {self.event_id}"
