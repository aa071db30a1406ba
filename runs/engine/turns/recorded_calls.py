"""What a recording in the plain form says of a model call: its events, its session and its duration are logged."""

from __future__ import annotations

from django.db.models import Sum

from runs.engine.drive import Drive
from runs.models import AgentRun, TurnUsage
from runs.providers.base import RecordedCall
from timeline.events import Payload
from timeline.events.llm import LlmText, LlmTextDelta, LlmThinking, LlmThinkingDelta
from timeline.events.notice import Error
from timeline.log import Entry
from timeline.redaction.redact import DEFAULT as REDACTOR

_TEXTS: dict[str, type[LlmText | LlmTextDelta | LlmThinking | LlmThinkingDelta]] = {
    "agent:text": LlmText,
    "agent:text:delta": LlmTextDelta,
    "agent:thinking": LlmThinking,
    "agent:thinking:delta": LlmThinkingDelta,
}


def apply(drive: Drive, recorded: RecordedCall, blocks: list[Entry]) -> list[Entry]:
    """Give the run the session of the recording, and return the events of the text.

    They are the `blocks` of the response if the text was streamed at the pace of the recording, or if the pieces of a
    recorded text would show a secret.
    """
    session_id = REDACTOR.clean_text(recorded.session_id)[0][:128]
    if session_id and session_id != drive.run.session_id:
        AgentRun.objects.filter(pk=drive.run.pk, lease_epoch=drive.epoch).update(session_id=session_id)
    whole = "".join(text for _, text in recorded.events)
    if not recorded.events or drive.settings.get("pace") or REDACTOR.clean_text(whole)[0] != whole:
        return blocks
    step = drive.run.step_count + 1
    return [Entry(payload, step=step, clean=True) for payload in _payloads(recorded)]


def duration_ms(drive: Drive) -> int | None:
    """Return how long the run took in the recording; None if what it plays is no such recording."""
    run = drive.run
    if run.step_count == run.step_base:
        return None
    follow_up = drive.provider.follow_up(drive.config["model"], drive.node, drive.call_number(run.step_count))
    if follow_up.recorded is None:
        return None
    answered = TurnUsage.objects.filter(run=run, outcome=TurnUsage.Outcome.ANSWERED)
    return int(answered.aggregate(total=Sum("duration_ms", default=0))["total"])


def _payloads(recorded: RecordedCall) -> list[Payload]:
    """Return the payloads in order. Pieces in a row of one kind are a block, and have one index."""
    payloads: list[Payload] = []
    index, before = -1, ""
    for kind, text in recorded.events:
        if (made := _TEXTS.get(kind)) is None:
            payloads.append(Error(error_type="error", error=text or None))
        else:
            index += kind != before or not kind.endswith(":delta")
            payloads.append(made(text=text, index=index))
        before = kind
    return payloads
