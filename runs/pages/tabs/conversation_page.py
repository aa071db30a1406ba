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
from runs.errors import RunNotFound
from runs.models import AgentRun, AgentRunMessage, ExternalRun
from runs.pages.content.images import media_name
from runs.pages.content.shown_text import ShownText, show_markdown, show_plain
from runs.pages.run.run_tabs import tab_context
from runs.pages.timeline.card_contents import one_line
from runs.pages.timeline.event_texts import HIDDEN_THINKING
from runs.pages.timeline.fragments import seq_of
from runs.queries.run_tabs.conversation_list import MessagePage, conversation_page
from timeline.display import Clip, clean, clip, format_json

PAGE_SIZE = 50
#: Maximum bytes of a part of a message; the page of the message shows it whole.
PART_BYTES = 4096


@dataclass(frozen=True)
class MessagePart:
    """A part of a message. Long and secondary parts are collapsed; `label` describes a collapsed part."""

    text: Clip
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


@dataclass(frozen=True)
class ListedSegment:
    """The messages of a conversation that belong to one run."""

    label: str
    href: str
    count: int
    is_current: bool


@require_safe
def conversation(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """Show the messages of the run, or of the run `of` that it continues, after position `after`.

    `as=text` shows them without Markdown.
    """
    context = tab_context(request, run_id, "conversation")
    run, after = context["run"], min(seq_of(request, "after") or 0, 2**31 - 1)
    # One row more than a page, to know whether there is a next page.
    page = conversation_page(run, _segment_of(request), after, PAGE_SIZE + 1)
    if page is None:
        raise RunNotFound("this run does not continue that one")
    shown, as_text = page.messages[:PAGE_SIZE], request.GET.get("as") == "text"
    context |= {
        "messages_shown": [_listed(row, as_text=as_text) for row in shown],
        "as_text": as_text,
        "segments": _segments(run, page, as_text=as_text),
        "of": page.segment.run_id,
        "next_after": shown[-1].position if len(page.messages) > PAGE_SIZE else None,
        "after": after,
        "copied_until": _copied_until(page.segment.run_id),
    }
    return render(request, "runs/tabs/conversation.html", context)


def _copied_until(run_id: UUID) -> int:
    """Return the position of the last message that a program copied from another session; 0 without one."""
    return ExternalRun.objects.filter(run=run_id).values_list("copied_until", flat=True).first() or 0


def _segment_of(request: HttpRequest) -> UUID | None:
    text = request.GET.get("of", "")
    if text and not re.match(UUID_PATTERN, text):
        raise InvalidQuery(f"of must be the ID of a run, not {text[:64]!r}")
    return UUID(text) if text else None


def _segments(run: AgentRun, page: MessagePage, *, as_text: bool) -> list[ListedSegment]:
    url = reverse("runs:conversation", args=[run.pk])
    form = {"as": "text"} if as_text else {}
    listed = []
    for number, (segment, count) in enumerate(page.segments, start=1):
        label = "This run" if segment.run_id == run.pk else f"Run {number}"
        query = urlencode(form if segment.run_id == run.pk else {"of": segment.run_id, **form})
        href = f"{url}?{query}" if query else url
        listed.append(ListedSegment(label, href, count, segment.run_id == page.segment.run_id))
    return listed


def _listed(row: AgentRunMessage, *, as_text: bool) -> ListedMessage:
    href = reverse("runs:message", args=[row.run_id, row.pk])
    parts = row.content.get("parts") if isinstance(row.content, dict) else None
    parts = parts if isinstance(parts, list) else []
    return ListedMessage(row, row.get_role_display(), href, list(_parts(parts, as_text=as_text)))


def _parts(parts: list[Mapping[str, Any]], *, as_text: bool) -> Iterator[MessagePart]:
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
            text = clip(_text(content), PART_BYTES)
            yield MessagePart(text, f"Result of {clean(str(part.get('tool_name') or 'tool'))}", one_line(text.text))
        elif kind == "system-prompt":
            text = clip(_text(content), PART_BYTES)
            yield MessagePart(text, "Instructions", one_line(text.text))
        else:
            text = clip(_text(content if content is not None else part), PART_BYTES)
            is_markdown = kind in ("text", "user-prompt") and not as_text
            yield MessagePart(text, prose=show_markdown(text) if is_markdown else show_plain(text))


def _text(content: Any) -> str:
    """Return content as text; media become placeholders."""
    items = content if isinstance(content, list) else [content]
    return "\n".join(item if isinstance(item, str) else _other(item) for item in items)


def _other(item: Any) -> str:
    is_media = isinstance(item, dict) and bool(item.keys() & {"media_type", "kind"})
    return f"[{media_name(item)}]" if is_media else format_json(item)
