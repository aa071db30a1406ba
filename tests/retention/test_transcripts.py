"""Transcripts of claude-agent-sdk are kept as long as the runs of their project."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from runs.actions import claude_transcripts
from runs.actions.claude_transcripts import TranscriptName
from runs.models import ClaudeTranscript, ClaudeTranscriptEntry
from runs.upkeep import retention
from tests.support.factories import make_project


@pytest.mark.django_db
def test_a_transcript_is_deleted_when_its_last_append_is_older_than_the_retention_period() -> None:
    kept, brief = make_project("kept"), make_project("brief")
    for project, days in ((kept, None), (brief, 10)):
        project.retention_days = days
        project.save()
        for age in (9, 11):
            claude_transcripts.append(project.pk, TranscriptName("work", f"{age} days"), [{"type": "x"}] * 3)
            aged = ClaudeTranscript.objects.filter(project=project, session_id=f"{age} days")
            aged.update(modified_at=timezone.now() - timedelta(days=age))

    retention.delete_expired()

    left = ClaudeTranscript.objects.order_by("project__slug", "session_id").values_list("project__slug", "session_id")
    assert list(left) == [("brief", "9 days"), ("kept", "11 days"), ("kept", "9 days")]
    assert ClaudeTranscriptEntry.objects.count() == 9
