"""Session transcripts of claude-agent-sdk: append, read, delete.

The SDK's transcripts are stored unchanged, because it resumes a session from them. They may contain secrets.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import F, QuerySet

from agentops.accounts.audit import Actor, record
from agentops.accounts.models import Project
from agentops.base.database_clock import Now
from runs.models import ClaudeTranscript, ClaudeTranscriptEntry
from runs.models.sessions import MAX_NAME

#: Maximum entries of a page.
PAGE_ENTRIES = 500
#: Maximum characters of a page with more than one entry.
PAGE_SIZE = 4 * 1024 * 1024
#: The action in the audit log.
TRANSCRIPT_DELETED = "transcript.deleted"


@dataclass(frozen=True)
class TranscriptName:
    """The name of a transcript within a project. `subpath` is empty for the session itself."""

    project_key: str
    session_id: str
    subpath: str = ""


@dataclass(frozen=True)
class EntryPage:
    """Consecutive entries as JSON texts. `next` is the position to continue after; None at the end."""

    entries: Sequence[str]
    next: int | None


def named(project_id: UUID, name: TranscriptName) -> QuerySet[ClaudeTranscript]:
    """Return the query of the transcript with this name."""
    return of_session(project_id, name.project_key, name.session_id).filter(subpath=name.subpath)


def of_session(project_id: UUID, project_key: str, session_id: str) -> QuerySet[ClaudeTranscript]:
    """Return the query of the transcripts of a session and of its sub-agents."""
    return ClaudeTranscript.objects.filter(project=project_id, project_key=project_key, session_id=session_id)


def append(project_id: UUID, name: TranscriptName, entries: Sequence[Mapping[str, Any]]) -> int:
    """Append entries. Returns how many were new: an entry whose `uuid` is already stored is skipped."""
    if not entries:
        return 0
    with transaction.atomic():
        transcript = _locked(project_id, name)
        rows = _new_rows(transcript, entries)
        ClaudeTranscriptEntry.objects.bulk_create(rows)
        ClaudeTranscript.objects.filter(pk=transcript.pk).update(last_position=F("last_position") + len(rows))
    return len(rows)


def _locked(project_id: UUID, name: TranscriptName) -> ClaudeTranscript:
    """Return the transcript, locked against other appends until the end of the transaction. Creates it if necessary."""
    identity = {"project_id": project_id, **asdict(name)}
    transcripts = ClaudeTranscript.objects.filter(**identity)
    # The UPDATE takes the lock. It matches no row if the transcript does not exist, or was deleted in between.
    while not transcripts.update(modified_at=Now()):
        transcripts.get_or_create(defaults={"modified_at": Now()}, **identity)
    return transcripts.get()


def _new_rows(transcript: ClaudeTranscript, entries: Sequence[Mapping[str, Any]]) -> list[ClaudeTranscriptEntry]:
    """Return the unsaved rows of the entries whose `uuid` is not stored yet, or that have none."""
    uuids = {uuid for entry in entries if (uuid := _uuid_of(entry))}
    known = set(transcript.entries.filter(uuid__in=uuids).values_list("uuid", flat=True))
    rows: list[ClaudeTranscriptEntry] = []
    for entry in entries:
        uuid = _uuid_of(entry)
        if uuid in known:
            continue
        if uuid:
            known.add(uuid)
        position = transcript.last_position + len(rows) + 1
        content = json.dumps(entry, separators=(",", ":"))
        rows.append(ClaudeTranscriptEntry(transcript=transcript, position=position, uuid=uuid, content=content))
    return rows


def _uuid_of(entry: Mapping[str, Any]) -> str:
    """Return the `uuid` of an entry; "" if it has none that can be stored."""
    uuid = entry.get("uuid")
    return uuid if isinstance(uuid, str) and uuid.isprintable() and len(uuid) <= MAX_NAME else ""


def page(transcript: ClaudeTranscript, *, after: int) -> EntryPage:
    """Return the entries after a position, up to the limits of a page, and at least one if there is any."""
    rows = transcript.entries.filter(position__gt=after).order_by("position").values_list("position", "content")
    texts: list[str] = []
    size, last = 0, after
    for position, content in rows[: PAGE_ENTRIES + 1].iterator(chunk_size=50):
        size += len(content)
        if texts and (size > PAGE_SIZE or len(texts) == PAGE_ENTRIES):
            return EntryPage(texts, last)
        texts.append(content)
        last = position
    return EntryPage(texts, None)


def delete(project: Project, name: TranscriptName, *, by: Actor) -> int:
    """Delete a transcript; with a session also the transcripts of its sub-agents. Returns how many were deleted.

    The caller checks the permission (Action.OPERATE).
    """
    rows = named(project.pk, name) if name.subpath else of_session(project.pk, name.project_key, name.session_id)
    with transaction.atomic():
        # Locked, so that no entries are added to a transcript that is being deleted.
        rows = rows.filter(pk__in=[row.pk for row in rows.select_for_update().order_by("pk")])
        count = rows.delete()[1].get(ClaudeTranscript._meta.label, 0)
        if count:
            before = {**{key: value for key, value in asdict(name).items() if value}, "transcripts": count}
            record(by, TRANSCRIPT_DELETED, project=project, before=before)
    return count
