"""What a run waits for, and when it goes on: an answer, a word about a call, its policy's time, the next try.

Two or three queries for each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from runs.actions import unknown_calls
from runs.lifecycle import questions
from runs.models import AgentRun
from runs.pages.run.banner import AskedPerson, Banner, OpenCall, last, moment, place_of, words
from runs.pages.run.facts import Loaded
from runs.pages.run.lineage import Lineage
from runs.pages.timeline.card_contents import one_line, whole_number
from runs.pages.timeline.cards import LINE
from runs.statuses import POLICY_WAITS, Effect, WaitReason
from timeline.event_rows import payload_of, until_of
from timeline.events import EventType
from timeline.models import Event
from timeline.shown import clean, clip

#: A turn waits for one after the other.
MOST_CALLS = 20
MOST_CHOICES = 20
#: Of somebody's text; the timeline has more.
TEXT_BYTES = 2048

RETRIED_ALONE = (
    "Being retried alone after a worker died",
    "The worker died during this step, so the step runs again without other runs beside it. The run goes on by itself.",
)
_OTHERS: dict[str, tuple[str, str]] = {
    WaitReason.APPROVAL: ("Waiting for an approval", "The call goes on when somebody has approved or denied it."),
    WaitReason.CHILDREN: ("Waiting for its child runs", "It goes on by itself when they have ended."),
    WaitReason.ON_ERROR: ("An error: its policy resumes it", ""),
    WaitReason.ON_DEAD: ("Its worker was lost: its policy resumes it", ""),
    WaitReason.RETRY_ALONE: RETRIED_ALONE,
}


def waiting(found: Loaded, lineage: Lineage) -> list[Banner]:
    run = found.run
    event = last(run.pk, EventType.RUN_WAITING)
    head, text = _OTHERS.get(run.status_reason, ("Waiting", ""))
    level = "info" if run.not_before is not None else "warn"
    banner = Banner(
        level=level, icon="waiting", head=head, text=text, since=event.ts if event else None, until=run.not_before
    )
    if event is not None and event.ref_id:
        banner = replace(banner, href=place_of(event), label="Show the call")
    more = _MORE.get(run.status_reason)
    return [banner if more is None else more(run, banner)]


# --- For somebody's word ----------------------------------------------------------------------------------------------


def _unknown_tool(run: AgentRun, banner: Banner) -> Banner:
    text = (
        "Its worker was lost, or it did not answer in time. Find out whether it took effect and say so: the run goes "
        "on with that. Paused and resumed, it goes on too, and the model is told that nobody knows."
    )
    return replace(banner, head="Unknown outcome of a tool call", text=text, calls=_open_calls(run))


def _open_calls(run: AgentRun) -> list[OpenCall]:
    calls = unknown_calls.unresolved(run)[:MOST_CALLS]
    return [
        OpenCall(
            call.pk, clip(call.tool_name, LINE).text, call.step_number, one_line(call.input),
            call.effect == Effect.AT_MOST_ONCE,
        )
        for call in calls
    ]  # fmt: skip


def _input(run: AgentRun, banner: Banner) -> Banner:
    asked = questions.open_question(run)
    if asked is None:
        return replace(banner, head="Waiting for an answer", text="Send a message: the run goes on with it.")
    choices = [(choice, clip(choice, LINE).text) for choice in asked.choices[:MOST_CHOICES] if choice.strip()]
    question = AskedPerson(clip(asked.text, TEXT_BYTES).text, choices)
    return replace(banner, head="The agent asks", text="", label="Show where", question=question)


# --- For its time -----------------------------------------------------------------------------------------------------


def _policy(run: AgentRun, banner: Banner) -> Banner:
    """Which try it is, and what went wrong."""
    event = last(run.pk, EventType.POLICY_APPLIED)
    payload = payload_of(event) if event is not None else {}
    attempt, attempts = whole_number(payload.get("attempt")), whole_number(payload.get("attempts"))
    counted = f" This is attempt {attempt}{f' of {attempts}' if attempts else ''}." if attempt else ""
    text = f"It goes on as a new run.{counted}"
    quote = clip(run.error_message, TEXT_BYTES).text
    return replace(banner, text=text, icon="retry", since=None, until_word="at", quote=quote)


def _cooldown(run: AgentRun, banner: Banner) -> Banner:
    """What is wrong with the provider, when it is asked again, and until when the run waits for it."""
    banner = replace(banner, head="Cooling down", text="The run goes on by itself; no worker is held.")
    event = last(run.pk, EventType.RETRY_SCHEDULED, EventType.LLM_TURN_END)
    if event is None or event.type != EventType.RETRY_SCHEDULED:
        return banner
    payload = payload_of(event)
    failed, quote = _failed(event)
    head = _OUTAGES.get(str(payload.get("error_type") or ""), "The call of the model failed")
    until = moment(payload.get("until"))
    last_try = f" If the provider is not back by {until:%H:%M:%S %Z}, the run pauses." if until is not None else ""
    text = f"{failed} {banner.text}{last_try}"
    return replace(banner, head=head, text=text, level="warn", icon="retry", quote=quote, until_word="next try at")


_OUTAGES: dict[str, str] = {
    "no_internet": "The model provider is not reachable",
    "timeout": "The model provider does not answer in time",
    "rate_limited": "The model provider limits the rate of requests",
    "overloaded": "The model provider is overloaded",
    "incomplete_answer": "The model provider cuts its answers off",
    "server_error": "The model provider has an internal error",
}
_MORE: dict[str, Callable[[AgentRun, Banner], Banner]] = {
    WaitReason.UNKNOWN_TOOL: _unknown_tool,
    WaitReason.INPUT: _input,
    WaitReason.COOLDOWN: _cooldown,
    **dict.fromkeys(POLICY_WAITS, _policy),
}


def retrying(found: Loaded) -> list[Banner]:
    """While a model call is tried again: which try comes when, or is at work; until the model has answered."""
    run = found.run
    types = (EventType.RETRY_SCHEDULED, EventType.LLM_TURN_START, EventType.LLM_TURN_END)
    event = last(run.pk, *types) if found.failures else None
    if event is None or event.type == EventType.LLM_TURN_END:
        return []
    again = event.type == EventType.LLM_TURN_START
    if again and not whole_number(payload_of(event).get("attempt")):
        return []
    scheduled = last(run.pk, EventType.RETRY_SCHEDULED) if again else event
    if scheduled is None or payload_of(scheduled).get("what") != "llm":
        return []
    failed, quote = _failed(scheduled)
    number = (whole_number(payload_of(scheduled).get("attempt")) or 0) + 1
    of = whole_number(payload_of(scheduled).get("max_attempts"))
    head = f"Attempt {number}{f' of {of}' if of else ''} {'is at work' if again else 'comes'}"
    until: datetime | None = None if again else until_of(scheduled)
    return [
        Banner(
            level="warn", icon="retry", head=head, text=failed, quote=quote, until=until, until_word="at",
            since=event.ts if again else None,
        )
    ]  # fmt: skip


def _failed(scheduled: Event) -> tuple[str, str]:
    """What became of the last try, and its error."""
    payload = payload_of(scheduled)
    number, of = whole_number(payload.get("attempt")), whole_number(payload.get("max_attempts"))
    which = f"Attempt {number}{f' of {of}' if of else ''}" if number else "The last attempt"
    kind = words(str(payload.get("error_type") or ""))
    return f"{which} to ask the model failed{f': {kind}' if kind else ''}.", clean(str(payload.get("error") or ""))
