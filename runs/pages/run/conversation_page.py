"""The messages of a run: its conversation with the model, including rolled-back messages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse

from agentops.accounts.names import UUID_PATTERN
from agentops.base.http.methods import require_safe
from agentops.base.refusals import InvalidQuery
from runs.conversation import call_ids
from runs.errors import RunNotFound
from runs.models import AgentRun, AgentRunMessage, ExternalRun
from runs.pages.content.images import content_text
from runs.pages.content.shown_text import ShownText, show_markdown, show_plain
from runs.pages.page_parts import split_page
from runs.pages.run.any_run import tab_context
from runs.pages.run.timeline_page import seq_of
from runs.pages.timeline.card_contents import one_line
from runs.pages.timeline.event_texts import HIDDEN_THINKING
from runs.queries.tab_lists import MessagePage, conversation_page
from timeline.display import Clip, clean, clip, format_json
from timeline.reasons import FINISH_LABELS

PAGE_SIZE = 50
#: Maximum bytes of a part of a message; the page of the message shows it whole.
PART_BYTES = 4096


@dataclass(frozen=True)
class MessagePart:
    """A part of a message."""

    text: Clip
    #: A part with a label is collapsed, with its label and a summary in one line.
    label: str = ""
    summary: str = ""
    #: Text of a person or a model in its display form; None for other parts.
    prose: ShownText | None = None


@dataclass(frozen=True)
class ListedMessage:
    """A message as a row."""

    row: AgentRunMessage
    role: str
    href: str
    parts: list[MessagePart]
    #: How an answer is not whole, such as "cut off"; empty otherwise.
    fault: str = ""


@dataclass(frozen=True)
class ListedSegment:
    """The messages of a conversation that belong to one run."""

    label: str
    href: str
    count: int
    is_current: bool


@require_safe
def conversation(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """Show the messages after position `after`: of the run, or of the run `of`, which it continues.

    `as=text` shows them without Markdown.
    """
    context = tab_context(request, run_id, "conversation")
    run, after = context["run"], min(seq_of(request, "after") or 0, 2**31 - 1)
    page = conversation_page(run, _segment_of(request), after, PAGE_SIZE + 1)
    if page is None:
        raise RunNotFound("this run does not continue that one")
    rows, has_more = split_page(page.messages, PAGE_SIZE)
    as_text, external = request.GET.get("as") == "text", ExternalRun.objects.filter(run=page.segment.run_id)
    context |= {
        "messages_shown": [_listed(row, as_text=as_text) for row in rows],
        "as_text": as_text,
        "segments": _segments(run, page, as_text=as_text),
        "of": page.segment.run_id,
        "next_after": rows[-1].position if has_more else None,
        "after": after,
        # The position of the last message that a program has copied from another session.
        "copied_until": external.values_list("copied_until", flat=True).first() or 0,
    }
    return render(request, "runs/tabs/conversation.html", context)


def _segment_of(request: HttpRequest) -> UUID | None:
    """Return the run ID in the parameter `of`, or None."""
    text = request.GET.get("of", "")
    if text and not re.match(UUID_PATTERN, text):
        raise InvalidQuery(f"of must be the ID of a run, not {text[:64]!r}")
    return UUID(text) if text else None


def _segments(run: AgentRun, page: MessagePage, *, as_text: bool) -> list[ListedSegment]:
    """Return links to the messages of each run of the conversation."""
    url = reverse("runs:conversation", args=[run.pk])
    form = {"as": "text"} if as_text else {}
    segments = []
    for number, (segment, count) in enumerate(page.segments, start=1):
        label = "This run" if segment.run_id == run.pk else f"Run {number}"
        query = urlencode(form if segment.run_id == run.pk else {"of": segment.run_id, **form})
        href = f"{url}?{query}" if query else url
        segments.append(ListedSegment(label, href, count, segment.run_id == page.segment.run_id))
    return segments


def _listed(row: AgentRunMessage, *, as_text: bool) -> ListedMessage:
    href = reverse("runs:message", args=[row.run_id, row.pk])
    parts = row.content.get("parts") if isinstance(row.content, dict) else None
    parts = parts if isinstance(parts, list) else []
    listed = [*_parts(parts, as_text=as_text), *_refusal(row)]
    return ListedMessage(row, role_label(row), href, listed, FINISH_LABELS.get(row.finish_reason, ""))


def role_label(row: AgentRunMessage) -> str:
    """Return the role of a message for display. A step of a remote run without a model has no assistant."""
    if not call_ids.is_step(row.content):
        return row.get_role_display()
    return "Step" if row.role == AgentRunMessage.Role.ASSISTANT else "Result"


def _refusal(row: AgentRunMessage) -> Iterator[MessagePart]:
    """Yield the explanation of a refusal, which is not a part of the answer."""
    details = row.content.get("provider_details")
    explanation = details.get("refusal") if isinstance(details, dict) else None
    if isinstance(explanation, str) and explanation:
        text = clip(explanation, PART_BYTES)
        yield MessagePart(text, "Refusal", one_line(text.text))


def _parts(parts: list[Mapping[str, Any]], *, as_text: bool) -> Iterator[MessagePart]:
    """Yield the parts of a message; all but texts of a person or a model are collapsed."""
    for part in parts:
        kind, content = part.get("part_kind"), part.get("content")
        if kind == "tool-call":
            arguments = part.get("args") or {}
            name = clean(str(part.get("tool_name") or "tool"))
            yield MessagePart(clip(format_json(arguments), PART_BYTES), f"Calls {name}", one_line(arguments))
        elif kind == "thinking":
            text = clip(content or HIDDEN_THINKING, PART_BYTES)
            yield MessagePart(text, "Thinking", one_line(text.text))
        elif kind == "tool-return":
            text = clip(content_text(content), PART_BYTES)
            yield MessagePart(text, f"Result of {clean(str(part.get('tool_name') or 'tool'))}", one_line(text.text))
        elif kind == "system-prompt":
            text = clip(content_text(content), PART_BYTES)
            yield MessagePart(text, "Instructions", one_line(text.text))
        else:
            text = clip(content_text(content if content is not None else part), PART_BYTES)
            is_markdown = kind in ("text", "user-prompt") and not as_text
            yield MessagePart(text, prose=show_markdown(text) if is_markdown else show_plain(text))
