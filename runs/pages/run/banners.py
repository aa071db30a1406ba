"""What a reader of a run should know before anything else: why it stands still, who has to act, what was lost.

At most four queries, of which each status needs one, a wait up to three, and a model call that is tried again two.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from django.urls import reverse
from django.utils import timezone

from runs.lifecycle import inbox
from runs.models import AgentRun, Attempt, RunCommand
from runs.pages.run import waits
from runs.pages.run.banner import Banner, last, moment, place_of, who, words
from runs.pages.run.facts import Loaded, unresolved
from runs.pages.run.lineage import Lineage
from runs.statuses import LOST, PauseReason, RunStatus, WaitReason
from timeline.event_rows import payload_of
from timeline.events import EventType
from timeline.shown import clean, clip

#: A worker that sweeps takes a queued run within a few seconds.
WORKER_EXPECTED_S = 15
SILENT_S = 30
#: Of an error's text; the run's last row has more.
ERROR_BYTES = 2048


def banners_of(found: Loaded, lineage: Lineage, wishes: list[RunCommand]) -> list[Banner]:
    """`wishes`: the unread commands of the run's inbox."""
    run = found.run
    of_status = _OF_STATUS.get(run.state)
    banners = of_status(found, lineage) if of_status is not None else []
    banners += [_wish(wish) for wish in wishes if wish.type in _WISHES]
    sent = sum(wish.type in (inbox.Type.SEND, inbox.Type.REPLY) for wish in wishes)
    if sent:
        heard = "when the run is resumed" if run.state is RunStatus.PAUSED else "before the next model call"
        said, what = ("A message waits", "it") if sent == 1 else (f"{sent} messages wait", "them")
        banners.append(Banner(level="info", icon="send", head=said, text=f"The agent reads {what} {heard}."))
    if unresolved(found) and run.status_reason != WaitReason.UNKNOWN_TOOL:
        banners.append(_unknown_calls(found))
    return banners


def wishes_of(run: AgentRun) -> list[RunCommand]:
    return [] if run.state.terminal else inbox.pending(run.pk)


# --- One for each status ----------------------------------------------------------------------------------------------


def _queued(found: Loaded, lineage: Lineage) -> list[Banner]:
    run = found.run
    # Of its own project alone: what others have queued is nobody's business here.
    waiting = AgentRun.objects.filter(project=run.project_id, status=RunStatus.QUEUED, queued_at__lt=run.queued_at)
    ahead = waiting.count()
    place = f"{ahead} of this project's runs {'is' if ahead == 1 else 'are'} queued before it." if ahead else ""
    if run.status_reason == WaitReason.RETRY_ALONE:
        head, text = waits.RETRIED_ALONE
        return [Banner(level="warn", icon="retry", head=head, text=text, since=found.run.log.last_event_at)]
    why = f"Handed back: {words(run.status_reason)}. " if run.status_reason else ""
    if timezone.now() - run.queued_at < timedelta(seconds=WORKER_EXPECTED_S):
        return [Banner(level="info", icon="queued", head="Queued", text=why + place, since=run.queued_at)]
    text = f"{why}{place or 'Nothing of this project is queued before it'}: is a worker running?"
    head = "No worker has taken this run yet"
    return [Banner(level="warn", icon="queued", head=head, text=text, since=run.queued_at, command="agentops worker")]


def _running(found: Loaded, lineage: Lineage) -> list[Banner]:
    run, now = found.run, timezone.now()
    seen = run.log.last_event_at
    if run.lease_expires_at is not None and run.lease_expires_at < now:
        text = "Another worker goes on with the run as soon as it finds it."
        return [Banner(level="warn", icon="retry", head="Worker lost", text=text, at=seen, since=run.lease_expires_at)]
    banners = [*(_recovered(found) if found.recoveries else []), *waits.retrying(found)]
    if found.budgeted:
        banners += _running_out(found)
    if seen is not None and now - seen > timedelta(seconds=SILENT_S):
        text = "Its worker is alive: the model or a tool is taking its time."
        banners.append(Banner(level="info", icon="clock", head="No event", text=text, since=seen))
    return banners


def _recovered(found: Loaded) -> list[Banner]:
    """While the worker that took it over holds it; afterwards the row in the timeline says so."""
    lost = Attempt.objects.filter(run=found.run, epoch=found.run.lease_epoch - 1, end_reason__in=LOST).exists()
    event = last(found.run.pk, EventType.RUN_RECOVERED) if lost else None
    if event is None:
        return []
    seen = moment(payload_of(event).get("last_event_at"))
    text = f"Continued by another worker (recovery {found.recoveries})."
    href = place_of(event)
    return [Banner(level="info", icon="retry", head="Worker lost", text=text, at=seen, href=href, label="Show where")]


def _running_out(found: Loaded) -> list[Banner]:
    event = last(found.run.pk, EventType.BUDGET_WARNING)
    if event is None:
        return []
    text = clean(str(payload_of(event).get("message") or ""))
    head = "A budget runs out" if payload_of(event).get("used") else "A budget without prices"
    href = place_of(event)
    return [Banner(level="warn", icon="clock", head=head, text=text, at=event.ts, href=href, label="Show where")]


