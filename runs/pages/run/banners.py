"""The banners of a run page: why the run does not progress, who must act, and any lost work.

At most five queries: one for each status, up to three for a run that waits or is queued, two for a model call that is
retried, one for child runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

from django.urls import reverse

from agentops.base import database_clock
from runs.lifecycle import inbox, session_subagents
from runs.models import AgentRun, Attempt, RunCommand
from runs.pages.run import waits
from runs.pages.run.banner import Banner, ChildInNeed, actor_label, href_of, label_of, newest_event, parse_time
from runs.pages.run.external_banners import abandoned_banner, external_banners
from runs.pages.run.facts import RunData, unknown_call_count
from runs.pages.run.lineage import Lineage
from runs.pages.timeline.cards import LINE
from runs.queries import queue_state
from runs.queries.place_waits import place_waits
from runs.queries.waiting_for_people import WaitingRun, waiting_below
from runs.statuses import LOST, PauseReason, RunStatus, WaitReason
from timeline.display import clean, clip
from timeline.event_rows import payload_of
from timeline.events import EventType
from timeline.events.notice import budget_standing

#: Runs that the banner names; the tree has the others.
MAX_NAMED = 5
_LABELS = {
    WaitReason.INPUT.value: "Answer question",
    WaitReason.UNKNOWN_TOOL.value: "Choose outcome of tool call",
    "": "Resume or stop run",
}


def child_banners(data: RunData) -> list[Banner]:
    """Return the banner that names the descendant runs that wait for a person; empty if no run waits."""
    if not data.child_count:
        return []
    waiting = waiting_below(data.run.pk, MAX_NAMED + 1)
    if not waiting:
        return []
    is_cut, named = len(waiting) > MAX_NAMED, list(map(_child, waiting[:MAX_NAMED]))
    head = "1 child run needs you" if len(waiting) == 1 else f"{len(named)} child runs need you"
    banner = Banner(level="warn", icon="child", head=head, children=named)
    if not is_cut:
        return [banner]
    tree = reverse("runs:tree", args=[data.run.pk])
    return [replace(banner, head=f"More than {head}", href=tree, label="Show the tree of runs")]


def _child(run: WaitingRun) -> ChildInNeed:
    label = _LABELS.get(run.reason) or f"Approve or deny {clip(run.tool, LINE).text or 'tool call'}"
    return ChildInNeed(reverse("runs:detail", args=[run.id]), label, clip(run.title, LINE).text or "(untitled)")


# --- Banners of the run itself ---

#: Seconds in the queue after which a missing worker is reported; workers claim a queued run within a few seconds.
WORKER_EXPECTED_S = 15
#: Seconds without an event after which a running run is reported as silent.
SILENT_S = 30
#: Maximum bytes of an error message in a banner; the run's last event has more.
ERROR_BYTES = 2048


def banners_of(data: RunData, lineage: Lineage, pending: list[RunCommand]) -> list[Banner]:
    """Return the banners of a run. `pending` are the commands in its inbox that are not applied yet."""
    return [*child_banners(data), *_own_banners(data, lineage, pending)]


def _own_banners(data: RunData, lineage: Lineage, pending: list[RunCommand]) -> list[Banner]:
    run = data.run
    if run.source != AgentRun.Source.NATIVE and run.state not in (RunStatus.FAILED, RunStatus.STOPPED):
        is_decided_here = run.status_reason == WaitReason.APPROVAL and session_subagents.is_subagent(run)
        of_runner = waits.waiting_banners(data, lineage) if is_decided_here else external_banners(run)
        return _as_waits(run, of_runner)
    of_status = _OF_STATUS.get(run.state)
    banners = _as_waits(run, of_status(data, lineage) if of_status is not None else [])
    banners += [_requested(command) for command in pending if command.type in _REQUESTS]
    count = sum(command.type in (inbox.Type.SEND, inbox.Type.REPLY) for command in pending)
    if count:
        when = "after the run is resumed" if run.state is RunStatus.PAUSED else "before its next model call"
        head = "1 undelivered message" if count == 1 else f"{count} undelivered messages"
        text = f"The agent receives {'it' if count == 1 else 'them'} {when}."
        banners.append(Banner(level="info", icon="send", head=head, text=text))
    if unknown_call_count(data) and run.status_reason != WaitReason.UNKNOWN_TOOL:
        banners.append(_unknown_calls(data))
    return banners


def _as_waits(run: AgentRun, banners: list[Banner]) -> list[Banner]:
    """Return the banners of a run's status. Banners of a wait or a pause move to the end of the timeline."""
    is_wait = run.state in (RunStatus.WAITING, RunStatus.PAUSED)
    return [replace(banner, is_wait=is_wait) for banner in banners]


