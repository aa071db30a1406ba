"""The banners of runs that wait, are retried, or run in another program: the cause, and when the run continues.

Two or three queries; for an external run, at most one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

from django.conf import settings

from agentops.base import database_clock
from runs.actions import unknown_calls
from runs.lifecycle import questions
from runs.lifecycle.questions import OpenQuestion
from runs.models import AgentRun, AgentRunToolCall, Approval, ExternalRun
from runs.pages.run import remote_banners
from runs.pages.run.banner import (
    AgentQuestion,
    Banner,
    OpenCall,
    executor,
    href_of,
    newest_event,
    parse_time,
    reason_text,
    shown_approval,
)
from runs.pages.run.facts import RunData
from runs.pages.timeline.card_contents import one_line, whole_number
from runs.pages.timeline.cards import LINE
from runs.statuses import POLICY_WAITS, Effect, RunStatus, WaitReason
from timeline.display import clean, clip
from timeline.events import EventType
from timeline.models import Event
from timeline.shown_events import payload_of, until_of

#: Maximum calls in a banner; more appear when these are resolved.
MAX_CALLS = 20
#: Maximum suggested answers of a question.
MAX_CHOICES = 20
#: Maximum bytes of a question or an error; the timeline has more.
TEXT_BYTES = 2048

#: Head and text of the banner of a run that is retried alone.
RETRIED_ALONE = (
    "Being retried alone after a worker died",
    "The worker died during this step, so the step runs again without other runs. The run continues automatically.",
)
#: Reason of a wait → head and text of the banner, unless `_COMPLETE` sets them.
_HEADS_AND_TEXTS: dict[str, tuple[str, str]] = {
    WaitReason.CHILDREN: ("Waiting for child runs", "The run continues automatically when they have ended."),
    WaitReason.ON_ERROR: ("Error: a policy resumes the run", ""),
    WaitReason.ON_DEAD: ("Worker lost: a policy resumes the run", ""),
    WaitReason.ON_CUT: ("Answer cut off: a policy resumes the run", ""),
    WaitReason.ON_REFUSED: ("Answer refused: a policy resumes the run", ""),
    WaitReason.RETRY_ALONE: RETRIED_ALONE,
    WaitReason.TIMER: ("Sleeping", "The run continues automatically and occupies no process."),
    WaitReason.SIGNAL: ("Waiting for a signal", ""),
}


def waiting_banners(data: RunData) -> list[Banner]:
    """Return the banner of a waiting run, as the only item of a list."""
    run = data.run
    event = newest_event(run.pk, EventType.RUN_WAITING)
    head, text = _HEADS_AND_TEXTS.get(run.status_reason, ("Waiting", ""))
    level, since = "info" if run.not_before is not None else "warn", event.ts if event else None
    banner = Banner(level=level, icon="waiting", head=head, text=text, since=since, until=run.not_before)
    if event is not None and event.ref_id:
        banner = replace(banner, href=href_of(event), label="Show step" if run.is_durable else "Show tool call")
    complete = _COMPLETE.get(run.status_reason)
    return [banner if complete is None else complete(run, banner)]


# --- Waits for a person -----------------------------------------------------------------------------------------------


def _unknown_tool(run: AgentRun, banner: Banner) -> Banner:
    """Add the calls with an unknown outcome."""
    text = (
        "The worker stopped, or the call timed out, before a result was saved. Check whether the call took effect, "
        "then choose its outcome: the run continues with it. If you pause and resume the run instead, the model is "
        "told that the outcome is unknown."
    )
    if run.is_durable:
        text = (
            f"The {executor(run)} stopped before it saved a result of this step. Check whether the step took effect, "
            "then choose its outcome: the run continues with it. If the step runs again, its effect may happen twice."
        )
    head = "Unknown outcome of a tool call: choose what happened"
    calls = [open_call(call) for call in unknown_calls.unresolved(run)[:MAX_CALLS]]
    return replace(banner, head=head, text=text, calls=calls)


def open_call(call: AgentRunToolCall) -> OpenCall:
    """Return a call with an unknown outcome for display."""
    name, is_unsafe = clip(call.tool_name, LINE).text, call.effect == Effect.AT_MOST_ONCE
    return OpenCall(call.pk, name, call.step_number, one_line(call.input), is_unsafe)


def _input(run: AgentRun, banner: Banner) -> Banner:
    """Add the question of the agent."""
    pending = questions.open_question(run)
    if pending is None:
        return replace(banner, head="Waiting for an answer", text="Send a message to continue the run.")
    head = "The front end has to run a tool" if pending.is_for_front_end else "The agent asks a question"
    return replace(banner, head=head, text="", label="Show in timeline", question=question_of(pending))


def question_of(pending: OpenQuestion) -> AgentQuestion:
    """Return a question for display."""
    choices = [(choice, clip(choice, LINE).text) for choice in pending.choices[:MAX_CHOICES] if choice.strip()]
    return AgentQuestion(clip(pending.text, TEXT_BYTES).text, choices)


def _approval(run: AgentRun, banner: Banner) -> Banner:
    """Add the pending approval of a tool call."""
    approvals = Approval.objects.select_related("run", "call")
    approval = approvals.filter(run=run, state=Approval.State.PENDING).first()
    if approval is None:
        return replace(banner, head="Waiting for approval")
    return replace(
        banner,
        head="A tool call waits for approval",
        text="The run continues when the call is approved or denied.",
        until_word="expires",
        label="Show in timeline",
        # Banners are the same for all users: the head of the page then sets `may_decide` for its user.
        approval=shown_approval(approval, may_decide=False),
    )


# --- Waits for a time -------------------------------------------------------------------------------------------------


def _policy(run: AgentRun, banner: Banner) -> Banner:
    """Add the attempt, and the error after which a policy resumes the run."""
    event = newest_event(run.pk, EventType.POLICY_APPLIED)
    payload = payload_of(event) if event is not None else {}
    attempt, attempts = whole_number(payload.get("attempt")), whole_number(payload.get("attempts"))
    attempt_text = f" This is attempt {attempt}{f' of {attempts}' if attempts else ''}." if attempt else ""
    text = f"The run continues as a new run.{attempt_text}"
    quote = clip(run.error_message, TEXT_BYTES).text
    return replace(banner, text=text, icon="retry", since=None, until_word="at", quote=quote)


def _cooldown(run: AgentRun, banner: Banner) -> Banner:
    """Add the provider's error, and the time after which the run pauses."""
    banner = replace(banner, head="Cooling down", text="The run continues automatically and occupies no worker.")
    event = newest_event(run.pk, EventType.RETRY_SCHEDULED, EventType.LLM_TURN_END)
    if event is None or event.type != EventType.RETRY_SCHEDULED:
        return banner
    payload = payload_of(event)
    failure, quote = _failure(event)
    head = _OUTAGE_HEADS.get(str(payload.get("error_type") or ""), "The model call failed")
    until = parse_time(payload.get("until"))
    text = f"{failure} {banner.text}"
    if until is not None:
        # With the date: an outage may last past midnight.
        text += f" If the provider is not available by {until:%Y-%m-%d %H:%M:%S %Z}, the run pauses."
    return replace(banner, head=head, text=text, level="warn", icon="retry", quote=quote, until_word="next attempt at")


