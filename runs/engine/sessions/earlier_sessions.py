"""Choose the earlier session that a new one continues: the newest whose transcript ends with the run's conversation."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from runs.conversation import ancestry
from runs.conversation.ancestry import Segment
from runs.models import AgentRun, AgentRunMessage, CliSession
from runs.providers.claude_cli import transcripts
from runs.statuses import LIVE


@dataclass(frozen=True)
class EarlierSession:
    """The session to continue, if there is one."""

    session_id: UUID | None = None
    #: Whether the run is a fork, and the transcript of its origin continues after the fork.
    is_cut: bool = False


def find(run: AgentRun, config: Path, *, missing: Collection[UUID]) -> EarlierSession:
    """Return the session that the next one of a run continues. `missing`: IDs of sessions unknown to the program.

    Each session is continued as a fork with a new ID, so that the transcript of a run ends with the run.
    """
    run_ids, is_cut = _runs_of(run)
    sessions = CliSession.objects.filter(run__in=run_ids).exclude(pk__in=missing).order_by("-created_at", "-id")
    ids = sessions.values_list("id", flat=True)
    return EarlierSession(next((pk for pk in ids if transcripts.path_of(config, pk)), None), is_cut)


def _runs_of(run: AgentRun) -> tuple[list[UUID], bool]:
    """Return the runs of the conversation back to the fork that cut it, and whether a fork did."""
    run_ids: list[UUID] = []
    for segment in reversed(ancestry.segments_of(run)):
        if segment.upto is not None and _goes_on(segment):
            return run_ids, True
        run_ids.append(segment.run_id)
    return run_ids, False


def _goes_on(segment: Segment) -> bool:
    """Whether a run was forked before its end, or may continue on its own."""
    is_live = AgentRun.objects.filter(pk=segment.run_id, status__in=LIVE)
    later = AgentRunMessage.objects.filter(run=segment.run_id, position__gt=segment.upto)
    return is_live.exists() or later.exists()