def pending_commands(run: AgentRun) -> list[RunCommand]:
    """Return the commands in the run's inbox that are not applied yet; none for a run that has ended."""
    return [] if run.state.terminal else inbox.pending_commands(run.pk)


# --- One for each status ----------------------------------------------------------------------------------------------


def _queued(data: RunData, lineage: Lineage) -> list[Banner]:
    run = data.run
    # Only the runs of the same project: other projects are not visible here.
    earlier = AgentRun.objects.filter(project=run.project_id, status=RunStatus.QUEUED, queued_at__lt=run.queued_at)
    ahead = earlier.count()
    queue_text = (
        f"{ahead} run{'' if ahead == 1 else 's'} of this project {'is' if ahead == 1 else 'are'} ahead in the queue."
        if ahead
        else ""
    )
    if run.status_reason == WaitReason.RETRY_ALONE:
        head, text = waits.RETRIED_ALONE
        return [Banner(level="warn", icon="retry", head=head, text=text, since=data.run.log.last_event_at)]
    why = f"Requeued: {label_of(run.status_reason)}. " if run.status_reason else ""
    if (place := place_waits([run.pk]).get(run.pk)) is not None:
        text = f"{why}The run {place}. It starts when one is free. {queue_text}".rstrip()
        return [Banner(level="info", icon="queued", head="Waiting for a place", text=text, since=run.queued_at)]
    if queue_state.unserved([run.queue]):
        text = f"{why}Start a worker for this queue, or give the agent another queue."
        head = f"No worker serves the queue {run.queue}"
        return [Banner(level="warn", icon="queued", head=head, text=text, since=run.queued_at)]
    if database_clock.now() - run.queued_at < timedelta(seconds=WORKER_EXPECTED_S):
        return [Banner(level="info", icon="queued", head="Queued", text=why + queue_text, since=run.queued_at)]
    text = f"{why}{queue_text or 'No run of this project is ahead in the queue.'} Check that a worker is running."
    head = "No worker has claimed this run yet"
    return [Banner(level="warn", icon="queued", head=head, text=text, since=run.queued_at, command="agentops worker")]


def _running(data: RunData, lineage: Lineage) -> list[Banner]:
    run, now = data.run, database_clock.now()
    last_event_at = run.log.last_event_at
    if run.lease_expires_at is not None and run.lease_expires_at < now:
        text = "The worker's lease has expired. Another worker will continue the run."
        return [
            Banner(
                level="warn", icon="retry", head="Worker lost", text=text, at=last_event_at, since=run.lease_expires_at
            )
        ]
    banners = [*(_recovered(data) if data.recoveries else []), *waits.retry_banners(data)]
    if data.has_budgets:
        banners += _budget_warning(data)
    if last_event_at is not None and now - last_event_at > timedelta(seconds=SILENT_S):
        text = "The worker is alive. A model call or a tool call is still running."
        banners.append(Banner(level="info", icon="clock", head="No events", text=text, since=last_event_at))
    return banners


def _recovered(data: RunData) -> list[Banner]:
    """Return a banner while the worker that recovered the run still holds it."""
    is_lost = Attempt.objects.filter(run=data.run, epoch=data.run.lease_epoch - 1, end_reason__in=LOST).exists()
    event = newest_event(data.run.pk, EventType.RUN_RECOVERED) if is_lost else None
    if event is None:
        return []
    last_event_at = parse_time(payload_of(event).get("last_event_at"))
    text = f"Another worker continues the run (recovery {data.recoveries})."
    href, label = href_of(event), "Show in timeline"
    return [Banner(level="info", icon="retry", head="Worker lost", text=text, at=last_event_at, href=href, label=label)]


def _budget_warning(data: RunData) -> list[Banner]:
    event = newest_event(data.run.pk, EventType.BUDGET_WARNING)
    if event is None:
        return []
    payload = payload_of(event)
    text = clean(str(payload.get("message") or ""))
    head = "Budget not enforced: no price for the model"
    if used := payload.get("used"):
        head = f"Budget {budget_standing(str(used), str(payload.get('limit') or 0))}"
    href, label = href_of(event), "Show in timeline"
    return [Banner(level="warn", icon="clock", head=head, text=text, at=event.ts, href=href, label=label)]


def _paused(data: RunData, lineage: Lineage) -> list[Banner]:
    run, event = data.run, newest_event(data.run.pk, EventType.RUN_PAUSED)
    payload = payload_of(event) if event is not None else {}
    by = actor_label(payload.get("by"))
    text = _PAUSES.get(run.status_reason, "")
    detail = clean(str(payload.get("detail") or ""))
    head = f"Paused by {by}" if by else "Paused"
    if run.status_reason == PauseReason.ERROR and run.error_type:
        head = f"Paused after an error: {label_of(run.error_type)}"
    if run.status_reason == PauseReason.ESCALATED:
        head = f"Escalated by {by}" if by else "Escalated"
    at = event.ts if event is not None else None
    return [Banner(level="warn", icon="paused", head=head, text=text, at=at, quote=detail)]