#: Type of an error of the provider → head of the banner.
_OUTAGE_HEADS: dict[str, str] = {
    "no_internet": "The model provider is not reachable",
    "timeout": "The model provider does not respond in time",
    "rate_limited": "The model provider limits the rate of requests",
    "overloaded": "The model provider is overloaded",
    "incomplete_answer": "The model provider sends incomplete responses",
    "server_error": "The model provider has an internal error",
}
#: Reason of a wait → function that completes the banner.
_COMPLETE: dict[str, Callable[[AgentRun, Banner], Banner]] = {
    WaitReason.UNKNOWN_TOOL: _unknown_tool,
    WaitReason.APPROVAL: _approval,
    WaitReason.INPUT: _input,
    WaitReason.COOLDOWN: _cooldown,
    WaitReason.SIGNAL: remote_banners.awaited_signal,
    **dict.fromkeys(POLICY_WAITS, _policy),
}


def retry_banners(data: RunData) -> list[Banner]:
    """Return a banner while a failed model call is retried: about the running attempt, or the scheduled one."""
    run = data.run
    types = (EventType.RETRY_SCHEDULED, EventType.LLM_TURN_START, EventType.LLM_TURN_END)
    event = newest_event(run.pk, *types) if data.has_failures else None
    if event is None or event.type == EventType.LLM_TURN_END:
        return []
    is_running = event.type == EventType.LLM_TURN_START
    if is_running and not whole_number(payload_of(event).get("attempt")):
        return []
    scheduled = newest_event(run.pk, EventType.RETRY_SCHEDULED) if is_running else event
    if scheduled is None or payload_of(scheduled).get("what") != "llm":
        return []
    failure, quote = _failure(scheduled)
    head = f"{_attempt_text(scheduled, 1)} {'is running' if is_running else 'is scheduled'}"
    banner = Banner(level="warn", icon="retry", head=head, text=failure, quote=quote, until_word="at")
    return [replace(banner, since=event.ts) if is_running else replace(banner, until=until_of(scheduled))]


