"""The rows and cards of the timeline, folded from events like those of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.http import HttpRequest
from django.templatetags.static import static
from django.urls import reverse

from runs.pages.timeline.cards import CardMedia, Item, MessageCard
from runs.pages.timeline.event_texts import CallRow, EventTexts, MessageRow
from runs.pages.timeline.fold import Fold
from runs.pages.timeline.minimap import MapColumn, Minimap
from runs.statuses import Effect
from tests.support.components.rendered_examples import Example, ExampleFrame
from tests.support.components.sample_content import ContentKind, SampleContent
from tests.support.components.sample_events import (
    LOST_CALL,
    ROLLED_BACK,
    SampleEvent,
    call_events,
    message_events,
    other_events,
)
from tests.support.components.sample_rows import BEGIN, sample_id
from timeline.display import Clip, clip
from timeline.models import Event, Source

RUN = sample_id(1)
BASE = f"/runs/{RUN}"
TEMPLATE = "timeline/_rows.html"
_CALL, _MESSAGE = UUID(int=4 << 16), UUID(int=5 << 16)


def timeline_examples(request: HttpRequest, content: SampleContent) -> Iterator[Example]:
    """Yield the timeline, its links to other rows, and the minimap."""
    # Each list uses different numbers, because the IDs of rows contain them.
    messages = {"items": items_of(content, message_events(content), 1)}
    yield Example("Messages and model calls", TEMPLATE, messages, ExampleFrame.MESSAGES)
    yield _rows("Media of a message", [_with_media(content)])
    yield _rows("Tool calls", items_of(content, call_events(content), 200))
    yield _rows("Events", items_of(content, other_events(content), 300))
    links = {"page": BASE, "rows_url": reverse("runs:rows", args=[RUN]), "show": "all", "older": 90, "newer": 190}
    yield Example("Links to other rows", "runs/run/_timeline_rows.html", {"items": [], **links}, ExampleFrame.TIMELINE)
    columns = [_column(at) for at in range(10 * content.rows)]
    yield Example("Minimap", "runs/run/_minimap.html", {"minimap": Minimap(columns), **links})


def _rows(title: str, items: list[Item]) -> Example:
    return Example(title, TEMPLATE, {"items": items}, ExampleFrame.TIMELINE)


def items_of(content: SampleContent, events: Iterable[SampleEvent], first: int) -> list[Item]:
    """Return the rows and cards of these events, numbered from `first`."""
    fold = Fold(_texts(content))
    for seq, each in enumerate(events, first):
        event = Event(log_id=RUN, seq=seq, type=each.type, step=each.step, payload=each.payload, late=each.late)
        event.ts, event.source = BEGIN + timedelta(seconds=seq), Source.INGEST
        event.ref_id = _CALL if each.is_of_lost_call else None
        fold.take(event)
    fold.items[-1].is_target = True
    return fold.items


def _texts(content: SampleContent) -> EventTexts:
    """Return the rows of the tool call of unknown outcome, and of the rolled-back message."""
    call = CallRow(
        id=_CALL, message_id=_MESSAGE, call_id=LOST_CALL, name=content.name, effect=Effect.AT_MOST_ONCE,
        input=content.arguments, starts=2, output=Clip(), colours=(), media=(), has_unsent_output=False,
        result_id=None, child_run_id=sample_id(2), resolved_by="",
    )  # fmt: skip
    answer = MessageRow(
        _MESSAGE, "assistant", 2, clip(content.markdown, 8192), requested_calls=((content.name, LOST_CALL),)
    )
    return EventTexts(BASE, calls={_CALL: call}, rolled_back={ROLLED_BACK: answer})


def picture_of(content: SampleContent) -> str:
    """Return the URL of a picture: the site's logo, or for hostile content a URL without a picture."""
    is_broken = content.kind is ContentKind.HOSTILE
    return reverse("runs:media", args=[RUN, _MESSAGE, 0]) if is_broken else static("favicon.svg")


def _with_media(content: SampleContent) -> MessageCard:
    """Return a message with pictures and files."""
    card = MessageCard(id="e100", seq=100, ts=BEGIN, base=BASE, role="user")
    name = clip(content.name, 100).text or "media"
    card.media = [CardMedia("image/png", picture_of(content)), CardMedia(name)] * content.rows
    return card


def _column(at: int) -> MapColumn:
    step: Any = at or None
    return MapColumn(at, at + 1, step, step, errors=int(at % 7 == 5), waits=int(at % 5 == 3))
