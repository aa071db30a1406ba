"""The banners of a run page: why the run does not progress, who must act, and any lost work. At most five queries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

from django.urls import reverse

from agentops.base import database_clock
from runs.lifecycle import inbox, session_subagents
from runs.models import AgentRun, Attempt, RunCommand
from runs.pages.run import remote_banners, waits
from runs.pages.run.banner import (
    RESUME_EFFECTS,
    Banner,
    ChildInNeed,
    actor_label,
    executor,
    href_of,
    newest_event,
    parse_time,
    reason_text,
)
from runs.pages.run.facts import RunData, unknown_call_count
from runs.pages.run.lineage import Lineage
from runs.pages.run.waits import abandoned_banner, external_banners
from runs.pages.timeline.cards import LINE
from runs.queries import queue_state
from runs.queries.durations import place_waits
from runs.queries.waiting_for_people import WaitingRun, waiting_below
from runs.statuses import LOST, PauseReason, RunStatus, WaitReason
from timeline.display import clean, clip
from timeline.events import EventType
from timeline.events.notice import budget_standing
from timeline.shown_events import payload_of

#: Runs that the banner names; the tree has the others.
MAX_NAMED = 5
#: Reason of a wait for a person → label of the link; an approval names its tool, and a paused run has no reason.
_ACTION_LABELS = {
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
    named = [_child(run) for run in waiting[:MAX_NAMED]]
    head = "1 child run needs you" if len(waiting) == 1 else f"{len(named)} child runs need you"
    banner = Banner(level="warn", icon="child", head=head, children=named)
    if len(waiting) <= MAX_NAMED:
        return [banner]
    tree = reverse("runs:tree", args=[data.run.pk])
    return [replace(banner, head=f"More than {head}", href=tree, label="Show the tree of runs")]


def _child(run: WaitingRun) -> ChildInNeed:
    label = _ACTION_LABELS.get(run.reason) or f"Approve or deny {clip(run.tool, LINE).text or 'tool call'}"
    return ChildInNeed(reverse("runs:detail", args=[run.id]), label, clip(run.title, LINE).text or "(untitled)")


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
    """Return the banners about the run itself: its status, pending commands, and unknown outcomes."""
    run = data.run
    if run.source != AgentRun.Source.NATIVE and run.state not in (RunStatus.FAILED, RunStatus.STOPPED):
        is_decided_here = run.status_reason == WaitReason.APPROVAL and session_subagents.is_subagent(run)
        return _mark_waits(run, waits.waiting_banners(data) if is_decided_here else external_banners(run))
    if run.state is RunStatus.RESUMED:
        banners = [_resumed(data, lineage)]
    else:
        of_status = _OF_STATUS.get(run.state)
        banners = _mark_waits(run, of_status(data) if of_status is not None else [])
    banners += [_requested(run, command) for command in pending if command.type in _REQUESTS]
    banners += [*_undelivered_messages(run, pending), *remote_banners.undelivered_signals(pending)]
    if unknown_call_count(data) and run.status_reason != WaitReason.UNKNOWN_TOOL:
        banners.append(_unknown_calls(data))
    return banners


def _undelivered_messages(run: AgentRun, pending: list[RunCommand]) -> list[Banner]:
    """Return a banner if messages to the agent are in the inbox."""
    count = sum(command.type in (inbox.Type.SEND, inbox.Type.REPLY) for command in pending)
    if not count:
        return []
    when = "when its code asks for messages" if run.is_durable else "before its next model call"
    when = "after the run is resumed" if run.state is RunStatus.PAUSED else when
    head = "1 undelivered message" if count == 1 else f"{count} undelivered messages"
    text = f"The agent receives {'it' if count == 1 else 'them'} {when}."
    return [Banner(level="info", icon="send", head=head, text=text)]


def _mark_waits(run: AgentRun, banners: list[Banner]) -> list[Banner]:
    """Return the banners with `is_wait` set if the run waits or is paused."""
    is_wait = run.state in (RunStatus.WAITING, RunStatus.PAUSED)
    return [replace(banner, is_wait=is_wait) for banner in banners]


def pending_commands(run: AgentRun) -> list[RunCommand]:
    """Return the commands in the run's inbox that are not applied yet; none for a run that has ended."""
    return [] if run.state.terminal else inbox.pending_commands(run.pk)


