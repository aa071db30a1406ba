"""The banner of a waiting run: the cause of the wait, and when the run continues.

Two or three queries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from runs.actions import unknown_calls
from runs.lifecycle import questions
from runs.lifecycle.questions import OpenQuestion
from runs.models import AgentRun, AgentRunToolCall, Approval
from runs.pages.approvals.shown_approval import shown
from runs.pages.run.banner import AgentQuestion, Banner, OpenCall, href_of, label_of, newest_event, parse_time
from runs.pages.run.facts import RunData
from runs.pages.run.lineage import Lineage
from runs.pages.timeline.card_contents import one_line, whole_number
from runs.pages.timeline.cards import LINE
from runs.statuses import POLICY_WAITS, Effect, WaitReason
from timeline.display import clean, clip
from timeline.event_rows import payload_of, until_of
from timeline.events import EventType
from timeline.models import Event

#: Maximum calls in a banner; more appear when these are resolved.
MAX_CALLS = 20
MAX_CHOICES = 20
#: Maximum bytes of a question or an error; the timeline has more.
TEXT_BYTES = 2048

RETRIED_ALONE = (
    "Being retried alone after a worker died",
    "The worker died during this step, so the step runs again without other runs. The run continues automatically.",
)
_OTHERS: dict[str, tuple[str, str]] = {
    WaitReason.CHILDREN: ("Waiting for child runs", "The run continues automatically when they have ended."),
    WaitReason.ON_ERROR: ("Error: a policy resumes the run", ""),
    WaitReason.ON_DEAD: ("Worker lost: a policy resumes the run", ""),
    WaitReason.RETRY_ALONE: RETRIED_ALONE,
}


def waiting_banners(data: RunData, lineage: Lineage) -> list[Banner]:
    """Return the banner of a waiting run."""
    run = data.run
    event = newest_event(run.pk, EventType.RUN_WAITING)
    head, text = _OTHERS.get(run.status_reason, ("Waiting", ""))
    level = "info" if run.not_before is not None else "warn"
    banner = Banner(
        level=level, icon="waiting", head=head, text=text, since=event.ts if event else None, until=run.not_before
    )
    if event is not None and event.ref_id:
        banner = replace(banner, href=href_of(event), label="Show tool call")
    more = _MORE.get(run.status_reason)
    return [banner if more is None else more(run, banner)]


# --- Waits for a person -----------------------------------------------------------------------------------------------


def _unknown_tool(run: AgentRun, banner: Banner) -> Banner:
    text = (
        "The worker stopped, or the call timed out, before a result was saved. Check whether the call took effect, "
        "then choose its outcome: the run continues with it. If you pause and resume the run instead, the model is "
        "told that the outcome is unknown."
    )
    return replace(
        banner, head="Unknown outcome of a tool call: choose what happened", text=text, calls=_open_calls(run)
    )


def _open_calls(run: AgentRun) -> list[OpenCall]:
    return list(map(open_call, unknown_calls.unresolved(run)[:MAX_CALLS]))


def open_call(call: AgentRunToolCall) -> OpenCall:
    """Return a call with an unknown outcome for display."""
    name, is_unsafe = clip(call.tool_name, LINE).text, call.effect == Effect.AT_MOST_ONCE
    return OpenCall(call.pk, name, call.step_number, one_line(call.input), is_unsafe)


def _input(run: AgentRun, banner: Banner) -> Banner:
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
    approval = (
        Approval.objects.select_related("run", "project", "call").filter(run=run, state=Approval.State.PENDING).first()
    )
    if approval is None:
        return replace(banner, head="Waiting for approval")
    return replace(
        banner, head="A tool call waits for approval", text="The same run continues when it is approved or denied.",
        until_word="expires", label="Show in timeline", approval=shown(approval, may_decide=False),
    )  # fmt: skip


# --- Waits for a time -------------------------------------------------------------------------------------------------


def _policy(run: AgentRun, banner: Banner) -> Banner:
    """Add the attempt and the error to the banner of a run that a policy resumes."""
    event = newest_event(run.pk, EventType.POLICY_APPLIED)
    payload = payload_of(event) if event is not None else {}
    attempt, attempts = whole_number(payload.get("attempt")), whole_number(payload.get("attempts"))
    attempt_text = f" This is attempt {attempt}{f' of {attempts}' if attempts else ''}." if attempt else ""
    text = f"The run continues as a new run.{attempt_text}"
    quote = clip(run.error_message, TEXT_BYTES).text
    return replace(banner, text=text, icon="retry", since=None, until_word="at", quote=quote)


def _cooldown(run: AgentRun, banner: Banner) -> Banner:
    """Add the provider's error, the next attempt and the deadline to the banner."""
    banner = replace(banner, head="Cooling down", text="The run continues automatically and occupies no worker.")
    event = newest_event(run.pk, EventType.RETRY_SCHEDULED, EventType.LLM_TURN_END)
    if event is None or event.type != EventType.RETRY_SCHEDULED:
        return banner
    payload = payload_of(event)
    failure, quote = _failure(event)
    head = _OUTAGES.get(str(payload.get("error_type") or ""), "The model call failed")
    until = parse_time(payload.get("until"))
    # With the date: an outage may last past midnight.
    moment = f"{until:%Y-%m-%d %H:%M:%S %Z}" if until is not None else ""
    deadline = f" If the provider is not available by {moment}, the run pauses." if moment else ""
    text = f"{failure} {banner.text}{deadline}"
    return replace(banner, head=head, text=text, level="warn", icon="retry", quote=quote, until_word="next attempt at")


_OUTAGES: dict[str, str] = {
    "no_internet": "The model provider is not reachable",
    "timeout": "The model provider does not respond in time",
    "rate_limited": "The model provider limits the rate of requests",
    "overloaded": "The model provider is overloaded",
    "incomplete_answer": "The model provider sends incomplete responses",
    "server_error": "The model provider has an internal error",
}
_MORE: dict[str, Callable[[AgentRun, Banner], Banner]] = {
    WaitReason.UNKNOWN_TOOL: _unknown_tool,
    WaitReason.APPROVAL: _approval,
    WaitReason.INPUT: _input,
    WaitReason.COOLDOWN: _cooldown,
    **dict.fromkeys(POLICY_WAITS, _policy),
}


def retry_banners(data: RunData) -> list[Banner]:
    """Return a banner while a failed model call is retried: the running attempt, or when the next one starts."""
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
    number = (whole_number(payload_of(scheduled).get("attempt")) or 0) + 1
    of = whole_number(payload_of(scheduled).get("max_attempts"))
    head = f"Attempt {number}{f' of {of}' if of else ''} {'is running' if is_running else 'is scheduled'}"
    until: datetime | None = None if is_running else until_of(scheduled)
    return [
        Banner(
            level="warn", icon="retry", head=head, text=failure, quote=quote, until=until, until_word="at",
            since=event.ts if is_running else None,
        )
    ]  # fmt: skip


def _failure(scheduled: Event) -> tuple[str, str]:
    """Return a sentence about the failed attempt, and its error message."""
    payload = payload_of(scheduled)
    number, of = whole_number(payload.get("attempt")), whole_number(payload.get("max_attempts"))
    attempt_text = f"Attempt {number}{f' of {of}' if of else ''}" if number else "The last attempt"
    kind = label_of(str(payload.get("error_type") or ""))
    return f"{attempt_text} of the model call failed{f': {kind}' if kind else ''}.", clean(
        str(payload.get("error") or "")
    )
