"""The summary of a run: one paragraph for lists and for the head of its page."""

from __future__ import annotations

import re
from uuid import UUID

from agentops.base.redaction.redact import DEFAULT as REDACTOR
from runs.conversation.transcript import text_of
from runs.models import AgentRun, AgentRunMessage
from runs.tools.output import clip

MAX_SUMMARY = 500
#: Number of answers to search for one with text; the others only call tools.
MAX_ANSWERS = 50
_BETWEEN_PARAGRAPHS = re.compile(r"\n[^\S\n]*\n")


def first_paragraph(text: str) -> str:
    """Return the first paragraph of a redacted text as one line of at most `MAX_SUMMARY` characters."""
    paragraph = _BETWEEN_PARAGRAPHS.split(text.strip(), maxsplit=1)[0]
    return clip(" ".join(paragraph.split()), MAX_SUMMARY)


def of_last_answer(run_id: UUID) -> str:
    """Return the first paragraph of the run's last answer with text; empty without one."""
    answers = AgentRunMessage.objects.filter(
        run=run_id, role=AgentRunMessage.Role.ASSISTANT, rolled_back_at=None
    ).order_by("-position")
    for content in answers.values_list("content", flat=True)[:MAX_ANSWERS]:
        text = text_of(content).strip()
        if text:
            # Redacted before it is cut: half a secret is not recognised.
            return first_paragraph(REDACTOR.clean_text(text)[0])
    return ""


def fill_in(run: AgentRun, changes: dict[str, object]) -> None:
    """Add the summary to the `changes` of a run that ends or pauses, unless they have one."""
    if "summary" not in changes:
        changes["summary"] = of_last_answer(run.pk)
