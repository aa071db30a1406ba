"""Details of a model call from a recording in the plain form: its events, session and duration go into the log."""

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
    """Give the run the session of the recording, and return the events of the text.

    These are the `blocks` of the response if the text was streamed at the pace of the recording. If the pieces of the
    recorded texts would reveal a secret, each kind becomes one block, which is masked when it is appended.
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
    """Return all texts as one, all thoughts as one, the position where each begins, and the errors."""
    joined: list[tuple[str, str]] = []
    for base, pieces in groupby(sorted(events, key=_base), _base):
        texts = [text for _, text in pieces]
        joined += [(base, "".join(texts))] if base in _TEXTS else [(base, text) for text in texts]
    order = [_base(event) for event in events]
    return sorted(joined, key=lambda event: order.index(event[0]))


def _base(event: tuple[str, str]) -> str:
    return event[0].removesuffix(":delta")


def duration_ms(drive: Drive) -> int | None:
    """Return the duration of the recorded run; None if the run plays no recording in the plain form."""
    run = drive.run
    if run.step_count == run.step_base:
        return None
    follow_up = drive.provider.follow_up(drive.config["model"], drive.node, drive.call_number(run.step_count))
    if follow_up.recorded is None:
        return None
    answered = TurnUsage.objects.filter(run=run, outcome=TurnUsage.Outcome.ANSWERED)
    return int(answered.aggregate(total=Sum("duration_ms", default=0))["total"])


def _payloads(events: Sequence[tuple[str, str]]) -> list[Payload]:
    """Return the payloads in order. Consecutive pieces of one kind form a block and share one index."""
    payloads: list[Payload] = []
    index, before = -1, ""
    for kind, text in events:
        if (made := _TEXTS.get(kind)) is None:
            payloads.append(Error(error_type="error", error=text or None))
        else:
            index += kind != before or not kind.endswith(":delta")
            payloads.append(made(text=text, index=index))
        before = kind
    return payloads
