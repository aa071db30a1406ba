"""Files the entries of OTLP groups that have waited long enough under runs, and ends the runs of complete traces.

A group has the entries of one trace, or of one session of a coding agent.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from django.db import IntegrityError, transaction
from django.db.models import QuerySet

from agentops.base import database_clock
from agentops.base.redaction import project_scope
from runs.database_errors import concerns_all
from runs.models import OtlpGroup

log = logging.getLogger(__name__)
#: How long a group must be silent before entries whose place in a run is known are filed.
QUIET = timedelta(seconds=2)
#: How long an entry waits for related entries, and a run for its last entries. Most exporters send every 5 seconds.
SETTLE = timedelta(seconds=10)
#: How long a trace of nothing but model calls waits, so that another trace with the same calls is filed first.
SETTLE_LONE_CALLS = SETTLE + timedelta(seconds=1)
#: The period of the task that settles groups, with a margin.
LOOK_AHEAD = timedelta(seconds=7)
#: Maximum groups of one project that are settled before the next project's turn.
TURN = 10
#: The time without an entry after which a run without a known end is set to waiting.
SILENCE = timedelta(minutes=10)


def settle_due() -> int:
    """Settle due groups, in one turn of each project: file their entries, and end their runs or set them to waiting.

    Returns the number of groups; 0 if none is due, or if other workers have locked all due ones.
    """
    due = OtlpGroup.objects.filter(due_at__lte=database_clock.now())
    waiting = list(due.values_list("project", flat=True).distinct())
    return sum(_settle_some(due.filter(project=project_id).order_by("due_at")) for project_id in waiting)


def next_due_s() -> float | None:
    """Return the seconds until the next group is due; None if that is after `LOOK_AHEAD`."""
    now = database_clock.now()
    coming = OtlpGroup.objects.filter(due_at__gt=now, due_at__lte=now + LOOK_AHEAD).order_by("due_at")
    due_at = coming.values_list("due_at", flat=True).first()
    return None if due_at is None else database_clock.seconds_between(now, due_at)


def _settle_some(due: QuerySet[OtlpGroup]) -> int:
    """Settle the first `TURN` of these groups, and return how many were settled. Errors of one group are logged."""
    count = 0
    for group_id in list(due.values_list("pk", flat=True)[:TURN]):
        try:
            count += _settle(group_id)
        except IntegrityError:
            # A concurrent transaction opened a run with the same reference.
            OtlpGroup.objects.filter(pk=group_id).update(due_at=database_clock.now() + SETTLE)
        except Exception as error:
            if concerns_all(error):
                raise
            # The group is not tried again, so that it does not delay others.
            log.exception("the entries of an OTLP group cannot be filed", extra={"group": group_id})
            OtlpGroup.objects.filter(pk=group_id).update(due_at=None)
    return count


@transaction.atomic
def _settle(group_id: int) -> bool:
    """Settle a group. Return False if another worker has locked it or settled it."""
    now = database_clock.now()
    rows = OtlpGroup.objects.select_for_update(skip_locked=True, of=("self",)).select_related("project")
    group = rows.filter(pk=group_id, due_at__lte=now).first()
    if group is None:
        return False
    settle = _settle_session if ":" in group.key else _settle_trace
    with project_scope.limited_to(group.project_id):
        group.due_at = settle(group, now)
    if group.run_id is None and group.due_at is None:
        # No entry was filed, because none has to do with an agent, a model or a tool.
        group.delete()
    else:
        group.save(update_fields=["due_at"])
    return True


def _settle_session(group: OtlpGroup, now: datetime) -> datetime | None:
    """Settle a session. Return when the group is due again; None: when a new entry arrives."""
    # Imported here, because the modules that read entries take memory that most workers do not need.
    from runs.external.otlp.session_filing import SessionFiling

    SessionFiling.load(group, now - SETTLE, is_quiet=_is_quiet(group, now)).file()
    return _next_look(group, now) or _wait_if_silent(group, now)


def _settle_trace(group: OtlpGroup, now: datetime) -> datetime | None:
    """Settle a trace. Return when the group is due again; None: when a new entry arrives."""
    from runs.external.otlp.trace_filing import TraceFiling

    filing = TraceFiling.load(group, now - SETTLE, is_quiet=_is_quiet(group, now))
    lone_since = filing.waits_since()
    if lone_since is not None and now < lone_since + SETTLE_LONE_CALLS:
        return lone_since + SETTLE_LONE_CALLS
    filing.file()
    again = _next_look(group, now)
    if again is not None:
        return again
    filing = TraceFiling.load(group, now - SETTLE)
    root = filing.tree.root()
    if root is None and now >= group.received_at + SILENCE:
        # The span that encloses the agents is not exported.
        root = filing.tree.outermost_agent()
    if root is None:
        return _wait_if_silent(group, now)
    filing.end(root)
    return None


def _is_quiet(group: OtlpGroup, now: datetime) -> bool:
    return group.received_at <= now - QUIET


def _next_look(group: OtlpGroup, now: datetime) -> datetime | None:
    """Return when the next entry has waited long enough; None if all have."""
    if not _is_quiet(group, now):
        return group.received_at + QUIET
    return group.received_at + SETTLE if now < group.received_at + SETTLE else None


def _wait_if_silent(group: OtlpGroup, now: datetime) -> datetime | None:
    """Set the run of a group to waiting after `SILENCE`. Before, return when that is."""
    silent_at = group.received_at + SILENCE
    if now < silent_at:
        return silent_at
    if group.run is not None:
        from runs.external.otlp.run_writer import RunWriter

        writer = RunWriter.load(group.run, "")
        writer.wait(now)
        writer.flush()
    return None