def _resumed(data: RunData, lineage: Lineage) -> list[Banner]:
    event = newest_event(data.run.pk, EventType.RUN_RESUMED)
    by = actor_label(payload_of(event).get("by")) if event is not None else ""
    href = reverse("runs:detail", args=[lineage.resumed_as]) if lineage.resumed_as else ""
    head = f"Resumed by {by}" if by else "Resumed"
    text = "This run has ended. Another run continues it."
    return [
        Banner(
            level="info", icon="resumed", head=head, text=text, at=data.run.completed_at, href=href,
            label="View the run that continues it",
        )
    ]  # fmt: skip


def _failed(data: RunData, lineage: Lineage) -> list[Banner]:
    run = data.run
    head = f"Failed: {label_of(run.error_type)}" if run.error_type else "Failed"
    quote = clip(run.error_message, ERROR_BYTES).text
    return [Banner(level="error", icon="failed", head=head, at=run.completed_at, quote=quote)]


def _stopped(data: RunData, lineage: Lineage) -> list[Banner]:
    if data.run.is_abandoned:
        return [abandoned_banner(data.run)]
    event = newest_event(data.run.pk, EventType.RUN_STOPPED)
    payload = payload_of(event) if event is not None else {}
    by = actor_label(payload.get("by"))
    head = f"Stopped by {by}" if by else "Stopped"
    reason = data.run.status_reason
    text = "" if reason in ("", "operator") else f"{label_of(reason).capitalize()}."
    quote = clean(str(payload.get("message") or "")) if reason == "repeated_calls" else ""
    return [Banner(level="info", icon="stopped", head=head, text=text, at=data.run.completed_at, quote=quote)]


_OF_STATUS: dict[RunStatus, Callable[[RunData, Lineage], list[Banner]]] = {
    RunStatus.QUEUED: _queued,
    RunStatus.RUNNING: _running,
    RunStatus.WAITING: waits.waiting_banners,
    RunStatus.PAUSED: _paused,
    RunStatus.RESUMED: _resumed,
    RunStatus.FAILED: _failed,
    RunStatus.STOPPED: _stopped,
}
_PAUSES: dict[str, str] = {
    PauseReason.MAX_STEPS: "The step limit is reached. A resumed run gets as many steps again, up to the limit of the "
    "lineage.",
    PauseReason.OPERATOR: "Resume or stop the run to proceed.",
    PauseReason.ESCALATED: "A decision is required: resume the run, optionally with a message, or stop it.",
    PauseReason.LOG_LIMIT: "The log has reached its maximum number of events.",
    PauseReason.BUDGET: "A budget is used up. A resumed run gets the same budget again. The daily budget of a project "
    "applies to all its runs together.",
    PauseReason.FIXTURE_EXHAUSTED: "The recording has no more responses. To continue, fork the run with another model.",
    PauseReason.POISON_STEP: "The worker died each time this step ran alone. Check what its tools do, then "
    "resume or stop the run. A resumed run is retried alone again.",
    PauseReason.ENGINE_ERROR: "An error inside agentops interrupted this step three times. No worker died. Report the "
    "error with its traceback from the log, then resume or stop the run.",
    PauseReason.ERROR: "A retry does not fix this error. Remove its cause, then resume the run.",
}
_REQUESTS: dict[str, tuple[str, str]] = {
    inbox.Type.STOP: ("Stop requested", "The worker stops the current step within a few seconds."),
    inbox.Type.PAUSE: ("Pause requested", "The run pauses when the tool calls of the current step have ended."),
}


def _requested(command: RunCommand) -> Banner:
    head, text = _REQUESTS[command.type]
    by = clean(command.created_by)
    return Banner(level="warn", icon=command.type, head=f"{head} by {by}", text=text, at=command.received_at)


def _unknown_calls(data: RunData) -> Banner:
    count = unknown_call_count(data)
    head = "1 tool call with an unknown outcome" if count == 1 else f"{count} tool calls with an unknown outcome"
    href = f"{reverse('runs:detail', args=[data.run.pk])}?show=errors"
    cause = "The worker stopped, or the call timed out, before a result was saved."
    if data.run.source != AgentRun.Source.NATIVE:
        cause = "The record has no result of it." if count == 1 else "The record has no results of them."
    text = f"{cause} The call may have taken effect."
    return Banner(level="warn", icon="unknown", head=head, text=text, href=href, label="Show errors")
