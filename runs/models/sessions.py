"""The models of sessions of Claude Code that workers open, and of transcripts of claude-agent-sdk.

Users of claude-agent-sdk store transcripts here to resume a session on another machine.
"""

from __future__ import annotations

from django.db import models

from agentops.accounts.models import Project
from runs.models.run import AgentRun


class CliSession(models.Model):
    """A session of Claude Code. First the row is stored; then the program is started with its ID as session ID."""

    #: The ID of the session in the program.
    id = models.UUIDField(primary_key=True, editable=False)
    run = models.ForeignKey(AgentRun, models.PROTECT, related_name="cli_sessions", db_index=False)
    #: The session whose transcript it continues. That transcript is not changed.
    resumed = models.ForeignKey("self", models.SET_NULL, null=True, related_name="+")
    #: The fencing token of the worker that opened the session.
    epoch = models.IntegerField()
    created_at = models.DateTimeField()

    class Meta:
        db_table = "agent_run_cli_sessions"
        indexes = [models.Index(fields=["run", "created_at"], name="cli_session_of_run")]

    def __str__(self) -> str:
        return str(self.pk)


#: Maximum length of each part of a transcript's name, and of an entry's UUID.
MAX_NAME = 300


class ClaudeTranscript(models.Model):
    """The transcript of a session, or of a sub-agent of the session."""

    project = models.ForeignKey(Project, models.CASCADE, related_name="claude_transcripts", db_index=False)
    #: The SDK's name for the scope of a session, by default the working directory with dashes.
    project_key = models.CharField(max_length=MAX_NAME)
    session_id = models.CharField(max_length=MAX_NAME)
    #: The path of a sub-agent, such as `subagents/agent-1`. Empty for the session itself.
    subpath = models.CharField(max_length=MAX_NAME, blank=True, default="")
    #: The position of the newest entry.
    last_position = models.PositiveIntegerField(default=0)
    #: When entries were last appended, by the database's clock.
    modified_at = models.DateTimeField()

    class Meta:
        db_table = "claude_transcripts"
        constraints = [
            # Also used for the lists of sessions and of sub-agents.
            models.UniqueConstraint(
                fields=["project", "project_key", "session_id", "subpath"], name="claude_transcript_once"
            ),
        ]
        indexes = [
            # old_records.delete_sessions: oldest first.
            models.Index(fields=["project", "modified_at"], name="claude_transcript_old"),
        ]

    def __str__(self) -> str:
        return "/".join(filter(None, [self.project_key, self.session_id, self.subpath]))


class ClaudeTranscriptEntry(models.Model):
    """One line of a transcript."""

    transcript = models.ForeignKey(ClaudeTranscript, models.CASCADE, related_name="entries", db_index=False)
    #: Counts from 1, in the order of storage.
    position = models.PositiveIntegerField()
    #: The ID that the SDK gave the entry; empty for entries without one, such as titles.
    uuid = models.CharField(max_length=MAX_NAME, blank=True, default="")
    #: The entry as JSON in ASCII. Not a JSON column, which in PostgreSQL could not store NUL and unpaired surrogates.
    content = models.TextField()

    class Meta:
        db_table = "claude_transcript_entries"
        constraints = [
            models.UniqueConstraint(fields=["transcript", "position"], name="claude_entry_position_once"),
            models.UniqueConstraint(
                fields=["transcript", "uuid"], condition=~models.Q(uuid=""), name="claude_entry_uuid_once"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.transcript_id} entry {self.position}"