def _paused(found: Loaded, lineage: Lineage) -> list[Banner]:
    run, event = found.run, last(found.run.pk, EventType.RUN_PAUSED)
    payload = payload_of(event) if event is not None else {}
    by = who(payload.get("by"))
    text = _PAUSES.get(run.status_reason, "")
    if run.status_reason == PauseReason.MAX_STEPS:
        made = run.step_count - run.step_base
        text = f"It has used its budget: {made} of {run.max_steps} steps, {run.step_count} in the lineage."
    detail = "" if run.status_reason == PauseReason.MAX_STEPS else clean(str(payload.get("detail") or ""))
    head = f"Paused by {by}" if by else "Paused"
    if run.status_reason == PauseReason.ERROR and run.error_type:
        head = f"Paused after an error: {words(run.error_type)}"
    if run.status_reason == PauseReason.ESCALATED:
        head = f"Escalated by {by}" if by else "Escalated"
    at = event.ts if event is not None else None
    return [Banner(level="warn", icon="paused", head=head, text=text, at=at, quote=detail)]


def _resumed(found: Loaded, lineage: Lineage) -> list[Banner]:
    event = last(found.run.pk, EventType.RUN_RESUMED)
    by = who(payload_of(event).get("by")) if event is not None else ""
    href = reverse("runs:detail", args=[lineage.resumed_as]) if lineage.resumed_as else ""
    head = f"Resumed by {by}" if by else "Resumed"
    text = "This run is over; it goes on as another one."
    return [
        Banner(
            level="info", icon="resumed", head=head, text=text, at=found.run.completed_at, href=href,
            label="Go to that run",
        )
    ]  # fmt: skip


def _failed(found: Loaded, lineage: Lineage) -> list[Banner]:
    run = found.run
    head = f"Failed: {words(run.error_type)}" if run.error_type else "Failed"
    quote = clip(run.error_message, ERROR_BYTES).text
    return [Banner(level="error", icon="failed", head=head, at=run.completed_at, quote=quote)]


def _stopped(found: Loaded, lineage: Lineage) -> list[Banner]:
    event = last(found.run.pk, EventType.RUN_STOPPED)
    payload = payload_of(event) if event is not None else {}
    by = who(payload.get("by"))
    head = f"Stopped by {by}" if by else "Stopped"
    reason = found.run.status_reason
    text = "" if reason in ("", "operator") else f"{words(reason).capitalize()}."
    quote = clean(str(payload.get("message") or "")) if reason == "repeated_calls" else ""
    return [Banner(level="info", icon="stopped", head=head, text=text, at=found.run.completed_at, quote=quote)]


_OF_STATUS: dict[RunStatus, Callable[[Loaded, Lineage], list[Banner]]] = {
    RunStatus.QUEUED: _queued,
    RunStatus.RUNNING: _running,
    RunStatus.WAITING: waits.waiting,
    RunStatus.PAUSED: _paused,
    RunStatus.RESUMED: _resumed,
    RunStatus.FAILED: _failed,
    RunStatus.STOPPED: _stopped,
}
_PAUSES: dict[str, str] = {
    PauseReason.OPERATOR: "It stays so until somebody resumes or stops it.",
    PauseReason.ESCALATED: "Somebody has to decide: resume it, with a message perhaps, or stop it.",
    PauseReason.LOG_LIMIT: "Its log has reached the limit of events.",
    PauseReason.BUDGET: "A budget is used up. Resumed, the run goes on with the same budget, counted from zero; what a "
    "project may use in a day is counted over all its runs.",
    PauseReason.FIXTURE_EXHAUSTED: "Its recording has no more answers. To go on, fork it with another model.",
    PauseReason.POISON_STEP: "Each time this step was tried alone, its process died. Check what its tools do, then "
    "resume the run or stop it. A resumed run is tried alone again.",
    PauseReason.ERROR: "This error does not pass by itself. Remove its cause, then resume the run; nothing is lost.",
}
_WISHES: dict[str, tuple[str, str]] = {
    inbox.Type.STOP: ("Stop asked for", "The worker drops what it is doing as soon as it looks, within seconds."),
    inbox.Type.PAUSE: ("Pause asked for", "The run pauses when the tools of its turn have ended."),
}


def _wish(wish: RunCommand) -> Banner:
    head, text = _WISHES[wish.type]
    by = clean(wish.created_by)
    return Banner(level="warn", icon=wish.type, head=f"{head} by {by}", text=text, at=wish.received_at)


def _unknown_calls(found: Loaded) -> Banner:
    count = unresolved(found)
    head = "A tool call has an unknown outcome" if count == 1 else f"{count} tool calls have an unknown outcome"
    href = f"{reverse('runs:detail', args=[found.run.pk])}?show=errors"
    text = "Nobody knows whether it took effect."
    return Banner(level="warn", icon="unknown", head=head, text=text, href=href, label="Show errors")