def _queued(data: RunData) -> list[Banner]:
    """Return why a queued run has not started: the most specific cause."""
    run = data.run
    if run.status_reason == WaitReason.RETRY_ALONE:
        head, text = waits.RETRIED_ALONE
        return [Banner(level="warn", icon="retry", head=head, text=text, since=data.run.log.last_event_at)]
    why = f"Requeued: {reason_text(run.status_reason)}. " if run.status_reason else ""
    ahead = _queue_text(run)
    queued = Banner(level="info", icon="queued", head="Queued", text=f"{why}{ahead}", since=run.queued_at)
    place_wait = place_waits([run.pk]).get(run.pk)
    if place_wait is not None:
        text = f"{why}The run {place_wait}. It starts when another run ends or waits. {ahead}".rstrip()
        return [replace(queued, head="Limit of running runs reached", text=text)]
    if run.is_remote:
        text = f"{why}{ahead}".rstrip()
        return [remote_banners.queued(run, data.agent["agent_id"], replace(queued, text=text))]
    if run.is_packaged:
        text = f"{why}{ahead}".rstrip()
        missing = remote_banners.without_code(run, data.agent["agent_id"], replace(queued, text=text))
        if missing is not None:
            return [missing]
    if queue_state.unserved([run.queue]):
        text = f"{why}Start a worker for this queue, or give the agent another queue."
        return [replace(queued, level="warn", head=f"No worker serves the queue {run.queue}", text=text)]
    if database_clock.now() - run.queued_at < timedelta(seconds=WORKER_EXPECTED_S):
        return [queued]
    text = f"{why}{ahead or 'No run of this project is ahead in the queue.'} Check that a worker is running."
    head = "No worker has claimed this run yet"
    return [replace(queued, level="warn", head=head, text=text, command="agentops worker")]


def _queue_text(run: AgentRun) -> str:
    """Return how many runs are ahead of a queued run; empty without any. Counts only runs of its own project."""
    ahead = AgentRun.objects.filter(project=run.project_id, status=RunStatus.QUEUED, queued_at__lt=run.queued_at)
    count = ahead.count()
    verb = "run of this project is" if count == 1 else "runs of this project are"
    return f"{count} {verb} ahead in the queue." if count else ""


def _running(data: RunData) -> list[Banner]:
    """Return banners about a lost worker, a retry, a budget, and a time without events."""
    run, now, who = data.run, database_clock.now(), executor(data.run)
    lost = f"{who.capitalize()} lost"
    last_event_at, lease_end = run.log.last_event_at, run.lease_expires_at
    if lease_end is not None and lease_end < now:
        text = f"The {who}'s lease has expired. Another {who} will continue the run."
        return [Banner(level="warn", icon="retry", head=lost, text=text, at=last_event_at, since=lease_end)]
    banners = [*(_recovered(data) if data.recoveries else []), *waits.retry_banners(data)]
    if data.has_budgets:
        banners += _budget_warning(data)
    if last_event_at is not None and now - last_event_at > timedelta(seconds=SILENT_S):
        text = f"The {who} is alive. A model call or a tool call is still running."
        banners.append(Banner(level="info", icon="clock", head="No events", text=text, since=last_event_at))
    return banners


def _recovered(data: RunData) -> list[Banner]:
    """Return a banner while the run is executed by the worker that recovered it from a lost one."""
    is_lost = Attempt.objects.filter(run=data.run, epoch=data.run.lease_epoch - 1, end_reason__in=LOST).exists()
    event = newest_event(data.run.pk, EventType.RUN_RECOVERED) if is_lost else None
    if event is None:
        return []
    last_event_at = parse_time(payload_of(event).get("last_event_at"))
    who = executor(data.run)
    head, text = f"{who.capitalize()} lost", f"Another {who} continues the run (recovery {data.recoveries})."
    href, label = href_of(event), "Show in timeline"
    return [Banner(level="info", icon="retry", head=head, text=text, at=last_event_at, href=href, label=label)]


def _budget_warning(data: RunData) -> list[Banner]:
    """Return a banner with the newest warning about a budget, if there is one."""
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


