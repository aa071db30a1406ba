"""Details of a model call from a fixture in the plain form: its events, session and duration go into the log."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from django.db.models import Sum

from agentops.base.redaction.redact import DEFAULT as REDACTOR
from runs.engine.drive import Drive
from runs.models import AgentRun, TurnUsage
from runs.providers.base import RecordedCall
from timeline.events import Payload
from timeline.events.llm import LlmText, LlmTextDelta, LlmThinking, LlmThinkingDelta
from timeline.events.notice import Error
from timeline.log import Entry

_TEXTS: dict[str, type[LlmText | LlmTextDelta | LlmThinking | LlmThinkingDelta]] = {
    "agent:text": LlmText,
    "agent:text:delta": LlmTextDelta,
    "agent:thinking": LlmThinking,
    "agent:thinking:delta": LlmThinkingDelta,
}


def apply(drive: Drive, recorded: RecordedCall, blocks: list[Entry]) -> list[Entry]:
    """Store the recorded session ID in the run, and return the events for the text of the answer.

    If the text was streamed at the pace of the fixture, these are `blocks`, the events of the response; otherwise the
    recorded events. If a secret spans several of them, all texts of a kind become one block, which is masked when it is
    appended.
    """
    session_id = REDACTOR.clean_text(recorded.session_id)[0][:128]
    if session_id and session_id != drive.run.session_id:
        AgentRun.objects.filter(pk=drive.run.pk, lease_epoch=drive.epoch).update(session_id=session_id)
    if not recorded.events or drive.settings.get("pace"):
        return blocks
    step, joined = drive.run.step_count + 1, _joined(recorded.events)
    is_clean = all(REDACTOR.clean_text(text)[0] == text for _, text in joined)
    return [Entry(payload, step=step, clean=is_clean) for payload in _payloads(recorded.events if is_clean else joined)]


def _joined(events: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the events with all texts joined into one, and all thoughts into one, each where the first begins."""
    joined: list[tuple[str, str]] = []
    for base, pieces in groupby(sorted(events, key=_base), _base):
        texts = [text for _, text in pieces]
        joined += [(base, "".join(texts))] if base in _TEXTS else [(base, text) for text in texts]
    order = [_base(event) for event in events]
    return sorted(joined, key=lambda event: order.index(event[0]))


def _base(event: tuple[str, str]) -> str:
    """Return the type of an event without the suffix of a delta."""
    return event[0].removesuffix(":delta")


def duration_ms(drive: Drive) -> int | None:
    """Return the recorded duration of the run in milliseconds; None unless it plays a fixture in the plain form."""
    run = drive.run
    if run.step_count == run.step_base:
        return None
    if drive.follow_up(run.step_count).recorded is None:
        return None
    answered = TurnUsage.objects.filter(run=run, outcome=TurnUsage.Outcome.ANSWERED)
    return int(answered.aggregate(total=Sum("duration_ms", default=0))["total"])


def _payloads(events: Sequence[tuple[str, str]]) -> list[Payload]:
    """Return the payloads of recorded events. Consecutive deltas of one type form a block: they share its index."""
    payloads: list[Payload] = []
    index, previous_type = -1, ""
    for event_type, text in events:
        if (payload_class := _TEXTS.get(event_type)) is None:
            payloads.append(Error(error_type="error", error=text or None))
        else:
            index += event_type != previous_type or not event_type.endswith(":delta")
            payloads.append(payload_class(text=text, index=index))
        previous_type = event_type
    return payloads