def _failure(scheduled: Event) -> tuple[str, str]:
    """Return a sentence about the failed attempt, and its error message."""
    payload = payload_of(scheduled)
    attempt_text = _attempt_text(scheduled, 0) if whole_number(payload.get("attempt")) else "The last attempt"
    kind = reason_text(str(payload.get("error_type") or ""))
    text = f"{attempt_text} of the model call failed{f': {kind}' if kind else ''}."
    return text, clean(str(payload.get("error") or ""))


def _attempt_text(scheduled: Event, later: int) -> str:
    """Return "Attempt 2 of 3" for the attempt that failed, or with `later=1` for the next one."""
    payload = payload_of(scheduled)
    most = whole_number(payload.get("max_attempts"))
    return f"Attempt {whole_number(payload.get('attempt')) + later}{f' of {most}' if most else ''}"


_REPORTED = "Its runner reports this. It continues when the runner sends further events."
#: Reason of a wait of an external run → what it waits for, and where to act.
_EXTERNAL_WAITS: dict[str, tuple[str, str]] = {
    WaitReason.INPUT: ("Waits for its user", "The session continues where it runs, not here."),
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
        # A worker detects silence (runs.external.recorded_ends). Without a worker, detect it here.
        external = ExternalRun.objects.filter(run=run).first()
        since = (external and external.silent_since) or since
        if since is None or database_clock.now() - since <= timedelta(seconds=settings.AGENTOPS_SILENCE_S):
            return []
        text = "Its runner has sent no event since then. It may be at work, have ended, or have lost its connection."
        text += _abandon_text()
        return [Banner(level="warn", icon="clock", head="Runner silent", text=text, since=since)]
    if run.state is RunStatus.WAITING:
        head, text = external_wait(run)
        return [Banner(level="info", icon="clock", head=head, text=text, since=since)]
    if run.state is RunStatus.PAUSED:
        return [Banner(level="info", icon="paused", head="Paused", text=_REPORTED, since=since)]
    return []


def abandoned_banner(run: AgentRun) -> Banner:
    """Return the banner of a run that was ended as abandoned."""
    text = "Nothing has come from its program since then. The next event reopens the run."
    return Banner(level="info", icon="stopped", head="Abandoned", text=text, at=run.completed_at)


def _abandon_text() -> str:
    """Return a sentence about when a silent run ends automatically; empty if it never does."""
    days = settings.AGENTOPS_ABANDON_DAYS
    return f" After {days} day{'' if days == 1 else 's'} without an event, the run ends as abandoned." if days else ""


def external_wait(run: AgentRun) -> tuple[str, str]:
    """Return what an external run waits for, in a few words, and where to act."""
    return _EXTERNAL_WAITS.get(run.status_reason, (f"Waits: {reason_text(run.status_reason)}", _REPORTED))