def _paused(data: RunData) -> list[Banner]:
    run, event = data.run, newest_event(data.run.pk, EventType.RUN_PAUSED)
    payload = payload_of(event) if event is not None else {}
    by = actor_label(payload.get("by"))
    own = remote_banners.PAUSE_TEXTS if run.is_remote else remote_banners.DURABLE_PAUSE_TEXTS if run.is_durable else {}
    text = (_PAUSE_TEXTS | own).get(run.status_reason, "")
    detail = clean(str(payload.get("detail") or ""))
    head = f"Paused by {by}" if by else "Paused"
    if run.status_reason == PauseReason.ERROR and run.error_type:
        head = f"Paused after an error: {reason_text(run.error_type)}"
    if run.status_reason == PauseReason.ESCALATED:
        head = f"Escalated by {by}" if by else "Escalated"
    banner = Banner(level="warn", icon="paused", head=head, text=text, quote=detail)
    if run.status_reason in RESUME_EFFECTS:
        banner = _of_answer(run, banner)
    return [replace(banner, at=event.ts if event is not None else None)]


def _of_answer(run: AgentRun, banner: Banner) -> Banner:
    """Add the effect of a resume, its form, and the answer because of which the run paused."""
    head = f"Paused: {reason_text(run.status_reason)}"
    answer = newest_event(run.pk, EventType.LLM_TURN_END)
    href, label = (href_of(answer), "Show the answer") if answer is not None else ("", "")
    text = banner.text if run.is_durable else RESUME_EFFECTS[run.status_reason]
    return replace(banner, head=head, text=text, href=href, label=label, offers_resume=True)


def _resumed(data: RunData, lineage: Lineage) -> Banner:
    event = newest_event(data.run.pk, EventType.RUN_RESUMED)
    by = actor_label(payload_of(event).get("by")) if event is not None else ""
    href = reverse("runs:detail", args=[lineage.resumed_as]) if lineage.resumed_as else ""
    head, text = f"Resumed by {by}" if by else "Resumed", "This run has ended. Another run continues it."
    label, at = "View the run that continues it", data.run.completed_at
    return Banner(level="info", icon="resumed", head=head, text=text, at=at, href=href, label=label)


def _failed(data: RunData) -> list[Banner]:
    run = data.run
    head = f"Failed: {reason_text(run.error_type)}" if run.error_type else "Failed"
    quote = clip(run.error_message, ERROR_BYTES).text
    return [Banner(level="error", icon="failed", head=head, at=run.completed_at, quote=quote)]


def _stopped(data: RunData) -> list[Banner]:
    if data.run.is_abandoned:
        return [abandoned_banner(data.run)]
    event = newest_event(data.run.pk, EventType.RUN_STOPPED)
    payload = payload_of(event) if event is not None else {}
    by = actor_label(payload.get("by"))
    head = f"Stopped by {by}" if by else "Stopped"
    reason = data.run.status_reason
    text = "" if reason in ("", "operator") else f"{reason_text(reason).capitalize()}."
    quote = clean(str(payload.get("message") or "")) if reason == "repeated_calls" else ""
    return [Banner(level="info", icon="stopped", head=head, text=text, at=data.run.completed_at, quote=quote)]


_OF_STATUS: dict[RunStatus, Callable[[RunData], list[Banner]]] = {
    RunStatus.QUEUED: _queued,
    RunStatus.RUNNING: _running,
    RunStatus.WAITING: waits.waiting_banners,
    RunStatus.PAUSED: _paused,
    RunStatus.FAILED: _failed,
    RunStatus.STOPPED: _stopped,
}
#: Reason of a pause → what to do about it.
_PAUSE_TEXTS: dict[str, str] = {
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
#: Type of a pending command → head and text of the banner.
_REQUESTS: dict[str, tuple[str, str]] = {
    inbox.Type.STOP: ("Stop requested", "The worker stops the current step within a few seconds."),
    inbox.Type.PAUSE: ("Pause requested", "The run pauses when the tool calls of the current step have ended."),
}


def _requested(run: AgentRun, command: RunCommand) -> Banner:
    head, text = (remote_banners.REQUESTS if run.is_remote else _REQUESTS)[command.type]
    by = clean(command.created_by)
    return Banner(level="warn", icon=command.type, head=f"{head} by {by}", text=text, at=command.received_at)


def _unknown_calls(data: RunData) -> Banner:
    count = unknown_call_count(data)
    head = "1 tool call with an unknown outcome" if count == 1 else f"{count} tool calls with an unknown outcome"
    href = f"{reverse('runs:detail', args=[data.run.pk])}?show=errors"
    cause = f"The {executor(data.run)} stopped, or the call timed out, before a result was saved."
    if data.run.source != AgentRun.Source.NATIVE:
        cause = "The record has no result of it." if count == 1 else "The record has no results of them."
    text = f"{cause} The call may have taken effect."
    return Banner(level="warn", icon="unknown", head=head, text=text, href=href, label="Show errors")
