"""The models of the search index: masked copies of texts, which can be rebuilt from the events."""

from __future__ import annotations

from django.db import models

from agentops.accounts.models import Project
from timeline.models import Log


class SearchEntry(models.Model):
    """The masked text of a message, a tool call or an event, or a part of a long text.

    Only runs.upkeep.search_index writes it.
    """

    class Kind(models.TextChoices):
        """The source of an entry's text."""

        MESSAGE = "message"
        TOOL_CALL = "tool_call"
        EVENT = "event"

    #: The position in the index. It grows in the order of commits, so that pages of results stay the same.
    id = models.BigAutoField(primary_key=True)
    project = models.ForeignKey(Project, models.PROTECT, related_name="+", db_index=False)
    #: The log of a run, or of a flow run.
    log = models.ForeignKey(Log, models.PROTECT, related_name="+", db_index=False, db_column="run_id")
    kind = models.CharField(max_length=9, choices=Kind.choices)
    #: The ID of the message or tool call, or the sequence number of the event; for a further part of a text with the
    #: number of the part, see runs.queries.searching.index_entries.
    key = models.CharField(max_length=36)
    #: The event with which the timeline displays the text.
    seq = models.BigIntegerField()
    step = models.IntegerField(null=True)
    #: The role of a message, the tool of a call, or the type of an event.
    name = models.CharField(max_length=256)
    #: The status of a tool call.
    status = models.CharField(max_length=9, blank=True, default="")
    is_error = models.BooleanField()
    #: The time of the event `seq`.
    at = models.DateTimeField()
    #: The redacted text, of limited length, with all white space reduced to single spaces.
    text = models.TextField()
    #: The text in lower case. Null if only the letters A to Z differ, which the databases convert themselves.
    folded = models.TextField(null=True)

    class Meta:
        db_table = "agent_run_search_entries"
        constraints = [
            # For the upsert of the indexer. Also used to search in a run, and by retention.
            models.UniqueConstraint(fields=["log", "key"], name="search_entry_once"),
        ]

    def __str__(self) -> str:
        return f"{self.log_id} {self.kind} {self.key}"


class SearchPosition(models.Model):
    """The position of the index: one row, which every writer of the index locks or compares first.

    A second row exists while older events are indexed again, after an upgrade to a version that indexes more of them.
    """

    NEWEST, OLDER = 1, 2

    id = models.PositiveSmallIntegerField(primary_key=True, default=NEWEST)
    #: The ID of the last indexed event. If it is negative, the entries up to the ID `-1 - event_id` have to be deleted,
    #: and then all events indexed again.
    event_id = models.BigIntegerField(default=0)
    #: The last assigned ID of an entry. Unused in the second row.
    entry_id = models.BigIntegerField(default=0)

    class Meta:
        db_table = "agent_run_search_position"

    def __str__(self) -> str:
        return f"up to event {self.event_id}"
