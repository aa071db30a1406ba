"""Parts of the live core that need no event loop: cursors, renderings, and the memory that readers share."""

from __future__ import annotations

import re
from collections.abc import Sequence
from uuid import UUID, uuid4

import pytest
from django.test import RequestFactory

from tests.support.run_checks import refuses
from timeline.live import topic
from timeline.live.streams import Piece, Rendering, StreamCursor, cursor_of
from timeline.live.topic import Track
from timeline.models import Event

LOG = uuid4()


def events(first: int, last: int, type_: str = "message.added") -> list[Event]:
    return [Event(log_id=LOG, seq=seq, type=type_, payload={}) for seq in range(first, last + 1)]


def numbered(log_id: UUID, found: Sequence[Event]) -> list[Piece]:
    return [{"message": str(event.seq)} for event in found]


def in_rows(log_id: UUID, found: Sequence[Event]) -> list[Piece]:
    """Render odd events as rows and every third one with a status."""
    return [
        ({"rows": f"<li>{e.seq}</li>"} if e.seq % 2 else {}) | ({"status": f"s{e.seq}"} if e.seq % 3 == 0 else {})
        for e in found
    ]


PLAIN = Rendering("plain", numbered)
MERGED = Rendering("merged", in_rows, is_merged=True)


def track(rendering: Rendering, floor: int = 0, last: int = 0) -> Track:
    made = Track(rendering, floor)
    made.extend(rendering.items(LOG, events(floor + 1, last)))
    return made


@pytest.mark.parametrize(
    ("header", "query", "found"),
    [
        (None, "", StreamCursor()),
        (None, "?afterSeq=7", StreamCursor(7)),
        ("9", "?afterSeq=7", StreamCursor(9)),
        ("9.2", "", StreamCursor(9, 2)),
        ("", "?afterSeq=7", StreamCursor(7)),
    ],
)
def test_the_header_overrides_the_query(header: str | None, query: str, found: StreamCursor) -> None:
    headers = {} if header is None else {"Last-Event-ID": header}

    assert cursor_of(RequestFactory().get(f"/stream{query}", headers=headers)) == found


@pytest.mark.parametrize("text", ["abc", "-5", "1e9", "x:1", "9" * 400, "9.", ".1", "٣", "1 ", "1\n"])
def test_invalid_cursors_are_refused(text: str) -> None:
    with refuses("invalid_last_event_id"):
        cursor_of(RequestFactory().get("/stream", headers={"Last-Event-ID": text}))
    with refuses("invalid_after_seq"):
        cursor_of(RequestFactory().get("/stream", {"afterSeq": text}))


def test_each_event_is_a_message_with_its_seq() -> None:
    assert PLAIN.frame(PLAIN.items(LOG, events(4, 5))) == (
        b"event: message\nid: 4\ndata: 4\n\nevent: message\nid: 5\ndata: 5\n\n",
        2,
    )


def test_merged_parts_become_one_message_per_name_and_the_last_has_the_id() -> None:
    assert MERGED.frame(MERGED.items(LOG, events(1, 6))) == (
        b"event: status\ndata: s6\n\nevent: rows\nid: 6\ndata: <li>1</li><li>3</li><li>5</li>\n\n",
        6,
    )
    assert MERGED.frame(MERGED.items(LOG, events(6, 6))) == (b"event: status\nid: 6\ndata: s6\n\n", 1)


def test_events_without_a_row_still_move_the_cursor() -> None:
    assert MERGED.frame(MERGED.items(LOG, events(2, 2))) == (b"id: 2\n\n", 1)


@pytest.mark.parametrize("rendering", [PLAIN, MERGED])
def test_many_events_are_sent_in_several_frames(rendering: Rendering, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that is disconnected for slowness must have made progress."""
    monkeypatch.setattr("timeline.live.streams.FRAME_BYTES", 100)
    kept = track(rendering, last=100)

    cursor, frames = 0, []
    while cursor < 100:
        frame, cursor, _ = kept.next_frame(cursor)
        frames.append(frame)

    assert len(frames) > 5
    assert [int(id_) for id_ in re.findall(rb"id: (\d+)", b"".join(frames))][-1] == 100


def test_text_with_line_breaks_cannot_forge_a_message() -> None:
    forged = Rendering("forged", lambda log_id, found: [{"message": "a\r\n\r\nevent: end\rid: 9\n\n"} for _ in found])

    frame, _ = forged.frame(forged.items(LOG, events(1, 1)))

    assert frame.count(b"\n\n") == 1
    assert b"\nid: 9" not in frame


def test_a_track_returns_events_after_a_cursor_once() -> None:
    kept = track(PLAIN, floor=10, last=14)

    assert kept.next_frame(10)[1] == 14
    assert kept.next_frame(12)[:2] == (b"event: message\nid: 13\ndata: 13\n\nevent: message\nid: 14\ndata: 14\n\n", 14)
    assert kept.next_frame(14) == (b"", 14, False)
    kept.extend(PLAIN.items(LOG, events(15, 15)))
    assert kept.next_frame(14) == (b"event: message\nid: 15\ndata: 15\n\n", 15, False)


def test_a_reader_ahead_of_the_track_waits() -> None:
    """The reader has read the table itself, and the track is not yet at that event."""
    assert track(PLAIN, floor=10, last=12).next_frame(20) == (b"", 20, False)


def test_readers_at_one_cursor_share_a_frame() -> None:
    kept = track(PLAIN, last=5)

    assert kept.next_frame(2)[0] is kept.next_frame(2)[0]


@pytest.mark.parametrize(("limit", "value"), [("MAX_EVENTS", 3), ("MAX_EVENT_BYTES", 100)])
def test_a_track_drops_old_events(limit: str, value: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic, limit, value)

    kept = track(PLAIN, last=50)

    assert 0 < len(kept.items) <= 3
    assert kept.floor == kept.items[0].seq - 1
    assert kept.next_frame(kept.floor)[1] == 50


def test_a_track_keeps_at_least_the_newest_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic, "MAX_EVENT_BYTES", 1)

    assert [item.seq for item in track(PLAIN, last=9).items] == [9]
