"""The banners of external runs that have not ended: the report of their runner, and whether it is silent."""

from __future__ import annotations

from datetime import timedelta

from django.conf import settings

from agentops.base import database_clock
from runs.models import AgentRun, ExternalRun
from runs.pages.run.banner import Banner, label_of
from runs.statuses import RunStatus, WaitReason

_REPORTED = "Its runner reports this. It continues when the runner sends further events."
_WAITS = {
    WaitReason.INPUT: ("Waits for its user", "The session goes on where it runs, not here."),
    WaitReason.APPROVAL: ("Waits for a permission", "The permission is given where the agent runs, not here."),
    WaitReason.UNKNOWN_TOOL: (
        "Ends with a tool call without a result",
        "The outcome of the call is not known here. It is added when the runner reports it.",
    ),
}


def external_banners(run: AgentRun) -> list[Banner]:
    """Return the banners of an external run. Empty if it has ended, or if it runs and sends events."""
    since = run.log.last_event_at
    if run.state is RunStatus.RUNNING:
        # A worker detects silence (runs.external.silence). Without a worker, detect it here.
        external = ExternalRun.objects.filter(run=run).first()
        since = (external and external.silent_since) or since
        if since is None or database_clock.now() - since <= timedelta(seconds=settings.AGENTOPS_SILENCE_S):
            return []
        text = "Its runner has sent no event since then. It may be at work, have ended, or have lost its connection."
        text += _end()
        return [Banner(level="warn", icon="clock", head="Runner silent", text=text, since=since)]
    if run.state is RunStatus.WAITING:
        head, text = what_waits(run)
        return [Banner(level="info", icon="clock", head=head, text=text, since=since)]
    if run.state is RunStatus.PAUSED:
        return [Banner(level="info", icon="paused", head="Paused", text=_REPORTED, since=since)]
    return []


def abandoned_banner(run: AgentRun) -> Banner:
    """Return the banner of a run that was ended as abandoned."""
    text = "Nothing has come from its program since then. The next event reopens the run."
    return Banner(level="info", icon="stopped", head="Abandoned", text=text, at=run.completed_at)


def _end() -> str:
    """Return a sentence about when a silent run ends automatically."""
    days = settings.AGENTOPS_ABANDON_DAYS
    return f" After {days} day{'' if days == 1 else 's'} without an event, the run ends as abandoned." if days else ""


def what_waits(run: AgentRun) -> tuple[str, str]:
    """Return what a session of another program waits for, in a few words, and where to act."""
    other = (f"Waits: {label_of(run.status_reason)}", _REPORTED)
    return _WAITS.get(run.status_reason, other)  # type: ignore[call-overload, no-any-return]
